"""Expiry and orphans over a light lake, whose expiry leaves every file to the search for orphans."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from hypaware.crash_points import all_points
from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.lake import expiry, metadata, secure, turns
from hypaware.lake.metadata import Metadata, Snapshot, TableEntry
from hypaware.maintain import orphans
from hypaware.opening import open_home
from hypaware.state import flushes
from tests.light_life import DATASET, append, flush
from tests.lives import live
from tests.rows import rows as message_rows
from tests.unit.maintain.compacting import KeptSmallFiles, SmallFiles, due_now

POINTS = sorted(
    point.name
    for point in all_points()
    if point.name.startswith(("maintain.expire", "maintain.orphans", "lake.secure"))
)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> KeptSmallFiles:
    def make(made: SmallFiles) -> None:
        made.commit(0, times=3)
        made.commit(3, times=4)

    return KeptSmallFiles(tmp_path_factory.mktemp("small-files"), make)


@pytest.fixture
def lake(kept: KeptSmallFiles) -> SmallFiles:
    return kept.as_made()


def test_what_was_compacted_goes_with_the_snapshots_that_named_it(lake: SmallFiles) -> None:
    before = lake.rows()
    lake.compact()
    assert len(lake.on_disk()) == 8
    report = lake.expire(force=True)
    assert report.snapshots_expired == 7
    assert lake.on_disk() == {file.path for file in lake.files()}
    assert lake.rows() == before
    assert [snapshot.id for snapshot in lake.known.snapshots] == [lake.known.current_id]
    again = lake.expire(force=True)
    assert again.as_json()["reason"] == "nothing to do"


@pytest.mark.hazard(41)
def test_what_a_reader_may_have_found_an_hour_ago_stays_without_force(lake: SmallFiles) -> None:
    """Neither the cleaner of snapshots nor the one of files may undo the other's patience."""
    before, disk = lake.rows(), lake.on_disk("*")
    lake.compact()
    report = lake.expire()
    assert (report.snapshots_expired, report.orphans_removed) == (0, 0)
    assert disk <= lake.on_disk("*")
    assert lake.rows() == before


def _known(*ages: float, operation: str = "append") -> Metadata:
    now = time.time()
    snapshots = tuple(
        Snapshot(number, Path(f"/{number}"), {"operation": operation}, now - age) for number, age in enumerate(ages)
    )
    return Metadata(Path("/m"), "u", {}, snapshots, len(ages) - 1, (), {})


def test_the_snapshot_that_was_current_at_the_horizon_stays() -> None:
    known = _known(10_000, 8_000, 5_000, 100, 10)
    assert [each.id for each in expiry.expirable(known, expiry.horizon(known))] == [0, 1]
    assert [each.id for each in expiry.expirable(known, expiry.horizon(known), keep=4)] == [0]
    assert expiry.expirable(_known(100, 10), time.time() - 3_600) == []


def test_no_force_takes_away_what_a_running_job_may_read() -> None:
    with turns.running():
        began = turns.oldest_running()
        known = _known(10, 5, -1, -2)
        assert expiry.horizon(known, force=True) == began - expiry.COMMIT_TAKES
        assert [each.id for each in expiry.expirable(known, began)] == [0]


def test_a_burst_of_commits_shortens_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "CROWDED", 3)
    known = _known(3_000, 2_000, 1_500, 700)
    assert len(expiry.expirable(known, expiry.horizon(known))) == 3
    monkeypatch.setattr(expiry, "CROWDED", 4)
    assert expiry.expirable(known, expiry.horizon(known)) == []


def test_expiry_is_due_when_much_has_gathered_or_space_can_be_freed(home: Home) -> None:
    assert not expiry.is_due(_known(9_000, 8_000, 7_000))
    assert expiry.is_due(_known(*range(9_000, 6_000, -100)))
    assert expiry.is_due(_known(9_000, 8_000, 7_000, operation="replace"))
    assert not expiry.is_due(_known(7_000, operation="replace"))
    assert due_now(home) == []


