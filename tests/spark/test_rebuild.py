"""Rebuilding a real table: intact, damaged in several ways, and killed."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hypaware import faults
from hypaware.config import Config, SinkConfig
from hypaware.engine.session import EngineSession
from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.iceberg.metadata import TableMetadata, table_folders
from hypaware.lake import schema
from hypaware.lake.flush import Flusher, FlushReport
from hypaware.lake.spark_table import SparkLake
from hypaware.maintain import rebuild
from hypaware.maintain.context import MaintenanceContext
from hypaware.maintain.context import MaintenanceReport as Kept
from hypaware.maintain.rebuild import NEXT_NAMESPACE
from hypaware.model import datasets
from hypaware.model.datasets import ROW_ID, SEQ, SOURCE, Dataset
from hypaware.state import flushes, streams
from hypaware.state.home_opener import OpenHome, open_home
from hypaware.state.streams import StreamKey
from tests.support.light_home import append
from tests.support.light_lake import read_lake
from tests.support.rows import rows

pytestmark = pytest.mark.spark
DATASET = "ai_gateway_messages"


@pytest.fixture
def opened(engine_home: Home) -> Iterator[OpenHome]:
    found = open_home(engine_home)
    with closing(found.store):
        yield found


@pytest.fixture
def dataset(engine_session: EngineSession, opened: OpenHome) -> Iterator[Dataset]:
    """A new table with three commits of two rows each."""

    def forget() -> None:
        with opened.store.transaction() as connection:
            flushes.lower_high_water(connection, DATASET, 0)
        with closing(sqlite3.connect(opened.home.catalog, isolation_level=None)) as catalog:
            catalog.execute("CREATE TABLE IF NOT EXISTS iceberg_tables (table_name TEXT)")
            catalog.execute("DELETE FROM iceberg_tables WHERE table_name = ?", (DATASET,))
        for folder in table_folders(opened.home, DATASET):
            shutil.rmtree(folder)
        shutil.rmtree(opened.home.lake / "set-aside", ignore_errors=True)

    engine_session.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {metadata.CATALOG}.{metadata.NAMESPACE}")
    forget()
    for number in range(3):
        append(opened.home, rows(2, start=2 * number))
        flush(engine_session, opened)
    yield datasets.get(DATASET)
    forget()


def flush(session: EngineSession, opened: OpenHome) -> FlushReport:
    lake = SparkLake(opened.home, session.spark, opened.identity, lambda: None)
    return Flusher(opened.home, opened.store, lake).flush(datasets.get(DATASET), wait=0)


def rebuild_table(session: EngineSession, opened: OpenHome, **how: Any) -> Kept:
    lake = SparkLake(opened.home, session.spark, opened.identity, lambda: None)
    report, config = Kept(DATASET), how.pop("config", Config())
    rebuild.rebuild_dataset(
        MaintenanceContext(opened.home, config, opened.store, lake, datasets.get(DATASET), datetime.now(UTC), **how),
        report,
    )
    return report


def live(opened: OpenHome) -> list[Path]:
    entry = metadata.find_table(opened.home, DATASET)
    assert entry
    return [file.path for file in metadata.iter_live_files(metadata.read_metadata(entry.metadata))]


def by_seq(opened: OpenHome) -> list[dict[str, Any]]:
    return sorted(read_lake(opened.home, DATASET), key=lambda row: row[SEQ])


def properties(opened: OpenHome) -> dict[str, str]:
    entry = metadata.find_table(opened.home, DATASET)
    assert entry
    return {
        key: value for key, value in metadata.read_metadata(entry.metadata).properties.items() if key.startswith("hyp.")
    }


def test_an_intact_table_is_the_same_after_a_rebuild(
    engine_session: EngineSession, opened: OpenHome, dataset: Dataset
) -> None:
    before, properties_before, old = by_seq(opened), properties(opened), live(opened)
    assert rebuild_table(engine_session, opened, dry_run=True).reasons
    assert live(opened) == old
    report = rebuild_table(engine_session, opened)
    assert by_seq(opened) == before
    assert properties(opened).items() >= properties_before.items(), "floor, gateway and incarnation are kept"
    assert not report.errors
    assert not set(live(opened)) & set(old)
    assert metadata.find_table(opened.home, DATASET, NEXT_NAMESPACE) is None
    append(opened.home, [*rows(2, start=0), *rows(1, start=6)])
    flushed = flush(engine_session, opened)
    assert (flushed.rows.written, flushed.rows.duplicate) == (1, 2), "the key index was filled from the new generation"
    assert by_seq(opened)[-1][SEQ] > before[-1][SEQ]
    found = engine_session.spark.sql(f"SELECT count(*), max({SEQ}) FROM {schema.full_table_name(DATASET)}").collect()[0]
    assert tuple(found) == (7, by_seq(opened)[-1][SEQ])


@pytest.mark.parametrize("how", ["cut", "missing", "garbled"])
def test_an_unreadable_file_is_set_aside_and_other_rows_are_kept(
    engine_session: EngineSession, opened: OpenHome, dataset: Dataset, how: str
) -> None:
    before = by_seq(opened)
    damaged_file = live(opened)[1]
    lost = [row for row in before if row["_hyp_cache_batch_id"] == damaged_file.name[:36]]
    data = damaged_file.read_bytes()
    if how == "cut":
        damaged_file.write_bytes(data[:-100])
    elif how == "missing":
        damaged_file.unlink()
    else:
        damaged_file.write_bytes(data[:100] + b"\xff" * 600 + data[700:])
    report = rebuild_table(engine_session, opened)
    assert by_seq(opened) == [row for row in before if row not in lost]
    assert report.errors
    assert [damaged_file.name in entry for entry in report.set_aside] == [True]
    set_aside = list((opened.home.lake / "set-aside").rglob(damaged_file.name))
    assert len(set_aside) == (0 if how == "missing" else 1)
    # The lost rows may be imported again, under their sequences, so that no sink receives them again.
    append(opened.home, rows(6))
    assert flush(engine_session, opened).rows.written == len(lost)
    assert [(row[SEQ], row["part_id"]) for row in by_seq(opened)] == [(row[SEQ], row["part_id"]) for row in before]
    append(opened.home, rows(6))
    assert flush(engine_session, opened).rows.duplicate == 6


def test_lost_rows_that_a_sink_has_not_received_come_back_as_new_rows(
    engine_session: EngineSession, opened: OpenHome, dataset: Dataset
) -> None:
    before = by_seq(opened)
    undelivered = next(path for path in live(opened) if path.name.startswith(before[-1]["_hyp_cache_batch_id"]))
    undelivered.unlink()
    sink, key = SinkConfig("blob", "* * * * *", (DATASET,), {}), StreamKey("shelf", DATASET, "claude")
    with opened.store.transaction() as connection:
        streams.create_stream(connection, key, "blob:/a/folder")
        streams.raise_watermark(connection, key, before[1][SEQ])
    rebuild_table(engine_session, opened, config=Config(sinks={"shelf": sink}))
    append(opened.home, rows(6))
    assert flush(engine_session, opened).rows.written == 2
    assert [row[SEQ] > before[-1][SEQ] for row in by_seq(opened)] == [False] * 4 + [True] * 2


@pytest.mark.parametrize("damaged", ["metadata", "manifest", "catalog"])
def test_rows_are_read_from_disk_if_the_metadata_is_lost(
    engine_session: EngineSession, opened: OpenHome, dataset: Dataset, damaged: str
) -> None:
    before = by_seq(opened)
    entry = metadata.find_table(opened.home, DATASET)
    assert entry
    table_metadata = metadata.read_metadata(entry.metadata)
    if damaged == "metadata":
        entry.metadata.write_bytes(b"{")
    elif damaged == "manifest":
        assert table_metadata.current
        metadata.read_manifests(table_metadata.current)[0].path.write_bytes(b"Obj")
    else:
        with closing(sqlite3.connect(opened.home.catalog, isolation_level=None)) as catalog:
            catalog.execute("DELETE FROM iceberg_tables WHERE table_name = ?", (DATASET,))
    append(opened.home, rows(1, start=6))
    with pytest.raises(LakeError):
        flush(engine_session, opened)
    report = rebuild_table(engine_session, opened)
    assert by_seq(opened) == before
    assert "from the files on disk" in report.as_json()["reason"]
    assert flush(engine_session, opened).rows.written == 1, "rows in the spool are committed"
    assert by_seq(opened)[-1][SEQ] > before[-1][SEQ]


def test_rows_of_an_unfinished_flush_are_not_added_twice(
    engine_session: EngineSession, opened: OpenHome, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are still in the spool: read from disk as well, they would be in the lake twice."""
    append(opened.home, rows(2, start=6))
    _stop_at(monkeypatch, "lake.commit.before-commit")
    with pytest.raises(_Stopped):
        flush(engine_session, opened)
    monkeypatch.undo()
    entry = metadata.find_table(opened.home, DATASET)
    assert entry
    entry.metadata.write_bytes(b"{")
    rebuild_table(engine_session, opened)
    assert len(by_seq(opened)) == 6
    assert flush(engine_session, opened).rows.written == 2
    assert len({row["part_id"] for row in by_seq(opened)}) == len(by_seq(opened)) == 8


