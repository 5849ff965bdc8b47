"""A damaged table must not stop the work on the other tables of its home."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime

import pytest

from hypaware.config import Config
from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.lake import health
from hypaware.lake.flush import Flusher
from hypaware.maintain.retention_plan import retention_status
from hypaware.maintain.task import find_due_datasets, idle_report
from hypaware.model import datasets
from hypaware.spool.writer import Spool
from hypaware.state.home_opener import open_home
from tests.support.command import Hyp
from tests.support.light_home import DATASET, NO_TIMER, append, flush
from tests.support.light_lake import LightLake
from tests.support.rows import rows

NOW = datetime.now(UTC)
EXCHANGES = datasets.get("ai_gateway_exchanges")


@pytest.fixture(params=["metadata", "manifest"])
def damaged_home(home: Home, request: pytest.FixtureRequest) -> Home:
    """A home with two tables. That of the exchanges is damaged; the messages are due for compaction."""
    exchange = {"ts_start": NOW.isoformat(), "client_name": "claude", "method": "POST", "path": "/v1/messages"}
    with closing(open_home(home).store) as store, closing(LightLake(home)) as lake:
        for name in ("one", "two"):
            spool = Spool(home, NO_TIMER)
            spool.append(EXCHANGES.name, [{**exchange, "exchange_id": name}])
            spool.close()
            Flusher(home, store, lake).flush(EXCHANGES, wait=0)
    for start in range(12):
        append(home, rows(1, start=start))
        flush(home)
    entry = metadata.find_table(home, EXCHANGES.name)
    assert entry
    if request.param == "metadata":
        entry.metadata.write_bytes(b"{")
    else:
        known = metadata.read_metadata(entry.metadata)
        assert known.current
        older = [each for each in metadata.read_manifests(known.current) if each.snapshot_id != known.current_id]
        older[0].path.write_bytes(b"Obj")
        # Another process has not read the manifest before.
        metadata._manifest_cache = metadata._ManifestCache(100)
    return home


def test_other_tables_are_still_due(damaged_home: Home) -> None:
    with closing(open_home(damaged_home).store) as store:
        assert find_due_datasets(damaged_home, Config(), store, NOW) == [DATASET]
        assert [each["dataset"] for each in retention_status(damaged_home, Config(), store, NOW)] == [DATASET]
        reports = idle_report(damaged_home, Config(), store, datasets.list_all(), NOW, None)["datasets"]
    assert [each["dataset"] for each in reports if each["errors"]] == [EXCHANGES.name]


def test_damaged_tables_are_named_with_their_repair(damaged_home: Home) -> None:
    damaged = health.find_damaged_tables(damaged_home)
    assert damaged.keys() == {EXCHANGES.name}
    with pytest.raises(LakeError, match="rebuild"):
        health.check_tables(damaged_home)
    health.check_tables(damaged_home, [DATASET])


def test_a_dry_run_reports_the_damage_and_plans_the_rest(damaged_home: Home) -> None:
    answer = Hyp(damaged_home.root).run("maintain", "--dry-run", "--json")
    assert answer.code == 1
    by_dataset = {each["dataset"]: each for each in answer.json["datasets"]}
    assert "damaged" in by_dataset[EXCHANGES.name]["errors"][0]
    assert "would compact" in by_dataset[DATASET]["reason"]


def test_the_state_is_rebuilt_without_the_damaged_table(damaged_home: Home) -> None:
    damaged_home.state.unlink()
    damaged_home.mirror.unlink()
    append(damaged_home, rows(1, start=12))
    assert flush(damaged_home).rows.written == 1
