"""Flushes of valid rows, invalid rows and duplicates, and flushes in a failing environment."""

from __future__ import annotations

import errno
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from hypaware.config import FlushConfig
from hypaware.errors import HypError, LakeError, Retryable
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.lake import build, key_index
from hypaware.lake.key_index import KeyIndex
from hypaware.lake.poison import MAX_SHARED_ATTEMPTS
from hypaware.model import canonical, datasets
from hypaware.model.datasets import BATCH_ID, INTERNAL, ROW_ID, SEQ, SOURCE
from hypaware.spool import segments
from hypaware.state import flushes, recovery
from hypaware.state.home_opener import open_home
from hypaware.testing.fault_injection import run_in_child
from tests.support.light_home import DATASET, append, flush
from tests.support.light_lake import LightLake, LightTable, read_lake
from tests.support.rows import rows
from tests.support.shadow_disk import ShadowDisk


def parts(home: Home) -> list[str]:
    return sorted(row["part_id"] for row in read_lake(home, DATASET))


def rejected(home: Home) -> list[dict[str, Any]]:
    folder = segments.spool_folder(home, DATASET).rejected
    return [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]


def waiting(home: Home) -> int:
    return sum(segment.rows for segment in segments.list_sealed_segments(segments.spool_folder(home, DATASET)))


@pytest.mark.hazard(12)
def test_a_committed_row_carries_its_sequence_source_row_id_and_flush(home: Home) -> None:
    append(home, rows(3))
    report = flush(home)
    for place, row in enumerate(read_lake(home, DATASET), 1):
        assert (row[SEQ], row[SOURCE], row[BATCH_ID]) == (place, "claude", report.flush_id)
        public = {name: value for name, value in row.items() if name not in INTERNAL and value is not None}
        for name in ("message_created_at", "conversation_started_at"):
            public[name] = public[name].isoformat(timespec="microseconds").replace("+00:00", "Z")
        assert row[ROW_ID] == canonical.compute_row_id(public)


@pytest.mark.hazard(11)
def test_every_row_in_the_lake_has_a_sequence(home: Home) -> None:
    append(home, rows(5))
    append(home, rows(5, start=5, client_name="codex"))
    flush(home)
    run_in_child(lambda: append(home, rows(5, start=10), seal=False))
    flush(home)
    assert sorted(row[SEQ] for row in read_lake(home, DATASET)) == list(range(1, 16))


def test_a_flush_of_only_duplicates_commits_nothing_and_still_finishes(home: Home) -> None:
    append(home, rows(5))
    flush(home)
    before = metadata.find_table(home, DATASET)
    append(home, rows(5))
    report = flush(home)
    assert (report.rows.written, report.rows.duplicate) == (0, 5)
    assert metadata.find_table(home, DATASET) == before
    assert waiting(home) == 0


def test_of_two_rows_with_the_same_key_in_one_flush_the_lower_sequence_is_kept(home: Home) -> None:
    append(home, [*rows(3), *rows(3, content_text="later")])
    flush(home)
    found = read_lake(home, DATASET)
    assert [row[SEQ] for row in found] == [1, 2, 3]
    assert {row["content_text"] for row in found} == {row["content_text"] for row in rows(3)}


@pytest.mark.hazard(5)
@pytest.mark.hazard(7)
def test_a_large_spool_takes_several_bounded_flushes_that_do_not_split_segments(home: Home) -> None:
    for start in range(0, 50, 10):
        append(home, rows(10, start=start))
    flush(home, FlushConfig(max_rows=20))
    by_flush: dict[str, list[int]] = {}
    for row in read_lake(home, DATASET):
        by_flush.setdefault(row[BATCH_ID], []).append(row[SEQ])
    assert sorted(len(found) for found in by_flush.values()) == [10, 20, 20]


