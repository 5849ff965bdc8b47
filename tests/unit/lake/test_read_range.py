"""Reading a range of rows from data files: exact, ordered, complete, and without reading much else."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from hypaware.config import FlushConfig
from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.lake import parquet
from hypaware.lake import read as lake_read
from hypaware.lake.read import LakeRowReader
from hypaware.model import datasets
from hypaware.model.datasets import SEQ, coerce_row
from hypaware.state.home_opener import open_home
from tests.support.light_home import append, flush
from tests.support.rows import DATASET, MESSAGES, rows


def _seqs(found: lake_read.RowPage) -> list[int]:
    seqs: list[int] = found.rows.column(SEQ).to_pylist()
    return seqs


def _filled(home: Home) -> None:
    """Make two interleaved sources in several commits and days."""
    for start in range(0, 60, 12):
        mixed = rows(12, start=start)
        for place, raw in enumerate(mixed):
            raw["client_name"] = ("claude", "codex")[place % 2]
            raw["message_created_at"] = f"2026-11-{1 + place % 3:02d}T00:00:{start % 60:02d}Z"
        append(home, mixed)
        flush(home, FlushConfig(max_rows=5))


def test_every_range_contains_exactly_its_rows_in_order(home: Home) -> None:
    _filled(home)
    for after in range(0, 62, 5):
        for last in range(after, 61, 4):
            found = LakeRowReader(home).page(DATASET, "claude", after, last)
            assert _seqs(found) == [seq for seq in range(1, 61, 2) if after < seq <= last]


def test_pages_are_contiguous_and_contain_every_row_once(home: Home) -> None:
    _filled(home)
    after, seen, ends = 0, [], [0]
    while after < 60:
        found = LakeRowReader(home).page(DATASET, "codex", after, 60, most=4)
        assert len(found.rows) <= 4
        seen += _seqs(found)
        after = found.reached
        ends.append(after)
    assert seen == list(range(2, 61, 2))
    assert all(before < behind for before, behind in pairwise(ends))


def test_rows_are_read_exactly_as_they_were_stored(home: Home) -> None:
    raw = rows(3, attributes={"deep": [1, {"a": "é\u2028"}], "big": 2**60}, is_sidechain=True, content_text="ü\n\x00x")
    append(home, raw)
    flush(home)
    gateway = open_home(home)
    with closing(gateway.store):
        expected = [coerce_row(MESSAGES, each, gateway.gateway_id) for each in raw]
    found = LakeRowReader(home).page(DATASET, "claude", 0, 3).rows
    assert found.column_names == [SEQ, *(column.name for column in datasets.get(DATASET).columns)]
    for row, wanted in zip(found.to_pylist(), expected, strict=True):
        row.pop(SEQ)
        kept = {name: value for name, value in row.items() if value is not None}
        assert kept.keys() == wanted.keys()
        assert kept["attributes"] == wanted["attributes"]
        assert kept["content_text"] == wanted["content_text"]
        assert kept["message_created_at"] == datetime.fromisoformat(wanted["message_created_at"])


def test_only_row_groups_that_can_contain_the_range_are_read(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hypaware.lake.build._ROW_GROUP_BYTES", 50_000)
    append(home, rows(3_000))
    flush(home)
    append(home, rows(40, start=3_000))
    flush(home)
    entry = metadata.find_table(home, DATASET)
    assert entry
    files = list(metadata.iter_live_files(metadata.read_metadata(entry.metadata)))
    widest = max(group.sequenced for file in files for group in parquet.read_row_groups(file.path))
    found = LakeRowReader(home).page(DATASET, "claude", 3_000, 3_040)
    assert (len(found.rows), found.scanned) == (40, 40)
    cut = LakeRowReader(home).page(DATASET, "claude", 2_990, 3_040)
    assert len(cut.rows) == 50
    assert cut.scanned <= 2 * 50 + widest


def test_a_column_that_a_file_lacks_is_null(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from hypaware.model.columns import Column, ColumnType

    append(home, rows(2))
    flush(home)
    grown = replace(MESSAGES, columns=(*MESSAGES.columns, Column("mood", ColumnType.STRING, "How it went.")))
    monkeypatch.setattr("hypaware.lake.read.datasets.get", lambda _name: grown)
    assert LakeRowReader(home).page(DATASET, "claude", 0, 2).rows.column("mood").to_pylist() == [None, None]


@pytest.mark.hazard(17)
def test_a_lake_that_ends_below_the_recorded_sequence_raises_an_error(home: Home) -> None:
    with pytest.raises(LakeError, match="has no such table"):
        LakeRowReader(home).page(DATASET, "claude", 0, 5, most=10)
    append(home, rows(3))
    flush(home)
    with pytest.raises(LakeError, match="rolled back"):
        LakeRowReader(home).page(DATASET, "claude", 0, 5)


def test_a_file_that_is_rewritten_during_a_read_is_found_in_the_new_metadata(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(home, rows(6))
    flush(home)
    looked: list[Any] = []
    read = lake_read.read_files

    def gone_once(*args: Any) -> lake_read.RowPage:
        if not looked:
            looked.append(1)
            append(home, rows(3, start=6))
            flush(home)
            raise FileNotFoundError("the file was rewritten and removed")
        return read(*args)

    monkeypatch.setattr(lake_read, "read_files", gone_once)
    assert _seqs(LakeRowReader(home).page(DATASET, "claude", 0, 6)) == [1, 2, 3, 4, 5, 6]


def test_a_missing_file_raises_an_error(home: Home) -> None:
    append(home, rows(6))
    flush(home)
    entry = metadata.find_table(home, DATASET)
    assert entry
    for file in metadata.iter_live_files(metadata.read_metadata(entry.metadata)):
        file.path.unlink()
    with pytest.raises(LakeError, match="is missing"):
        LakeRowReader(home).page(DATASET, "claude", 0, 6)


def test_a_decoded_page_has_the_values_that_arrow_gives() -> None:
    """Times are decoded apart from Arrow: before 1970, at both ends, null, and in other units."""
    moments = ["0001-01-01T00:00:00Z", "1969-12-31T23:59:59.999999Z", None, "9999-12-31T23:59:59.999999Z"]
    times = [None if each is None else datetime.fromisoformat(each) for each in moments]
    columns = {
        SEQ: pa.array([None, 1, 2, 3], pa.int64()),
        "at": pa.array(times, pa.timestamp("us", "UTC")),
        "seconds": pa.array(
            [None, datetime.fromisoformat("1969-12-31T23:59:59Z"), None, None], pa.timestamp("s", "UTC")
        ),
        "text": pa.array(["ü☃", None, "", "x"]),
        "nothing": pa.nulls(4, pa.string()),
        "flag": pa.array([True, None, False, True]),
    }
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    decoded = list(lake_read.decode_page(sink.getvalue().to_pybytes()))
    assert [{SEQ: seq, **row} for row, seq in decoded] == table.to_pylist()
    assert decoded[0][0]["at"].tzinfo is not None
    assert list(lake_read.decode_page(b"")) == []
