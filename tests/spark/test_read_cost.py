"""The cost of reading the newest rows, measured by the rows that Spark's scans return."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from hypaware.engine.session import EngineSession
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.iceberg.metadata import DataFile
from hypaware.lake import parquet, read, schema
from hypaware.lake.flush import Flusher
from hypaware.lake.spark_table import SparkLake
from hypaware.model.datasets import SEQ
from hypaware.state import flushes
from hypaware.state.home_opener import OpenHome, open_home
from tests.support.light_home import append
from tests.support.processes import PATIENCE
from tests.support.rows import DATASET, MESSAGES, rows

pytestmark = pytest.mark.spark


@pytest.fixture
def opened(engine_session: EngineSession, engine_home: Home) -> Iterator[OpenHome]:
    """Return a home with an empty lake, without any trace of earlier rows."""
    found = open_home(engine_home)
    with closing(found.store):
        with found.store.transaction() as connection:
            flushes.lower_high_water(connection, DATASET, 0)
        engine_session.spark.sql(f"DROP TABLE IF EXISTS {schema.full_table_name(DATASET)} PURGE")
        yield found
        engine_session.spark.sql(f"DROP TABLE IF EXISTS {schema.full_table_name(DATASET)} PURGE")


def flush(session: EngineSession, opened: OpenHome) -> int:
    """Commit the spool. Return the highest sequence."""
    lake = SparkLake(opened.home, session.spark, opened.identity, lambda: None)
    Flusher(opened.home, opened.store, lake).flush(MESSAGES, wait=0)
    return max(file.max_seq or 0 for file in files_of(opened, "claude"))


def files_of(opened: OpenHome, source: str) -> list[DataFile]:
    entry = metadata.find_table(opened.home, DATASET)
    assert entry
    return [file for file in metadata.iter_live_files(metadata.read_metadata(entry.metadata)) if file.source == source]


def scanned(session: EngineSession, wanted: read.ReadRange) -> tuple[int, list[int]]:
    """Return the number of rows that Spark's scans returned for a read, and the sequences it found."""
    store = session.spark._jsparkSession.sharedState().statusStore()
    before = {execution.executionId() for execution in each_of(store.executionsList())}
    found = read.read_rows(session.spark, wanted)
    session.spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(1000 * PATIENCE)
    ours = [execution.executionId() for execution in each_of(store.executionsList())]
    counts = [
        int(store.executionMetrics(execution).apply(metric.accumulatorId()).replace(",", ""))
        for execution in ours
        if execution not in before
        for node in each_of(store.planGraph(execution).allNodes())
        if "Scan" in node.name()
        for metric in each_of(node.metrics())
        if metric.name() == "number of output rows"
    ]
    assert counts, "no scan was counted"
    return sum(counts), found.column(SEQ).to_pylist()


def each_of(scala: Any) -> list[Any]:
    return [scala.apply(place) for place in range(scala.length())]


def large_rows(count: int, **columns: Any) -> list[dict[str, Any]]:
    """Make rows of which a row group of 4 MiB contains about 250."""
    return [{**row, "content_text": "words of a long answer " * 700, **columns} for row in rows(count)]


def cut_groups(files: list[DataFile], since: int) -> int:
    """Count the rows of the row groups that a sequence splits."""
    return sum(
        group.sequenced
        for file in files
        for group in parquet.read_row_groups(file.path)
        if group.min_seq is not None and group.max_seq is not None and group.min_seq <= since < group.max_seq
    )


def test_only_files_with_new_rows_are_scanned(engine_session: EngineSession, opened: OpenHome) -> None:
    append(opened.home, rows(3_000))
    watermark = flush(engine_session, opened)
    append(opened.home, rows(40, start=3_000))
    flush(engine_session, opened)
    count, seqs = scanned(engine_session, read.ReadRange(DATASET, "claude", watermark))
    assert seqs == list(range(watermark + 1, watermark + 41))
    assert count <= 2 * 40


def test_a_watermark_inside_a_file_costs_one_row_group(engine_session: EngineSession, opened: OpenHome) -> None:
    """The files have many row groups, as those of an import do."""
    append(opened.home, large_rows(2_500))
    highest = flush(engine_session, opened)
    files = files_of(opened, "claude")
    groups = [len(parquet.read_row_groups(file.path)) for file in files]
    assert max(groups) >= 4, groups
    for new in (1, 50, 700, 1_800):
        since = highest - new
        count, seqs = scanned(engine_session, read.ReadRange(DATASET, "claude", since))
        assert seqs == list(range(since + 1, highest + 1))
        assert count <= 2 * new + cut_groups(files, since)


def test_a_range_end_inside_a_file_costs_one_row_group(engine_session: EngineSession, opened: OpenHome) -> None:
    """A backlog is read in windows: a window must not read the rest of its last file."""
    append(opened.home, large_rows(2_500))
    highest = flush(engine_session, opened)
    files = files_of(opened, "claude")
    since, until = highest - 2_000, highest - 1_900
    count, seqs = scanned(engine_session, read.ReadRange(DATASET, "claude", since, until))
    assert seqs == list(range(since + 1, until + 1))
    assert count <= 2 * 100 + cut_groups(files, since) + cut_groups(files, until)


def test_two_interleaved_sources_are_read_separately(engine_session: EngineSession, opened: OpenHome) -> None:
    claude = large_rows(1_200)
    codex = large_rows(1_200, client_name="codex", session_id="session-2")
    mixed = [row for pair in zip(claude, codex, strict=True) for row in pair]
    for row in mixed[1::2]:
        row["message_id"] = f"codex-{row['message_id']}"
    append(opened.home, mixed[:1_600])
    flush(engine_session, opened)
    append(opened.home, mixed[1_600:])
    flush(engine_session, opened)
    for source in ("claude", "codex"):
        files = files_of(opened, source)
        assert len(files) >= 2
        highest = max(file.max_seq or 0 for file in files)
        for new in (10, 100, 700):
            since = highest - 2 * new
            count, seqs = scanned(engine_session, read.ReadRange(DATASET, source, since, highest))
            assert seqs == list(range(since + 2, highest + 1, 2))
            assert count <= 2 * new + cut_groups(files, since)
