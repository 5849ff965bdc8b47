"""A damaged table must not stop the work on the other tables of its home."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hypaware.config import Config
from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.lake import health, tombstones
from hypaware.lake.flush import Flusher
from hypaware.maintain.backup import make_backup, restore_home
from hypaware.maintain.inventory import take_inventory
from hypaware.maintain.purge.run import plan_purge
from hypaware.maintain.purge.selector import PurgeSelector
from hypaware.maintain.retention_plan import retention_status
from hypaware.maintain.task import find_due_datasets, idle_report
from hypaware.model import datasets
from hypaware.spool.writer import Spool
from hypaware.state.home_opener import open_home
from tests.support.command import Hyp
from tests.support.light_home import DATASET, NO_TIMER, append, flush
from tests.support.light_lake import LightLake, read_lake
from tests.support.light_purge import purge
from tests.support.rows import MESSAGES, rows

NOW = datetime.now(UTC)
EXCHANGES = datasets.get("ai_gateway_exchanges")
OF_THE_EXCHANGES = "session-of-the-exchanges"
EXCHANGE = {
    "ts_start": NOW.isoformat(),
    "client_name": "claude",
    "method": "POST",
    "path": "/v1/messages",
    "session_id": OF_THE_EXCHANGES,
}


@pytest.fixture(params=["metadata", "manifest"])
def damaged_home(home: Home, request: pytest.FixtureRequest) -> Home:
    """A home with two tables. That of the exchanges is damaged; the messages are due for compaction."""
    with closing(open_home(home).store) as store, closing(LightLake(home)) as lake:
        for name in ("one", "two"):
            spool = Spool(home, NO_TIMER)
            spool.append(EXCHANGES.name, [{**EXCHANGE, "exchange_id": name}])
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
        reports = idle_report(damaged_home, Config(), store, [MESSAGES, EXCHANGES], NOW, None)["datasets"]
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


# Backup


def restored_from(backup: Path, tmp_path: Path) -> Home:
    home = Home(tmp_path / "restored")
    restore_home(home, backup, lambda *_args, **_options: None)
    return home


def test_a_backup_holds_the_other_tables_and_the_files_of_the_damaged_one(damaged_home: Home, tmp_path: Path) -> None:
    report = make_backup(damaged_home, tmp_path / "backup", lambda *_args, **_options: None, lambda: None)
    assert report["datasets"] == [{"dataset": DATASET, "rows": 12}]
    (damaged,) = report["damaged"]
    assert (damaged["dataset"], damaged["repair"]) == (EXCHANGES.name, [f"hyp maintain {EXCHANGES.name} --rebuild"])
    restored = restored_from(tmp_path / "backup", tmp_path)
    assert sorted(map(str, read_lake(restored, DATASET))) == sorted(map(str, read_lake(damaged_home, DATASET)))
    assert health.find_damaged_tables(restored).keys() == {EXCHANGES.name}, "the restored home knows it too"
    inventory = take_inventory(restored, EXCHANGES.name)
    files = list((damaged_home.warehouse / "hypaware" / EXCHANGES.name).rglob("*.parquet"))
    assert {path.name for path in inventory.rows} == {path.name for path in files}, "a rebuild finds all rows"
    assert len(files) == 2
    append(restored, rows(1, start=12))
    assert flush(restored).rows.written == 1


def test_a_backup_of_a_table_with_a_missing_file_keeps_the_rest_of_it(home: Home, tmp_path: Path) -> None:
    for start in range(3):
        append(home, rows(1, start=start))
        flush(home)
    entry = metadata.find_table(home, DATASET)
    assert entry
    # Not of the newest commit, which is checked each time.
    files = sorted(metadata.iter_live_files(metadata.read_metadata(entry.metadata)), key=lambda file: file.max_seq or 0)
    gone = files[0].path
    gone.unlink()
    report = make_backup(home, tmp_path / "backup", lambda *_args, **_options: None, lambda: None)
    (damaged,) = report["damaged"]
    assert f"{gone} is missing" in damaged["message"]
    inventory = take_inventory(restored_from(tmp_path / "backup", tmp_path), DATASET)
    assert (len(inventory.rows), [path.name for path in inventory.lost]) == (2, [gone.name])


def test_a_backup_without_a_catalog_is_reported_as_incomplete(damaged_home: Home, tmp_path: Path) -> None:
    """A lost catalog is not an empty lake."""
    damaged_home.catalog.unlink()
    answer = Hyp(damaged_home.root).run("backup", str(tmp_path / "backup"), "--json")
    assert answer.code == 1
    assert answer.json["error"]["kind"] == "backup_incomplete"
    assert [each["dataset"] for each in answer.json["damaged"]] == sorted([EXCHANGES.name, DATASET])
    copied = {path.name for path in (tmp_path / "backup").rglob("*.parquet")}
    assert copied == {path.name for path in damaged_home.warehouse.rglob("*.parquet")}


# Purge


def test_rows_of_the_other_tables_are_purged_if_the_damaged_one_has_none(damaged_home: Home) -> None:
    chosen = str(read_lake(damaged_home, DATASET)[0]["session_id"])
    notes: list[str] = []
    planned = plan_purge(damaged_home, PurgeSelector("session", (chosen,)), lambda *_args: None, notes.append)
    report = purge(damaged_home, "session", chosen, note=notes.append)
    assert planned["datasets"][0]["rows"] == report["datasets"][0]["rows"] > 0
    assert report["remaining"] == []
    assert EXCHANGES.name in report["left_alone"]
    assert all("left alone" in note and EXCHANGES.name in note for note in notes)
    assert len(notes) == 2
    assert chosen not in {row["session_id"] for row in read_lake(damaged_home, DATASET)}


def test_a_purge_of_rows_in_a_damaged_table_is_refused_with_its_repair(damaged_home: Home) -> None:
    before = read_lake(damaged_home, DATASET)
    values = (OF_THE_EXCHANGES, str(before[0]["session_id"]))
    expected = "nothing was purged, because files of ai_gateway_exchanges hold such rows"
    with pytest.raises(LakeError, match=expected):
        plan_purge(damaged_home, PurgeSelector("session", values), lambda *_args: None)
    with pytest.raises(LakeError, match=expected) as refused:
        purge(damaged_home, "session", *values)
    assert refused.value.repair == (f"hyp maintain {EXCHANGES.name} --rebuild",)
    assert read_lake(damaged_home, DATASET) == before
    assert not tombstones.list_unfinished_purges(damaged_home)


def test_a_session_that_only_the_damaged_table_names_is_known(damaged_home: Home) -> None:
    answer = Hyp(damaged_home.root).run("purge", "--session", OF_THE_EXCHANGES[:12], "--dry-run", "--json")
    assert (answer.code, answer.json["error"]["kind"]) == (1, "lake_damaged"), answer.out


@pytest.mark.parametrize("where", ["spool", "unreadable file"])
def test_a_purge_that_cannot_prove_itself_is_refused(damaged_home: Home, where: str) -> None:
    if where == "spool":
        spool = Spool(damaged_home, NO_TIMER)
        spool.append(EXCHANGES.name, [{**EXCHANGE, "exchange_id": "three", "session_id": "in-the-spool"}])
        spool.close()
    else:
        min((damaged_home.warehouse / "hypaware" / EXCHANGES.name).rglob("*.parquet")).write_bytes(b"PAR1")
    before = read_lake(damaged_home, DATASET)
    with pytest.raises(LakeError, match="nothing was purged"):
        purge(damaged_home, "session", "in-the-spool")
    assert read_lake(damaged_home, DATASET) == before


def test_a_purge_of_a_folder_reads_the_files_of_the_damaged_table(home: Home) -> None:
    """Rows without a folder are found by their session, which only the damaged table may name."""
    append(home, rows(1, cwd="/private", session_id="s-private"))
    flush(home)
    entry = metadata.find_table(home, DATASET)
    assert entry
    entry.metadata.write_bytes(b"{")
    with pytest.raises(LakeError, match=f"files of {DATASET} hold such rows"):
        purge(home, "cwd", "/private")
