"""Expiry and orphans over a light lake, whose expiry leaves every file to the orphan search."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from hypaware.engine import jobs as engine_jobs
from hypaware.errors import LakeError
from hypaware.faults import list_crash_points
from hypaware.home import Home
from hypaware.home.storage import format_location
from hypaware.iceberg import fsync, metadata
from hypaware.iceberg.metadata import CatalogEntry, TableMetadata, TableSnapshot
from hypaware.lake import snapshots
from hypaware.maintain import expire
from hypaware.state import flushes
from hypaware.state.home_opener import open_home
from hypaware.testing.fault_injection import run_in_child
from tests.support.compaction_cases import PreparedSmallFiles, SmallFiles, due_now
from tests.support.light_home import DATASET, append, flush
from tests.support.rows import rows as message_rows

POINTS = sorted(
    point.name
    for point in list_crash_points()
    if point.name.startswith(("maintain.expire", "maintain.orphans", "iceberg.fsync"))
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedSmallFiles:
    def make(made: SmallFiles) -> None:
        made.commit(0, times=3)
        made.commit(3, times=4)

    return PreparedSmallFiles(tmp_path_factory.mktemp("small-files"), make)


@pytest.fixture
def lake(prepared: PreparedSmallFiles) -> SmallFiles:
    return prepared.restored()


def test_expiry_removes_compacted_files_with_their_snapshots(lake: SmallFiles) -> None:
    before = lake.rows()
    lake.compact()
    assert len(lake.on_disk()) == 8
    report = lake.expire(force=True)
    assert report.snapshots_expired == 7
    assert lake.on_disk() == {file.path for file in lake.files()}
    assert lake.rows() == before
    assert [snapshot.id for snapshot in lake.table_metadata.snapshots] == [lake.table_metadata.current_id]
    second = lake.expire(force=True)
    assert second.as_json()["reason"] == "nothing to do"


@pytest.mark.hazard(41)
def test_recent_snapshots_and_files_stay_without_force(lake: SmallFiles) -> None:
    """Snapshot expiry and orphan removal must respect the same grace period."""
    before, disk = lake.rows(), lake.on_disk("*")
    lake.compact()
    report = lake.expire()
    assert (report.snapshots_expired, report.orphans_removed) == (0, 0)
    assert disk <= lake.on_disk("*")
    assert lake.rows() == before


def _metadata_with(*ages: float, operation: str = "append") -> TableMetadata:
    now = time.time()
    snapshots = tuple(
        TableSnapshot(number, Path(f"/{number}"), {"operation": operation}, now - age)
        for number, age in enumerate(ages)
    )
    return TableMetadata(Path("/m"), "u", {}, snapshots, len(ages) - 1, (), {})


def test_the_snapshot_current_at_the_horizon_stays() -> None:
    table_metadata = _metadata_with(10_000, 8_000, 5_000, 100, 10)
    assert [each.id for each in snapshots.list_expirable(table_metadata, snapshots.expiry_horizon(table_metadata))] == [
        0,
        1,
    ]
    assert [
        each.id for each in snapshots.list_expirable(table_metadata, snapshots.expiry_horizon(table_metadata), keep=4)
    ] == [0]
    assert snapshots.list_expirable(_metadata_with(100, 10), time.time() - 3_600) == []


def test_force_keeps_snapshots_that_a_running_job_may_read() -> None:
    with engine_jobs.track_job():
        began = engine_jobs.oldest_job_start()
        table_metadata = _metadata_with(10, 5, -1, -2)
        assert snapshots.expiry_horizon(table_metadata, force=True) == began - snapshots.COMMIT_SECONDS
        assert [each.id for each in snapshots.list_expirable(table_metadata, began)] == [0]


def test_many_commits_shorten_the_grace_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "CROWDED_SNAPSHOTS", 3)
    table_metadata = _metadata_with(3_000, 2_000, 1_500, 700)
    assert len(snapshots.list_expirable(table_metadata, snapshots.expiry_horizon(table_metadata))) == 3
    monkeypatch.setattr(snapshots, "CROWDED_SNAPSHOTS", 4)
    assert snapshots.list_expirable(table_metadata, snapshots.expiry_horizon(table_metadata)) == []


def test_expiry_is_due_with_many_snapshots_or_space_to_free(home: Home) -> None:
    assert not snapshots.is_expiry_due(_metadata_with(9_000, 8_000, 7_000))
    assert snapshots.is_expiry_due(_metadata_with(*range(9_000, 6_000, -100)))
    assert snapshots.is_expiry_due(_metadata_with(9_000, 8_000, 7_000, operation="replace"))
    assert not snapshots.is_expiry_due(_metadata_with(7_000, operation="replace"))
    assert due_now(home) == []


def test_only_unreferenced_files_are_removed(lake: SmallFiles) -> None:
    location = lake.entry.metadata.parent.parent
    folder = next(iter(lake.on_disk())).parent
    strays = [
        folder / "keep-0123-7-abcd.parquet",
        location / "data" / "deep" / "er" / "other.parquet",
        location / "metadata" / "snap-1-1-x.avro",
        location / "metadata" / "99999-x.metadata.json",
        location / "metadata" / ".99999-x.metadata.json.crc",
    ]
    named = next(iter(lake.table_metadata.log))
    others = [location / "metadata" / "notes.txt", named.with_name(f".{named.name}.crc"), folder / "stats.puffin"]
    for path in (*strays, *others):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
    before, disk = lake.rows(), lake.on_disk("*")
    planned = lake.expire(dry_run=True)
    assert planned.reasons == ["would remove 5 unreferenced files, 0.0 MB"]
    assert lake.on_disk("*") == disk
    report = lake.expire()
    assert (report.orphans_removed, report.orphan_bytes) == (5, 25)
    assert disk - lake.on_disk("*") == set(strays)
    assert lake.rows() == before


def test_files_of_an_unfinished_flush_are_left_to_recovery(lake: SmallFiles) -> None:
    with closing(open_home(lake.home).store) as store, store.transaction() as connection:
        reserved = flushes.reserve_range(connection, DATASET, 10)
    path = next(iter(lake.on_disk())).parent / f"{reserved.id}-17-abcd.parquet"
    path.write_bytes(b"12345")
    lake.expire(force=True)
    assert path.exists()
    flush(lake.home)
    assert not path.exists(), "recovery has discarded the flush"


def test_files_of_the_previous_commit_stay(lake: SmallFiles) -> None:
    """The newest commit may not have reached the disk, so the previous one must stay complete."""
    before = lake.rows()
    lake.compact()
    lake.expire(force=True)
    entry = lake.entry
    assert entry.previous is not None
    assert fsync.find_damage(entry.previous) is None
    entry.metadata.write_bytes(b"")
    (stepped,) = fsync.roll_back_damaged(lake.home, {})
    assert stepped == DATASET
    assert lake.rows() == before


def test_files_of_the_previous_metadata_are_not_orphans(lake: SmallFiles) -> None:
    old = {file.path for file in lake.files()}
    lake.compact()
    table_metadata = json.loads(lake.entry.metadata.read_bytes())
    table_metadata["snapshots"] = [
        each for each in table_metadata["snapshots"] if each["snapshot-id"] == table_metadata["current-snapshot-id"]
    ]
    newest = lake.entry.metadata.with_name("99999-x.metadata.json")
    newest.write_text(json.dumps(table_metadata))
    without_previous = expire.find_orphans(lake.home, CatalogEntry(DATASET, newest, None), (), before=0.0)
    assert len(old & set(without_previous.files)) == 3
    found = expire.find_orphans(lake.home, CatalogEntry(DATASET, newest, lake.entry.previous), (), before=0.0)
    assert old.isdisjoint(found.files)


@pytest.mark.parametrize("damaged", ["manifest", "data"])
def test_nothing_is_removed_from_a_damaged_table(lake: SmallFiles, damaged: str) -> None:
    """An orphan may be the last copy of a row."""
    assert lake.table_metadata.current
    if damaged == "manifest":
        metadata.read_manifests(lake.table_metadata.current)[0].path.write_bytes(b"Obj")
    else:
        lake.files()[0].path.unlink()
    with pytest.raises(LakeError, match="no orphan was removed"):
        expire.find_orphans(lake.home, lake.entry, (), before=time.time())


def test_a_snapshot_with_missing_files_does_not_stop_expiry(lake: SmallFiles) -> None:
    """A power cut between the removal of files and its commit rolled the table back."""
    lake.compact()
    oldest = lake.table_metadata.snapshots[0]
    oldest.manifest_list.unlink()
    stray = next(iter(lake.on_disk())).with_name("keep-0123-7-abcd.parquet")
    stray.write_bytes(b"12345")
    assert lake.expire().orphans_removed == 1
    assert not stray.exists()


@pytest.mark.hazard(17)
def test_files_left_by_a_rollback_are_not_removed(lake: SmallFiles) -> None:
    """The catalog of an older backup references fewer files; the others hold rows that the state has recorded."""
    disk = lake.on_disk()
    with closing(sqlite3.connect(lake.home.catalog, isolation_level=None)) as catalog:
        catalog.execute("UPDATE iceberg_tables SET metadata_location = previous_metadata_location")
    with pytest.raises(LakeError, match="rolled back"):
        lake.expire(force=True)
    assert lake.on_disk() == disk


def test_an_earlier_generation_is_removed_when_no_reader_can_use_it(lake: SmallFiles) -> None:
    location = lake.entry.metadata.parent.parent
    old = location.with_name(f"{DATASET}-0123abcd")
    shutil.copytree(location, old)
    other = location.with_name("another_dataset")
    shutil.copytree(location, other)
    lake.expire()
    assert old.is_dir(), "an external reader may have just opened it"
    with engine_jobs.track_job():
        os.utime(old, (time.time() + 5, time.time() + 5))
        lake.expire(force=True)
        assert old.is_dir(), "a job that is already running may read it"
    for path in (old, *old.rglob("*")):
        os.utime(path, (time.time() - 60, time.time() - 60))
    report = lake.expire(force=True)
    assert not old.exists()
    assert report.orphans_removed > 10
    assert other.is_dir()


def test_a_directory_used_by_any_catalog_table_stays(lake: SmallFiles) -> None:
    location = lake.entry.metadata.parent.parent
    next_generation = location.with_name(f"{DATASET}-0123abcd")
    shutil.copytree(location, next_generation)
    location_ = format_location(next_generation / "metadata" / lake.entry.metadata.name)
    with closing(sqlite3.connect(lake.home.catalog, isolation_level=None)) as catalog:
        catalog.execute(
            "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location)"
            " VALUES ('other', 'theirs', 'x', ?)",
            (location_,),
        )
    lake.expire(force=True)
    assert next_generation.is_dir()


@pytest.mark.hazard(47)
def test_a_committed_flush_is_found_after_all_its_snapshots_expired(lake: SmallFiles) -> None:
    """The flush was killed after its commit. After compaction and expiry its rows still carry its id."""
    batch = message_rows(5, start=7_000)
    append(lake.home, batch)
    assert not run_in_child(lambda: (flush(lake.home), None)[1], crash_at="lake.commit.after-commit")
    lake.compact(force=True)
    lake.expire(force=True)
    assert len(lake.table_metadata.snapshots) == 1
    assert flush(lake.home).rows.written == 0
    found = [row for row in lake.rows() if row["message_index"] >= 7_000]
    assert len(found) == 5
    with closing(open_home(lake.home).store) as store, store.reading() as connection:
        assert flushes.unfinished_flushes(connection) == []
        assert flushes.load_high_water(connection)[DATASET]["claude"] == found[-1]["_hyp_ingest_seq"]


@pytest.mark.parametrize("point", [*POINTS, "iceberg.fsync.before-fsync:2", "iceberg.fsync.after-fsync:2"])
def test_a_kill_at_any_point_of_expiry_loses_no_row(lake: SmallFiles, point: str) -> None:
    before = lake.rows()
    lake.compact()
    assert not run_in_child(lambda: (lake.expire(force=True), None)[1], crash_at=point)
    assert lake.rows() == before
    append(lake.home, message_rows(3, start=5_000))
    flush(lake.home)
    lake.expire(force=True)
    assert lake.rows()[: len(before)] == before
    assert lake.on_disk() == {file.path for file in lake.files()}


def test_a_clean_table_has_no_orphans(lake: SmallFiles) -> None:
    assert not expire.find_orphans(lake.home, lake.entry, (), before=time.time())