def test_files_that_nothing_names_go_and_all_others_stay(lake: SmallFiles) -> None:
    location = lake.entry.metadata.parent.parent
    folder = next(iter(lake.on_disk())).parent
    strays = [
        folder / "keep-0123-7-abcd.parquet",
        location / "data" / "deep" / "er" / "other.parquet",
        location / "metadata" / "snap-1-1-x.avro",
        location / "metadata" / "99999-x.metadata.json",
        location / "metadata" / ".99999-x.metadata.json.crc",
    ]
    named = next(iter(lake.known.log))
    others = [location / "metadata" / "notes.txt", named.with_name(f".{named.name}.crc"), folder / "stats.puffin"]
    for path in (*strays, *others):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
    before, disk = lake.rows(), lake.on_disk("*")
    told = lake.expire(dry_run=True)
    assert told.reasons == ["would remove 5 files that nothing needs any more, 0.0 MB"]
    assert lake.on_disk("*") == disk
    report = lake.expire()
    assert (report.orphans_removed, report.orphan_bytes) == (5, 25)
    assert disk - lake.on_disk("*") == set(strays)
    assert lake.rows() == before


def test_files_of_a_flush_that_is_not_settled_are_left_to_recovery(lake: SmallFiles) -> None:
    with closing(open_home(lake.home).store) as store, store.transaction() as connection:
        reserved = flushes.reserve_blocks(connection, DATASET, 10)
    path = next(iter(lake.on_disk())).parent / f"{reserved.id}-17-abcd.parquet"
    path.write_bytes(b"12345")
    lake.expire(force=True)
    assert path.exists()
    flush(lake.home)
    assert not path.exists(), "recovery has burnt it"


def test_what_a_power_cut_may_step_back_to_stays(lake: SmallFiles) -> None:
    """The newest commit may not have reached the disk: the one before it must still be whole."""
    before = lake.rows()
    lake.compact()
    lake.expire(force=True)
    entry = lake.entry
    assert entry.previous is not None
    assert secure.damage(entry.previous) is None
    entry.metadata.write_bytes(b"")
    (stepped,) = secure.step_back_where_damaged(lake.home, {})
    assert stepped.table == DATASET
    assert lake.rows() == before


def test_nothing_of_the_metadata_before_is_an_orphan_though_the_newest_has_forgotten_it(lake: SmallFiles) -> None:
    old = {file.path for file in lake.files()}
    lake.compact()
    known = json.loads(lake.entry.metadata.read_bytes())
    known["snapshots"] = [each for each in known["snapshots"] if each["snapshot-id"] == known["current-snapshot-id"]]
    newest = lake.entry.metadata.with_name("99999-x.metadata.json")
    newest.write_text(json.dumps(known))
    alone = orphans.find(lake.home, TableEntry(DATASET, newest, None), (), before=0.0)
    assert len(old & set(alone.files)) == 3
    found = orphans.find(lake.home, TableEntry(DATASET, newest, lake.entry.previous), (), before=0.0)
    assert old.isdisjoint(found.files)


@pytest.mark.parametrize("spoilt", ["manifest", "data"])
def test_where_the_table_is_damaged_nothing_is_removed(lake: SmallFiles, spoilt: str) -> None:
    """An orphan may be all that is left of a row."""
    assert lake.known.current
    if spoilt == "manifest":
        metadata.manifests(lake.known.current)[0].path.write_bytes(b"Obj")
    else:
        lake.files()[0].path.unlink()
    with pytest.raises(LakeError, match=r"nothing (there )?is removed"):
        orphans.find(lake.home, lake.entry, (), before=time.time())


def test_a_snapshot_whose_files_an_expiry_has_taken_already_does_not_stop_it(lake: SmallFiles) -> None:
    """The power went between the files and the commit that forgot them, and the table was stepped back."""
    lake.compact()
    oldest = lake.known.snapshots[0]
    oldest.manifest_list.unlink()
    stray = next(iter(lake.on_disk())).with_name("keep-0123-7-abcd.parquet")
    stray.write_bytes(b"12345")
    assert lake.expire().orphans_removed == 1
    assert not stray.exists()


