"""The lake on Spark and Iceberg: table creation, schema evolution, reads, bounded metadata, dying workers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hypaware.engine.session import EngineSession
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.lake import build, read, schema
from hypaware.lake.build import BuildFailure, BuildResult, BuildSettings, SegmentTask
from hypaware.lake.flush import Flusher, FlushReport
from hypaware.lake.spark_table import SparkLake
from hypaware.model import datasets
from hypaware.model.columns import Column, ColumnType
from hypaware.model.datasets import SEQ, Dataset
from hypaware.state import flushes
from hypaware.state.home_opener import OpenHome, open_home
from tests.support.commit_clock import date_last_commit
from tests.support.light_home import append
from tests.support.light_lake import read_lake
from tests.support.rows import rows

pytestmark = pytest.mark.spark
DATASET = "ai_gateway_messages"


@pytest.fixture
def dataset(engine_session: EngineSession, opened: OpenHome) -> Iterator[Dataset]:
    """Give the messages dataset a fresh table, without any trace of an earlier one."""
    with opened.store.transaction() as connection:
        flushes.lower_high_water(connection, DATASET, 0)
    engine_session.spark.sql(f"DROP TABLE IF EXISTS {schema.full_table_name(DATASET)} PURGE")
    yield datasets.get(DATASET)
    engine_session.spark.sql(f"DROP TABLE IF EXISTS {schema.full_table_name(DATASET)} PURGE")


@pytest.fixture
def opened(engine_home: Home) -> Iterator[OpenHome]:
    found = open_home(engine_home)
    with closing(found.store):
        yield found


def flush(session: EngineSession, opened: OpenHome, dataset: Dataset) -> FlushReport:
    lake = SparkLake(opened.home, session.spark, opened.identity, lambda: None)
    return Flusher(opened.home, opened.store, lake).flush(dataset, wait=0)


def by_sequence_and_id(page: pa.Table) -> list[dict[str, Any]]:
    """Sort the rows of a page: those without a sequence have no order."""
    return sorted(page.to_pylist(), key=lambda row: (row[SEQ] or 0, row["part_id"]))


def test_a_new_table_has_the_designed_schema_and_properties(
    engine_session: EngineSession, opened: OpenHome, dataset: Dataset
) -> None:
    append(opened.home, rows(2))
    flush(engine_session, opened, dataset)
    entry = metadata.find_table(opened.home, DATASET)
    assert entry
    known = metadata.read_metadata(entry.metadata)
    assert next(iter(known.fields)) == SEQ
    assert len(known.fields) == 60
    assert known.properties["write.metadata.delete-after-commit.enabled"] == "true"
    assert known.properties[metadata.GATEWAY_ID_PROPERTY] == opened.gateway_id
    spec = engine_session.spark.sql(f"DESCRIBE {schema.full_table_name(DATASET)}").collect()
    assert {row[0] for row in spec} >= {"Part 0", "Part 1"} or any("days(" in str(row[1]) for row in spec)


def test_new_columns_of_a_dataset_are_added_and_are_null_in_old_rows(
    engine_session: EngineSession, opened: OpenHome, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(opened.home, rows(2))
    flush(engine_session, opened, dataset)
    kept = tuple(replace(column, required=False) if column.name == "role" else column for column in dataset.columns)
    grown = replace(dataset, columns=(*kept, Column("mood", ColumnType.STRING, "How it went.")))
    lake = SparkLake(opened.home, engine_session.spark, opened.identity, lambda: None)
    table = lake.table(grown)
    assert "mood" in table.field_ids
    assert table.metadata.fields["role"].required is False
    found = engine_session.spark.sql(f"SELECT mood, role FROM {schema.full_table_name(DATASET)}").collect()
    assert [row.asDict() for row in found] == [{"mood": None, "role": "assistant"}] * 2
    with pytest.raises(Exception, match="the type of a column cannot change"):
        lake.table(replace(dataset, columns=(*kept, Column("mood", ColumnType.INT, "Now a number."))))


def test_reads_after_a_sequence_are_ordered_paged_and_pruned(
    engine_session: EngineSession, opened: OpenHome, dataset: Dataset
) -> None:
    for start in (0, 10, 20):
        append(opened.home, rows(10, start=start))
        flush(engine_session, opened, dataset)
    highest = max(row[SEQ] for row in read_lake(opened.home, DATASET))
    found = read.read_rows(engine_session.spark, read.ReadRange(DATASET, "claude", highest - 15, highest - 5))
    assert found.column(SEQ).to_pylist() == list(range(highest - 14, highest - 4))
    assert found.column_names == [SEQ, *(column.name for column in dataset.columns)]
    assert read.read_rows(engine_session.spark, read.ReadRange(DATASET, "codex", 0)).num_rows == 0


@pytest.mark.hazard(103)
def test_commits_continue_after_one_under_a_clock_that_was_ahead(
    engine_session: EngineSession, opened: OpenHome, dataset: Dataset
) -> None:
    """Iceberg refuses a commit that is dated before the last one."""
    append(opened.home, rows(2))
    flush(engine_session, opened, dataset)
    date_last_commit(opened.home, DATASET, datetime.now(UTC) + timedelta(hours=5))
    append(opened.home, rows(2, start=2))
    assert flush(engine_session, opened, dataset).rows.written == 2
    entry = metadata.find_table(opened.home, DATASET)
    assert entry
    times = [snapshot.at for snapshot in metadata.read_metadata(entry.metadata).snapshots]
    assert times == sorted(times)
    assert times[-1] <= time.time()
    append(opened.home, rows(1, start=4))
    assert flush(engine_session, opened, dataset).rows.written == 1
    assert len(read_lake(opened.home, DATASET)) == 5


@pytest.mark.hazard(23)
def test_rows_without_a_sequence_are_read_only_on_request(
    engine_session: EngineSession, opened: OpenHome, dataset: Dataset
) -> None:
    """Rows of an adopted table have no sequence; read in every round, they would be delivered in every round."""
    append(opened.home, rows(3))
    flush(engine_session, opened, dataset)
    name = schema.full_table_name(DATASET)
    engine_session.spark.table(name).selectExpr(
        f"CAST(NULL AS BIGINT) AS {SEQ}",
        *(f"`{found}`" for found in engine_session.spark.table(name).columns if found != SEQ),
    ).writeTo(name).append()
    plain = read.read_rows(engine_session.spark, read.ReadRange(DATASET, "claude"))
    legacy = read.read_rows(engine_session.spark, read.ReadRange(DATASET, "claude", include_legacy=True))
    assert plain.column(SEQ).null_count == 0
    assert (legacy.num_rows, legacy.column(SEQ).to_pylist()[:3]) == (6, [None] * 3)
    entry = metadata.find_table(opened.home, DATASET)
    assert entry
    known = metadata.read_metadata(entry.metadata)
    files = list(metadata.iter_live_files(known))
    assert read.read_files(DATASET, files, 0, known.floor).rows.to_pylist() == plain.to_pylist()
    without_spark = read.read_files(DATASET, files, 0, known.floor, include_legacy=True).rows
    assert without_spark.schema.names == legacy.schema.names
    assert by_sequence_and_id(without_spark) == by_sequence_and_id(legacy)
    assert without_spark.column(SEQ).to_pylist() == legacy.column(SEQ).to_pylist()


@pytest.mark.hazard(25)
@pytest.mark.hazard(61)
def test_sources_are_exact_strings_even_unusual_ones(
    engine_session: EngineSession, opened: OpenHome, dataset: Dataset
) -> None:
    """Two sources with the same key would share a watermark."""
    strange = ["a b", "a_b", "a/b", "../../etc", "a%20b", "ü☃", "x" * 400, "_hyp_source=claude", " "]
    for place, source in enumerate(strange):
        append(opened.home, rows(1, start=place, client_name=source))
    flush(engine_session, opened, dataset)
    found = read_lake(opened.home, DATASET)
    assert sorted(row["_hyp_source"] for row in found) == sorted(strange)
    for source in strange:
        assert read.read_rows(engine_session.spark, read.ReadRange(DATASET, source)).num_rows == 1
    data = opened.home.warehouse / "hypaware" / DATASET / "data"
    entry = metadata.find_table(opened.home, DATASET)
    assert entry
    assert all(
        file.path.resolve().is_relative_to(data)
        for file in metadata.iter_live_files(metadata.read_metadata(entry.metadata))
    )


@pytest.mark.hazard(60)
def test_the_first_and_the_last_year_are_stored_correctly(
    engine_session: EngineSession, opened: OpenHome, dataset: Dataset
) -> None:
    for place, moment in enumerate(("0001-01-01T00:00:00Z", "1582-10-10T00:00:00Z", "9999-12-31T23:59:59.999999Z")):
        append(opened.home, rows(1, start=place, message_created_at=moment))
    flush(engine_session, opened, dataset)
    name = schema.full_table_name(DATASET)
    found = engine_session.spark.sql(
        f"SELECT date, date_format(message_created_at, 'yyyy-MM-dd') FROM {name}"
    ).collect()
    assert sorted((row[0], row[1]) for row in found) == [
        ("0001-01-01", "0001-01-01"),
        ("1582-10-10", "1582-10-10"),
        ("9999-12-31", "9999-12-31"),
    ]


@pytest.mark.hazard(93)
def test_a_worker_that_dies_fails_the_build_and_not_the_engine(
    engine_session: EngineSession, opened: OpenHome, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lake = SparkLake(opened.home, engine_session.spark, opened.identity, lambda: None)
    task = SegmentTask(BuildSettings(DATASET, "some-flush", tmp_path, {}), ())
    with monkeypatch.context() as patch:
        patch.setattr(build, "run_catching", _die)
        (failed,) = lake.run([task])
    assert isinstance(failed, BuildFailure)
    assert not failed.is_environmental
    assert engine_session.spark.range(3).count() == 3


@pytest.mark.hazard(93)
def test_if_no_worker_can_start_the_environment_is_blamed_and_not_the_rows(
    engine_session: EngineSession, opened: OpenHome, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If the rows were blamed, all of them would become rejects."""
    lake = SparkLake(opened.home, engine_session.spark, opened.identity, lambda: None)
    monkeypatch.setattr(build, "run_catching", _die)
    monkeypatch.setattr(build, "confirm_worker", _die)
    (failed,) = lake.run([SegmentTask(BuildSettings(DATASET, "some-flush", tmp_path, {}), ())])
    assert isinstance(failed, BuildFailure)
    assert failed.is_environmental


def _die(_task: Any) -> BuildResult:
    os._exit(9)