@pytest.mark.hazard(93)
def test_a_poison_row_is_rejected_and_does_not_block_the_rows_behind_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without isolation the segment would fail forever and block every later flush."""
    real = segments.decode_line

    def read_line(dataset: Any, line: bytes, ordinal: int) -> Any:
        if b"poison" in line:
            raise RuntimeError("this row cannot be built")
        return real(dataset, line, ordinal)

    monkeypatch.setattr(segments, "decode_line", read_line)
    guilty = rows(1, start=7, content_text="poison")
    append(home, [*rows(7), *guilty, *rows(12, start=8)])
    append(home, rows(10, start=20))
    flush(home)
    assert parts(home) == sorted(f"message-{n}#0" for n in range(30) if n != 7)
    (kept,) = rejected(home)
    assert (kept["ordinal"], kept["reason"]) == (7, "RuntimeError: this row cannot be built")
    assert "poison" in kept["line"]
    assert waiting(home) == 0


@pytest.mark.hazard(93)
def test_segments_flushed_together_with_a_poisoned_one_are_not_blamed(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []
    real = LightLake.run

    def watched(self: LightLake, tasks: Any) -> Any:
        calls.append([each.segment for task in tasks for each in task.slices])
        results = real(self, tasks)
        return [
            build.BuildFailure("no") if any(b"poison" in each.path.read_bytes() for each in task.slices) else result
            for task, result in zip(tasks, results, strict=True)
        ]

    monkeypatch.setattr(LightLake, "run", watched)
    monkeypatch.setattr("hypaware.lake.flush._SLICE_BYTES", 1)
    append(home, rows(2))
    append(home, rows(1, start=2, content_text="poison"))
    flush(home)
    first_segment = calls[0][0]
    assert sum(first_segment in tasks for tasks in calls) == MAX_SHARED_ATTEMPTS + 1, (
        "twice together with the other segment, then without it"
    )
    assert first_segment not in calls[-1]
    assert len(rejected(home)) == 1


class _EngineDied(BaseException):
    """Stands for the death of the engine: no code handles it."""


@pytest.mark.hazard(93)
def test_a_row_that_takes_the_engine_down_is_rejected_after_some_deaths(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each death must bring the search closer to the row: otherwise its segment waits forever."""
    real = segments.decode_line

    def read_line(dataset: Any, line: bytes, ordinal: int) -> Any:
        if b"poison" in line:
            raise _EngineDied
        return real(dataset, line, ordinal)

    monkeypatch.setattr(segments, "decode_line", read_line)
    append(home, [*rows(7), *rows(1, start=7, content_text="poison"), *rows(12, start=8)])
    append(home, rows(10, start=20))
    deaths, others_at = 0, None
    while waiting(home):
        try:
            flush(home)
        except _EngineDied:
            deaths += 1
        if others_at is None and "message-25#0" in parts(home):
            others_at = deaths
        assert deaths <= 14, "the search makes no progress"
    assert others_at is not None
    assert others_at <= MAX_SHARED_ATTEMPTS + 2, "the other segment is not held up"
    assert parts(home) == sorted(f"message-{n}#0" for n in range(30) if n != 7)
    (kept,) = rejected(home)
    assert (kept["ordinal"], kept["reason"]) == (7, "the engine died 3 times while it built this row")
    assert "poison" in kept["line"]
    assert not list(home.spool.rglob("poison/*")), "nothing of the search is left"


