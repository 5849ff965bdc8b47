"""A dry run of maintenance reports what the real run then does."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hypaware.config import Config
from hypaware.engine import jobs as engine_jobs
from hypaware.lake import snapshots
from hypaware.maintain import compact_plan
from hypaware.maintain.context import MaintenanceContext
from hypaware.maintain.jobs import STEPS, dry_run_report, run_steps
from hypaware.model import datasets
from hypaware.state.home_opener import open_home
from tests.support.compaction_cases import BEGIN, PreparedSmallFiles, SmallFiles
from tests.support.light_home import DATASET
from tests.support.light_lake import LightLake

PREDICTED = (
    *("files_before", "bytes_before", "files_after", "rows_expired", "rows_held", "rows_without_time"),
    *("snapshots_expired", "dropped", "rewritten", "held", "errors"),
)
# Compared only if no snapshot expires: a light lake leaves their files to the orphan search.
ORPHANS = ("orphans_removed", "orphan_bytes")
KEPT_DAYS = 30


@dataclass
class Site:
    """A lake and the time of its maintenance: that of its creation, so that no midnight comes in between."""

    lake: SmallFiles
    now: datetime

    def dry_run(self, **args: Any) -> dict[str, Any]:
        home = self.lake.home
        with closing(open_home(home).store) as store, engine_jobs.track_job():
            document = dry_run_report(home, config(), store, [datasets.get(DATASET)], args, self.now, lambda _: None)
        (found,) = document["datasets"]
        assert isinstance(found, dict)
        return found

    def run(self, only: str | None = None, force: bool = False) -> dict[str, Any]:
        home = self.lake.home
        with closing(open_home(home).store) as store, closing(LightLake(home)) as light, engine_jobs.track_job():
            context = MaintenanceContext(home, config(), store, light, datasets.get(DATASET), self.now, force=force)
            return run_steps(context, STEPS[only])


def fill(lake: SmallFiles, now: datetime) -> None:
    """Fill the lake: expired days of many small files, days that stay, a hot tail."""
    today = (now.date() - BEGIN.date()).days
    lake.commit_each([("claude", today - 40), ("codex", today - 33), ("claude", today - 2)], times=4)
    lake.commit_each([("claude", today), ("codex", today - 1)], times=5)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreparedSmallFiles, datetime]:
    now = datetime.now(UTC)
    return PreparedSmallFiles(tmp_path_factory.mktemp("dry-run"), lambda lake: fill(lake, now)), now


@pytest.fixture
def site(prepared: tuple[PreparedSmallFiles, datetime], monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(snapshots, "COMMIT_SECONDS", 0.0)
    lake, now = prepared
    return Site(lake.restored(), now)


def config() -> Config:
    found = Config()
    return replace(found, retention=replace(found.retention, default_days=KEPT_DAYS))


def comparable(found: dict[str, Any]) -> dict[str, Any]:
    keys = PREDICTED if found["snapshots_expired"] else (*PREDICTED, *ORPHANS)
    return {key: found[key] for key in keys}


@pytest.mark.parametrize("only", [None, "compact", "expire"])
@pytest.mark.parametrize("force", [False, True])
def test_a_dry_run_reports_what_the_run_does(site: Site, only: str | None, force: bool) -> None:
    disk = site.lake.on_disk("*")
    predicted = site.dry_run(only=only, force=force)
    assert site.lake.on_disk("*") == disk
    found = site.run(only=only, force=force)
    assert comparable(predicted) == comparable(found)
    assert found["files_after"] == len(site.lake.files()) < found["files_before"]
    assert bool(found["snapshots_expired"]) == (force and only != "compact")


def test_each_day_is_reported_with_files_and_bytes(site: Site) -> None:
    predicted = site.dry_run()
    days = {age: str((site.now - timedelta(days=age)).date()) for age in (40, 33, 2)}
    sizes: Counter[tuple[str, str]] = Counter()
    for file in site.lake.files():
        sizes[file.source, str(file.day)] += file.bytes
    assert [(part["source"], part["day"], part["files"], part["rows"]) for part in predicted["dropped"]] == [
        ("claude", days[40], 4, 12),
        ("codex", days[33], 4, 12),
    ]
    assert [part["bytes"] for part in predicted["dropped"]] == [sizes["claude", days[40]], sizes["codex", days[33]]]
    rewritten = {(part["source"], part["day"]): (part["files"], part["bytes"]) for part in predicted["rewritten"]}
    assert rewritten["claude", days[2]] == (4, sizes["claude", days[2]])
    assert ("claude", days[40]) not in rewritten, "dropped files are not rewritten"


def test_snapshots_of_the_run_itself_are_predicted(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's own commits make the table crowded, and a crowded table keeps its snapshots for a shorter time."""
    monkeypatch.setattr(snapshots, "CROWDED_SNAPSHOTS", len(site.lake.table_metadata.snapshots))
    monkeypatch.setattr(snapshots, "_CROWDED_GRACE_SECONDS", 0.0)
    predicted = site.dry_run()
    assert predicted["snapshots_expired"] > 0
    assert comparable(predicted) == comparable(site.run())


def test_the_number_of_new_files_is_estimated_from_the_size(site: Site) -> None:
    size = max(file.bytes for file in site.lake.files())
    (first, *_) = compact_plan.plan_compaction(site.lake.files(), force=True)
    assert first.files_after(size) == -(-first.bytes // size) > 1
    assert first.files_after() == 1


def test_orphans_are_predicted(site: Site) -> None:
    stray = site.lake.entry.metadata.parent / "stray.avro"
    stray.write_bytes(b"12345")
    predicted = site.dry_run()
    assert (predicted["orphans_removed"], predicted["orphan_bytes"]) == (1, 5)
    assert comparable(predicted) == comparable(site.run())