@pytest.mark.parametrize("point", ["after-write", "after-fill", "before-swap", "after-swap"])
def test_a_stopped_rebuild_leaves_the_old_table_or_the_new_one(
    engine_session: EngineSession, opened: OpenHome, dataset: Dataset, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = by_seq(opened)
    _stop_at(monkeypatch, f"maintain.rebuild.{point}")
    with pytest.raises(_Stopped):
        rebuild_table(engine_session, opened)
    monkeypatch.undo()
    assert by_seq(opened) == before
    append(opened.home, rows(1, start=6))
    flush(engine_session, opened)
    rebuild_table(engine_session, opened)
    assert [row[SEQ] for row in by_seq(opened)][:6] == [row[SEQ] for row in before]
    assert len(by_seq(opened)) == 7
    assert metadata.find_table(opened.home, DATASET, NEXT_NAMESPACE) is None


def add_rows_without_sequence(session: EngineSession, opened: OpenHome, count: int, first_line: int = 0) -> None:
    """Copy rows under new keys and without internal columns, as another Iceberg program may write them."""
    table = schema.full_table_name(DATASET)
    public = [column.name for column in datasets.get(DATASET).columns]
    chosen = ", ".join(f"concat({name}, '-copy-{first_line}')" if name == "part_id" else name for name in public)
    session.spark.sql(
        f"INSERT INTO {table} ({', '.join(public)}) SELECT {chosen} FROM {table} ORDER BY part_id LIMIT {count}"
    )


@pytest.mark.hazard(98)
def test_rows_without_a_sequence_get_one_and_are_not_lost(
    engine_session: EngineSession, opened: OpenHome, dataset: Dataset
) -> None:
    before, floor = by_seq(opened), int(properties(opened)[metadata.FLOOR_PROPERTY])
    add_rows_without_sequence(engine_session, opened, 3)
    report = rebuild_table(engine_session, opened)
    after = by_seq(opened)
    assert after[:6] == before, "numbered rows are unchanged"
    assert [row[SEQ] for row in after[6:]] == [floor + 1, floor + 2, floor + 3]
    assert all(row[ROW_ID] and row[SOURCE] for row in after), "the missing internal columns are filled in"
    assert "gave 3 rows without a sequence a new one" in report.as_json()["reason"]
    with opened.store.reading() as connection:
        assert flushes.highest_recorded_sequence(connection, DATASET) == floor + 3, "deliveries find the rows"
        assert not flushes.unfinished_flushes(connection)
        assert flushes.next_sequence(connection) > floor + 3
    append(opened.home, rows(1, start=6))
    flush(engine_session, opened)
    assert by_seq(opened)[-1][SEQ] > floor + 3


@pytest.mark.hazard(98)
@pytest.mark.parametrize("point", ["number.after-reserve", "rebuild.after-fill", "rebuild.after-swap"])
def test_rows_are_numbered_once_if_the_rebuild_is_killed(
    engine_session: EngineSession, opened: OpenHome, dataset: Dataset, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_rows_without_sequence(engine_session, opened, 2)
    _stop_at(monkeypatch, f"maintain.{point}")
    with pytest.raises(_Stopped):
        rebuild_table(engine_session, opened)
    monkeypatch.undo()
    append(opened.home, rows(1, start=6))
    flush(engine_session, opened)
    rebuild_table(engine_session, opened)
    found = by_seq(opened)
    assert len({row["part_id"] for row in found}) == len(found) == 9
    assert len({row[SEQ] for row in found}) == 9
    with opened.store.reading() as connection:
        high_water = flushes.load_high_water(connection, DATASET)[DATASET]
        assert not flushes.unfinished_flushes(connection)
    for source in {row[SOURCE] for row in found}:
        assert high_water[source] == max(row[SEQ] for row in found if row[SOURCE] == source)


@pytest.mark.hazard(98)
def test_rows_of_an_earlier_generation_are_not_numbered_again(
    engine_session: EngineSession, opened: OpenHome, dataset: Dataset
) -> None:
    """The directory of the previous generation still has the rows without a sequence when the metadata is lost."""
    add_rows_without_sequence(engine_session, opened, 2)
    rebuild_table(engine_session, opened)
    before = by_seq(opened)
    entry = metadata.find_table(opened.home, DATASET)
    assert entry
    entry.metadata.write_bytes(b"{")
    rebuild_table(engine_session, opened)
    assert by_seq(opened) == before


@pytest.mark.hazard(99)
def test_rows_that_another_program_deleted_stay_deleted(
    engine_session: EngineSession, opened: OpenHome, dataset: Dataset
) -> None:
    add_rows_without_sequence(engine_session, opened, 2)
    before = by_seq_or_last(opened)
    _delete_by_position(engine_session, "part_id IN ({}, {})".format(*(repr(before[at]["part_id"]) for at in (1, -1))))
    assert metadata.has_delete_files(_table(opened))
    report = rebuild_table(engine_session, opened)
    assert [row["part_id"] for row in by_seq(opened)] == [row["part_id"] for row in (before[0], *before[2:-1])]
    assert "left out 2 rows that another program had deleted" in report.as_json()["reason"]
    assert not metadata.has_delete_files(_table(opened))


@pytest.mark.hazard(99)
def test_a_rebuild_without_metadata_is_refused_if_another_program_deleted_rows(
    engine_session: EngineSession, opened: OpenHome, dataset: Dataset
) -> None:
    part_id = by_seq(opened)[0]["part_id"]
    _delete_by_position(engine_session, f"part_id = '{part_id}'")
    _table(opened).path.write_bytes(b"{")
    with pytest.raises(LakeError, match="unknown which rows another program has deleted"):
        rebuild_table(engine_session, opened)


@pytest.mark.hazard(99)
def test_deletes_by_value_are_refused_with_words(
    engine_session: EngineSession, opened: OpenHome, dataset: Dataset, tmp_path: Path
) -> None:
    before = by_seq(opened)
    lake = SparkLake(opened.home, engine_session.spark, opened.identity, lambda: None)
    iceberg = lake.table(dataset).iceberg
    part_id = iceberg.schema().findField("part_id").fieldId()
    field = pa.field("part_id", pa.string(), metadata={"PARQUET:field_id": str(part_id)})
    path = tmp_path / "by-value.parquet"
    pq.write_table(pa.table([[before[0]["part_id"]]], schema=pa.schema([field])), path)
    jvm: Any = engine_session.spark._jvm
    scan = iceberg.newScan().planFiles().iterator()
    first = scan.next().file()
    scan.close()
    ids = engine_session.spark.sparkContext._gateway.new_array(jvm.int, 1)
    ids[0] = part_id
    builder = jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(iceberg.spec()).ofEqualityDeletes(ids)
    builder = builder.withPath(str(path)).withFormat("parquet").withPartition(first.partition()).withRecordCount(1)
    iceberg.newRowDelta().addDeletes(builder.withFileSizeInBytes(path.stat().st_size).build()).commit()
    with pytest.raises(LakeError, match="equality deletes"):
        rebuild_table(engine_session, opened)
    assert metadata.find_table(opened.home, DATASET, NEXT_NAMESPACE) is None


@pytest.mark.hazard(98)
def test_a_table_that_would_lose_a_row_is_not_swapped_in(
    engine_session: EngineSession, opened: OpenHome, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = by_seq(opened)
    rewrite_files = rebuild._rewrite_files

    def lose_a_file(*arguments: Any) -> Any:
        results, unreadable = rewrite_files(*arguments)
        return results[1:], unreadable

    monkeypatch.setattr(rebuild, "_rewrite_files", lose_a_file)
    with pytest.raises(LakeError, match="the old table stays in place"):
        rebuild_table(engine_session, opened)
    assert by_seq(opened) == before


def by_seq_or_last(opened: OpenHome) -> list[dict[str, Any]]:
    return sorted(read_lake(opened.home, DATASET), key=lambda row: (row[SEQ] is None, row[SEQ], row["part_id"]))


def _table(opened: OpenHome) -> TableMetadata:
    entry = metadata.find_table(opened.home, DATASET)
    assert entry
    return metadata.read_metadata(entry.metadata)


def _delete_by_position(session: EngineSession, where: str) -> None:
    """Delete rows as another program does that writes delete files instead of rewriting data files."""
    table = schema.full_table_name(DATASET)
    session.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    # A range of one row group would be deleted as a whole file.
    session.spark.sql(f"DELETE FROM {table} WHERE {where}")


class _Stopped(BaseException):
    """Stands for a kill: no code handles it."""


def _stop_at(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def die(reached: str) -> None:
        if reached == name:
            raise _Stopped

    monkeypatch.setattr(faults, "_reach", die)