@pytest.mark.hazard(17)
def test_what_a_rollback_has_left_behind_is_not_removed(lake: SmallFiles) -> None:
    """The catalog of an older backup names fewer files; the others hold rows that the state has recorded."""
    disk = lake.on_disk()
    with closing(sqlite3.connect(lake.home.catalog, isolation_level=None)) as catalog:
        catalog.execute("UPDATE iceberg_tables SET metadata_location = previous_metadata_location")
    with pytest.raises(LakeError, match="rolled back"):
        lake.expire(force=True)
    assert lake.on_disk() == disk


def test_an_earlier_generation_goes_when_nobody_can_be_reading_it(lake: SmallFiles) -> None:
    location = lake.entry.metadata.parent.parent
    old = location.with_name(f"{DATASET}-0123abcd")
    shutil.copytree(location, old)
    other = location.with_name("another_dataset")
    shutil.copytree(location, other)
    lake.expire()
    assert old.is_dir(), "somebody outside may have found it a moment ago"
    with turns.running():
        os.utime(old, (time.time() + 5, time.time() + 5))
        lake.expire(force=True)
        assert old.is_dir(), "a job that runs since before may read it"
    for path in (old, *old.rglob("*")):
        os.utime(path, (time.time() - 60, time.time() - 60))
    report = lake.expire(force=True)
    assert not old.exists()
    assert report.orphans_removed > 10
    assert other.is_dir()


def test_a_folder_that_any_table_of_the_catalog_lies_in_stays(lake: SmallFiles) -> None:
    location = lake.entry.metadata.parent.parent
    next_one = location.with_name(f"{DATASET}-0123abcd")
    shutil.copytree(location, next_one)
    place = metadata.location_of(next_one / "metadata" / lake.entry.metadata.name)
    with closing(sqlite3.connect(lake.home.catalog, isolation_level=None)) as catalog:
        catalog.execute(
            "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location)"
            " VALUES ('other', 'theirs', 'x', ?)",
            (place,),
        )
    lake.expire(force=True)
    assert next_one.is_dir()


@pytest.mark.hazard(47)
def test_a_landed_flush_is_found_though_every_snapshot_has_expired(lake: SmallFiles) -> None:
    """Killed after its commit, before the state knew: compacted and expired since, its rows still carry its id."""
    batch = message_rows(5, start=7_000)
    append(lake.home, batch)
    assert not live(lambda: (flush(lake.home), None)[1], crash_at="lake.commit.after-commit")
    lake.compact(force=True)
    lake.expire(force=True)
    assert len(lake.known.snapshots) == 1
    assert flush(lake.home).rows_written == 0
    found = [row for row in lake.rows() if row["message_index"] >= 7_000]
    assert len(found) == 5
    with closing(open_home(lake.home).store) as store, store.reading() as connection:
        assert flushes.unfinished(connection) == []
        assert flushes.high_water(connection)[DATASET]["claude"] == found[-1]["_hyp_ingest_seq"]


@pytest.mark.parametrize("point", [*POINTS, "lake.secure.before-fsync:2", "lake.secure.after-fsync:2"])
def test_killed_at_any_point_of_it_every_row_stays(lake: SmallFiles, point: str) -> None:
    before = lake.rows()
    lake.compact()
    assert not live(lambda: (lake.expire(force=True), None)[1], crash_at=point)
    assert lake.rows() == before
    append(lake.home, message_rows(3, start=5_000))
    flush(lake.home)
    lake.expire(force=True)
    assert lake.rows()[: len(before)] == before
    assert lake.on_disk() == {file.path for file in lake.files()}


def test_nothing_to_remove_touches_nothing(lake: SmallFiles) -> None:
    assert not orphans.find(lake.home, lake.entry, (), before=time.time())