@pytest.mark.hazard(93)
def test_a_kill_during_the_search_rejects_no_row(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user may kill the engine at any time; only a row that dies three times alone is to blame."""
    append(home, rows(4))
    for _ in range(6):
        with monkeypatch.context() as killed:
            killed.setattr(segments, "decode_line", _die)
            with pytest.raises(_EngineDied):
                flush(home)
    assert flush(home).rows.written == 4
    assert rejected(home) == []


def _die(*_: object) -> Any:
    raise _EngineDied


@pytest.mark.hazard(13)
def test_a_full_disk_during_a_build_loses_no_rows(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """No row is blamed or rejected, and all are committed when there is space again."""
    append(home, rows(10))
    with monkeypatch.context() as full:
        full.setattr(pq.ParquetWriter, "write_table", _no_space)
        for _ in range(MAX_SHARED_ATTEMPTS + 2):
            with pytest.raises(Retryable, match="No space left"):
                flush(home)
    assert (waiting(home), rejected(home)) == (10, [])
    flush(home)
    assert len(parts(home)) == 10


def _no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_an_error_after_the_commit_never_removes_a_committed_row(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush that is committed but not recorded is finished later, not undone."""
    append(home, rows(10))
    for step in ("fsync.durable_files.fsync_file", "record_flush", "remove_segments"):
        with monkeypatch.context() as failing:
            failing.setattr(f"hypaware.lake.commit.{step}", _no_space)
            with pytest.raises(Retryable, match=r"next flush records them|remain in the spool"):
                flush(home)
        flush(home)
        assert parts(home) == sorted(f"message-{n}#0" for n in range(10))
        append(home, rows(10))


def test_a_commit_that_succeeded_but_was_reported_failed_is_neither_undone_nor_repeated(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks after the commit: the rejects and the committed files are kept."""
    append(home, rows(10))
    folder = segments.spool_folder(home, DATASET)
    (folder.sealed / segments.sealed_file_name(segments.new_segment_name(), 1)).write_bytes(b'{"n":0,"v":1,"row":{}}\n')
    real = LightTable.commit

    def lands_and_fails(self: LightTable, *args: Any) -> None:
        real(self, *args)
        raise ConnectionRefusedError("the other side is gone")

    with monkeypatch.context() as failing:
        failing.setattr(LightTable, "commit", lands_and_fails)
        with pytest.raises(Retryable):
            flush(home)
    flush(home)
    assert parts(home) == sorted(f"message-{n}#0" for n in range(10))
    assert (len(rejected(home)), waiting(home)) == (1, 0)


@pytest.mark.hazard(82)
def test_an_unreadable_key_index_fails_the_flush_and_drops_nothing(home: Home) -> None:
    append(home, rows(5))
    flush(home)
    append(home, rows(5, start=5))
    home.keys.write_bytes(b"this is not a database, not at all" * 200)
    for suffix in ("-wal", "-shm"):
        home.keys.with_name(f"keys.db{suffix}").unlink(missing_ok=True)
    with pytest.raises(LakeError, match="no row was lost") as failed:
        flush(home)
    assert failed.value.repair == ("hyp verify --repair",)
    assert waiting(home) == 5
    key_index.remove_index(home.keys)
    assert flush(home).rows.written == 5


def test_a_key_index_of_another_table_is_rebuilt(home: Home) -> None:
    """An old index would drop rows that the lake no longer has."""
    append(home, rows(5))
    flush(home)
    with closing(KeyIndex(home.keys)) as index:
        index.add(DATASET, "another-table", 10**9, [(datasets.hash_key(DATASET, "message-7#0"), 99)])
    append(home, rows(10))
    report = flush(home)
    assert (report.rows.written, report.rows.duplicate) == (5, 5)


def test_a_key_index_that_is_behind_catches_up_from_the_lake(home: Home) -> None:
    append(home, rows(5))
    flush(home)
    old = home.keys.read_bytes()
    append(home, rows(5, start=5))
    flush(home)
    key_index.remove_index(home.keys)
    home.keys.write_bytes(old)
    append(home, rows(10))
    assert flush(home).rows.duplicate == 10


@pytest.mark.hazard(73)
def test_a_row_of_another_flush_in_the_same_range_is_not_mistaken_for_ours(home: Home) -> None:
    """A state restored from an older copy reserves a range that the lake has already used."""
    append(home, rows(10))
    flush(home)
    with closing(LightLake(home)) as lake:
        table = lake.table(datasets.get(DATASET))
        other_flush = flushes.Flush("another-flush", DATASET, 0, 10, ())
        assert table.find_flush(other_flush) == {}


@pytest.mark.hazard(73)
def test_a_state_restored_from_an_older_copy_reuses_no_sequence(home: Home) -> None:
    append(home, rows(10))
    flush(home)
    old = _copy_of_state(home)
    append(home, rows(10, start=10))
    flush(home)
    _restore_state(home, old)
    append(home, rows(10, start=20))
    flush(home)
    found = read_lake(home, DATASET)
    assert len({row[SEQ] for row in found}) == len(found) == 30
    with closing(open_home(home).store) as store, store.reading() as connection:
        assert flushes.load_high_water(connection)[DATASET]["claude"] == max(row[SEQ] for row in found)


@pytest.mark.hazard(74)
def test_the_floor_stays_after_all_rows_are_removed(home: Home) -> None:
    """Retention may empty the lake; even if the state is lost too, the floor has the highest sequence."""
    append(home, rows(10))
    flush(home)
    with closing(LightLake(home)) as lake:
        lake.catalog.load_table(("hypaware", DATASET)).delete()
    _lose_state(home, mirror_too=True)
    append(home, rows(5, start=10))
    flush(home)
    assert min(row[SEQ] for row in read_lake(home, DATASET)) > 10


@pytest.mark.hazard(15)
@pytest.mark.hazard(71)
@pytest.mark.parametrize("how", ["lost", "emptied", "garbled"])
def test_a_lost_or_damaged_state_is_rebuilt_above_every_used_sequence(home: Home, how: str) -> None:
    append(home, rows(10))
    flush(home)
    before = open_home(home)
    before.store.close()
    for suffix in ("-wal", "-shm"):
        home.state.with_name(f"state.db{suffix}").unlink(missing_ok=True)
    if how == "lost":
        home.state.unlink()
    else:
        home.state.write_bytes(b"" if how == "emptied" else b"garbage" * 5000)
    after = open_home(home)
    with closing(after.store), after.store.reading() as connection:
        assert flushes.next_sequence(connection) == 11
        assert flushes.load_high_water(connection) == {DATASET: {"claude": 10}}
    assert after.gateway_id == before.gateway_id
    assert after.identity.incarnation != before.identity.incarnation
    assert after.identity.parents == (before.identity.incarnation,)


@pytest.mark.hazard(72)
def test_a_commit_that_lost_files_in_a_power_cut_is_rolled_back(home: Home) -> None:
    """The catalog references truncated or missing files; the segments still contain the rows."""
    append(home, rows(5))
    flush(home)
    append(home, rows(5, start=5))
    sealed = {path: path.read_bytes() for path in segments.spool_folder(home, DATASET).sealed.iterdir()}
    with closing(open_home(home).store) as store, closing(LightLake(home)) as lake:
        _flush_up_to_commit(home, store, lake)
    assert sealed.keys() == set(segments.spool_folder(home, DATASET).sealed.iterdir())
    entry = metadata.find_table(home, DATASET)
    assert entry
    newest = metadata.read_metadata(entry.metadata).current
    assert newest
    newest.manifest_list.write_bytes(newest.manifest_list.read_bytes()[:100])
    flush(home)
    assert parts(home) == sorted(f"message-{n}#0" for n in range(10))


@pytest.mark.hazard(72)
@pytest.mark.parametrize("victim", ["metadata", "manifest_list", "data"])
def test_damage_to_a_recorded_commit_is_reported_and_never_rolled_back(home: Home, victim: str) -> None:
    """It was fsynced, so this is no power cut; a rollback would lose rows whose segments are removed."""
    append(home, rows(5))
    flush(home)
    append(home, rows(5, start=5))
    flush(home)
    entry = metadata.find_table(home, DATASET)
    assert entry
    known = metadata.read_metadata(entry.metadata)
    assert known.current
    newest = metadata.read_manifests(known.current)
    paths = {
        "metadata": entry.metadata,
        "manifest_list": known.current.manifest_list,
        "data": next(metadata.read_data_files(known, max(newest, key=lambda each: each.path.stat().st_mtime_ns))).path,
    }
    paths[victim].unlink()
    append(home, rows(5, start=10))
    with pytest.raises(LakeError, match="damaged"):
        flush(home)
    assert waiting(home) == 5


@pytest.mark.hazard(47)
def test_a_committed_flush_is_recognised_by_its_rows_after_its_snapshot_expired(home: Home) -> None:
    append(home, rows(5))
    with closing(open_home(home).store) as store, closing(LightLake(home)) as lake:
        _flush_up_to_commit(home, store, lake)
        table = lake.catalog.load_table(("hypaware", DATASET))
        with table.transaction() as transaction, transaction.update_snapshot().fast_append():
            pass
        table.refresh()
        table.maintenance.expire_snapshots().by_id(table.metadata.snapshots[0].snapshot_id).commit()
        table.refresh()
        known = [found.summary.additional_properties for found in table.metadata.snapshots if found.summary]
        assert len(known) == 1
        assert "hyp.flush-id" not in known[0]
    flush(home)
    assert parts(home) == sorted(f"message-{n}#0" for n in range(5))


def test_segments_in_the_lake_are_not_committed_again_after_the_state_was_lost(home: Home) -> None:
    """This includes rows without a key, which the index cannot deduplicate."""
    append(home, rows(5))
    sealed = next(segments.spool_folder(home, DATASET).sealed.iterdir())
    held = sealed.read_bytes()
    flush(home)
    sealed.write_bytes(held)
    _lose_state(home)
    report = flush(home)
    assert report.segments == 0
    assert not sealed.exists()


def test_the_summary_of_a_lake_is_read_without_spark(home: Home) -> None:
    append(home, rows(4))
    append(home, rows(4, start=4, client_name="codex"))
    flush(home)
    facts = recovery.summarize_lake(home)
    assert facts.floor == 8
    table = facts.tables[DATASET]
    found = {(file.source, file.rows, file.max_seq) for file in metadata.iter_live_files(table)}
    assert found == {("claude", 4, 4), ("codex", 4, 8)}


@pytest.mark.hazard(17)
def test_a_lake_that_lacks_recorded_rows_raises_an_error(home: Home) -> None:
    append(home, rows(5))
    flush(home)
    append(home, rows(5, start=5))
    flush(home)
    with closing(sqlite3.connect(home.catalog)) as catalog, catalog:
        catalog.execute("UPDATE iceberg_tables SET metadata_location = previous_metadata_location")
    append(home, rows(5, start=10))
    with pytest.raises(LakeError, match="rolled back"):
        flush(home)
    assert waiting(home) == 5


@pytest.mark.hazard(72)
def test_a_commit_that_was_never_fsynced_is_fsynced_before_the_next_one(home: Home, tmp_path: Path) -> None:
    """Killed before the fsync, state lost, then another commit and a power cut: only the newest commit is checked."""
    disk = ShadowDisk(tmp_path / "shadow")
    with disk.watching():
        append(home, rows(5))
        assert not run_in_child(lambda: (flush(home), None)[1], crash_at="iceberg.fsync.before-fsync:3")
        _lose_state(home, mirror_too=True)
        append(home, rows(5, start=5))
        flush(home)
    disk.power_cut(home.root, lambda: False)
    assert parts(home) == sorted(f"message-{n}#0" for n in range(10))


@pytest.mark.hazard(72)
def test_a_table_whose_creation_was_lost_in_a_power_cut_is_removed_from_the_catalog(home: Home, tmp_path: Path) -> None:
    disk = ShadowDisk(tmp_path / "shadow")
    with disk.watching():
        append(home, rows(5))
        assert not run_in_child(lambda: (flush(home), None)[1], crash_at="iceberg.fsync.before-fsync")
        assert not run_in_child(lambda: (flush(home), None)[1], crash_at="iceberg.fsync.before-fsync")
        disk.power_cut(home.root, lambda: False)
        flush(home)
    assert len(parts(home)) == 5


@pytest.mark.hazard(72)
@pytest.mark.parametrize("victim", ["metadata", "data"])
def test_a_damaged_commit_and_a_lost_state_together_lose_no_rows(home: Home, victim: str) -> None:
    """The rebuilt state must not trust a commit that is about to be rolled back."""
    append(home, rows(5))
    flush(home)
    append(home, rows(5, start=5))
    with closing(open_home(home).store) as store, closing(LightLake(home)) as lake:
        _flush_up_to_commit(home, store, lake)
    entry = metadata.find_table(home, DATASET)
    assert entry
    known = metadata.read_metadata(entry.metadata)
    newest = max(metadata.iter_live_files(known), key=lambda file: file.max_seq or 0).path
    _lose_state(home)
    (entry.metadata if victim == "metadata" else newest).unlink()
    flush(home)
    assert parts(home) == sorted(f"message-{n}#0" for n in range(10))


@pytest.mark.hazard(72)
def test_a_table_with_an_intact_commit_is_never_removed_from_the_catalog(home: Home) -> None:
    """State and mirror are lost, the two newest metadata files are damaged, and an older one has rows."""
    for start in range(0, 20, 5):
        append(home, rows(5, start=start))
        flush(home)
    entry = metadata.find_table(home, DATASET)
    assert entry
    assert entry.previous
    for path in (entry.metadata, entry.previous):
        path.write_bytes(b"")
    _lose_state(home, mirror_too=True)
    append(home, rows(1, start=20))
    with pytest.raises(LakeError, match="is damaged"):
        flush(home)
    assert waiting(home) == 1


@pytest.mark.hazard(17)
def test_a_catalog_without_a_recorded_table_raises_an_error_and_creates_no_table(home: Home) -> None:
    append(home, rows(5))
    flush(home)
    with closing(sqlite3.connect(home.catalog)) as catalog, catalog:
        catalog.execute("DELETE FROM iceberg_tables")
    append(home, rows(5, start=5))
    with pytest.raises(LakeError, match="has no such table"):
        flush(home)
    assert metadata.list_tables(home) == []


def test_a_flush_ends_while_producers_keep_writing(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """It commits the rows that were in the spool when it began."""
    append(home, rows(5))
    more = iter(range(5, 1000, 5))
    real = LightLake.run

    def build_while_others_append(self: LightLake, tasks: Any) -> Any:
        append(home, rows(5, start=next(more)))
        return real(self, tasks)

    monkeypatch.setattr(LightLake, "run", build_while_others_append)
    report = flush(home)
    assert (report.segments, waiting(home)) == (1, 5)


@pytest.mark.hazard(93)
def test_an_unreadable_segment_blocks_only_itself(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    append(home, rows(5))
    bad = next(segments.spool_folder(home, DATASET).sealed.iterdir())
    append(home, rows(5, start=5))
    real = open

    def fails(path: Any, *args: Any, **kwargs: Any) -> Any:
        if path == bad:
            raise OSError(errno.EIO, "Input/output error")
        return real(path, *args, **kwargs)

    monkeypatch.setattr("hypaware.home.storage.open", fails, raising=False)
    with pytest.raises(Retryable, match="Input/output error"):
        flush(home)
    assert parts(home) == sorted(f"message-{n}#0" for n in range(5, 10))
    assert (rejected(home), bad.exists()) == ([], True)
    monkeypatch.undo()
    flush(home)
    assert len(parts(home)) == 10


def test_a_segment_with_a_wrong_row_count_in_its_name_loses_no_rows(home: Home) -> None:
    append(home, rows(5))
    sealed = next(segments.spool_folder(home, DATASET).sealed.iterdir())
    sealed.rename(sealed.with_name(sealed.name.replace(".5.", ".3.")))
    append(home, rows(5, start=5))
    short = max(segments.spool_folder(home, DATASET).sealed.iterdir())
    short.rename(short.with_name(short.name.replace(".5.", ".9.")))
    flush(home)
    assert len(parts(home)) == 10
    assert sorted(row[SEQ] for row in read_lake(home, DATASET)) == list(range(1, 11))


def _flush_up_to_commit(home: Home, store: Any, lake: LightLake) -> None:
    """Leave a flush whose process died right after its commit."""
    from hypaware.lake.flush import Flusher

    class Died(BaseException):
        pass

    def die(*_: object) -> None:
        raise Died

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hypaware.lake.commit._after_commit", die)
        with pytest.raises(Died):
            Flusher(home, store, lake).flush(datasets.get(DATASET), wait=0)


def _lose_state(home: Home, mirror_too: bool = False) -> None:
    for name in ("state.db", "state.db-wal", "state.db-shm", *(["state.mirror.json"] if mirror_too else [])):
        (home.root / name).unlink(missing_ok=True)


def _copy_of_state(home: Home) -> dict[Path, bytes]:
    with closing(sqlite3.connect(home.state)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return {path: path.read_bytes() for path in (home.state, home.mirror)}


def _restore_state(home: Home, copy: dict[Path, bytes]) -> None:
    for suffix in ("-wal", "-shm"):
        home.state.with_name(f"state.db{suffix}").unlink(missing_ok=True)
    for path, held in copy.items():
        path.write_bytes(held)


def test_an_unknown_dataset_suggests_the_nearest_name() -> None:
    with pytest.raises(HypError, match="Did you mean ai_gateway_messages"):
        datasets.get("ai_gateway_mesages")
