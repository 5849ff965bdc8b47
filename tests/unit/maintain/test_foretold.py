"""A dry run foretells what the run after it does, as far as anybody can know it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hypaware.config import Config
from hypaware.lake import expiry, turns
from hypaware.maintain import compact_plan
from hypaware.maintain.foretold import would_do
from hypaware.maintain.jobs import STEPS, run_steps
from hypaware.maintain.report import Report
from hypaware.maintain.work import Work
from hypaware.model import datasets
from hypaware.opening import open_home
from tests.light_lake import LightLake
from tests.light_life import DATASET
from tests.unit.maintain.compacting import BEGIN, KeptSmallFiles, SmallFiles

FORETOLD = (
    *("files_before", "bytes_before", "files_after", "rows_expired", "rows_held", "rows_without_time"),
    *("snapshots_expired", "dropped", "rewritten", "held", "errors"),
)
# Of a run in which no snapshot expires: a light lake leaves the files of those lying, for the orphans' turn.
ORPHANS = ("orphans_removed", "orphan_bytes")
NOW = datetime.now(UTC)
KEPT_DAYS = 30


def made(lake: SmallFiles) -> None:
    """Days that are over, each of many small files, which nobody need rewrite; days that stay; a hot tail."""
    today = (NOW.date() - BEGIN.date()).days
    lake.commit_each([("claude", today - 40), ("codex", today - 33), ("claude", today - 2)], times=4)
    lake.commit_each([("claude", today), ("codex", today - 1)], times=5)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> KeptSmallFiles:
    return KeptSmallFiles(tmp_path_factory.mktemp("foretold"), made)


@pytest.fixture
def lake(kept: KeptSmallFiles, monkeypatch: pytest.MonkeyPatch) -> SmallFiles:
    monkeypatch.setattr(expiry, "COMMIT_TAKES", 0.0)
    return kept.as_made()


def config() -> Config:
    found = Config()
    return replace(found, retention=replace(found.retention, default_days=KEPT_DAYS))


def told(lake: SmallFiles, **args: Any) -> dict[str, Any]:
    with closing(open_home(lake.home).store) as store, turns.running():
        document = would_do(lake.home, config(), store, [datasets.get(DATASET)], args, NOW, lambda _: None)
    (found,) = document["datasets"]
    assert isinstance(found, dict)
    return found


def done(lake: SmallFiles, **args: Any) -> dict[str, Any]:
    report = Report(DATASET)
    with closing(open_home(lake.home).store) as store, closing(LightLake(lake.home)) as light, turns.running():
        work = Work(lake.home, config(), store, light, datasets.get(DATASET), NOW, force=args.get("force", False))
        run_steps(work, STEPS[args.get("only")], report)
    return report.as_json()


def same(found: dict[str, Any]) -> dict[str, Any]:
    keys = FORETOLD if found["snapshots_expired"] else (*FORETOLD, *ORPHANS)
    return {key: found[key] for key in keys}


@pytest.mark.parametrize("only", [None, "compact", "expire"])
@pytest.mark.parametrize("force", [False, True])
def test_what_a_dry_run_says_is_what_the_run_does(lake: SmallFiles, only: str | None, force: bool) -> None:
    disk = lake.on_disk("*")
    foretold = told(lake, only=only, force=force)
    assert lake.on_disk("*") == disk
    found = done(lake, only=only, force=force)
    assert same(foretold) == same(found)
    assert found["files_after"] == len(lake.files()) < found["files_before"]
    assert bool(found["snapshots_expired"]) == (force and only != "compact")


def test_each_day_is_told_with_its_files_and_bytes(lake: SmallFiles) -> None:
    foretold = told(lake)
    days = {age: str((NOW - timedelta(days=age)).date()) for age in (40, 33, 2, 1, 0)}
    sizes = {(file.source, str(file.day)): 0 for file in lake.files()}
    for file in lake.files():
        sizes[file.source, str(file.day)] += file.bytes
    assert [(part["source"], part["day"], part["files"], part["rows"]) for part in foretold["dropped"]] == [
        ("claude", days[40], 4, 12),
        ("codex", days[33], 4, 12),
    ]
    assert [part["bytes"] for part in foretold["dropped"]] == [sizes["claude", days[40]], sizes["codex", days[33]]]
    rewritten = {(part["source"], part["day"]): (part["files"], part["bytes"]) for part in foretold["rewritten"]}
    assert rewritten["claude", days[2]] == (4, sizes["claude", days[2]])
    assert ("claude", days[40]) not in rewritten, "what goes is not written again"


def test_a_crowd_that_the_run_itself_makes_is_foreseen(lake: SmallFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own commits make the table crowded, and a crowded one keeps its snapshots for a shorter time."""
    monkeypatch.setattr(expiry, "CROWDED", len(lake.known.snapshots))
    monkeypatch.setattr(expiry, "_GRACE_WHEN_CROWDED", 0.0)
    foretold = told(lake)
    assert foretold["snapshots_expired"] > 0
    assert same(foretold) == same(done(lake))


def test_a_day_that_needs_several_files_is_reckoned_by_its_size(
    lake: SmallFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = max(file.bytes for file in lake.files())
    (claude, *_) = compact_plan.due(lake.files(), force=True)
    assert claude.files_after(size) == -(-claude.bytes // size) > 1
    assert claude.files_after() == 1


def test_orphans_are_foretold_too(lake: SmallFiles) -> None:
    stray: Path = lake.entry.metadata.parent / "stray.avro"
    stray.write_bytes(b"12345")
    foretold = told(lake)
    assert (foretold["orphans_removed"], foretold["orphan_bytes"]) == (1, 5)
    assert same(foretold) == same(done(lake))
