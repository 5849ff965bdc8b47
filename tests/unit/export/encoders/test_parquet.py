"""Parquet objects, read by independent readers."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hypaware.export import encoders
from hypaware.export.encoders import PARQUET
from tests.support.blob_destination import table, table_of
from tests.support.rows import MESSAGES, row


def written(rows: pa.Table) -> bytes:
    file = io.BytesIO()
    PARQUET.write(rows, file)
    return file.getvalue()


def test_columns_and_values_are_written_unchanged() -> None:
    rows = table(300, tool_args={"a": [1, None]}, is_error=True)

    back = pq.read_table(io.BytesIO(written(rows)))

    assert back.column_names == [column.name for column in MESSAGES.columns]
    assert back.to_pylist() == rows.to_pylist()


def test_duckdb_reads_text_numbers_flags_and_utc_times(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(written(table_of([row(7, message_created_at="2026-11-15T07:15:08.256001Z", is_error=True)])))

    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    found = connection.execute(
        "SELECT message_id, message_index, is_error, epoch_us(message_created_at), typeof(message_created_at), "
        "json_extract(attributes, '$.usage.output_tokens')::INT, date FROM read_parquet(?)",
        [str(path)],
    ).fetchone()

    moment = datetime(2026, 11, 15, 7, 15, 8, 256001, UTC)
    micros = round(moment.timestamp() * 1_000_000)
    assert found == ("message-7", 7, True, micros, "TIMESTAMP WITH TIME ZONE", 7, "2026-11-15")


def test_a_timestamp_is_stored_in_utc_microseconds() -> None:
    kind = pq.ParquetFile(io.BytesIO(written(table(1)))).schema
    moment = next(kind.column(place) for place in range(len(kind)) if kind.column(place).name == "message_created_at")

    assert moment.physical_type == "INT64"
    assert "isAdjustedToUTC=true, timeUnit=microseconds" in str(moment.logical_type)


def test_every_column_is_compressed_with_zstd() -> None:
    group = pq.ParquetFile(io.BytesIO(written(table(10)))).metadata.row_group(0)

    assert {group.column(place).compression for place in range(group.num_columns)} == {"ZSTD"}


def test_a_row_group_has_at_most_fifty_thousand_rows() -> None:
    rows = pa.concat_tables([table(1000)] * 101)

    found = pq.ParquetFile(io.BytesIO(written(rows))).metadata

    assert [found.row_group(place).num_rows for place in range(found.num_row_groups)] == [50_000, 50_000, 1000]


@pytest.mark.parametrize("letters", [50, 5_000, 3 << 20])
def test_a_row_group_has_at_most_thirty_two_mebibytes(letters: int) -> None:
    """Random text: a dictionary would hide its size."""
    count = min(20_000, (80 << 20) // letters)
    texts = pa.array([f"{number:08d}".ljust(letters, chr(97 + number % 26)) for number in range(count)])
    few = table(1).drop_columns(["content_text", "tool_args"])
    rows = pa.concat_tables([few] * count).append_column("content_text", texts).append_column("tool_args", texts)

    found = pq.ParquetFile(io.BytesIO(written(rows))).metadata

    sizes = [found.row_group(place).total_byte_size for place in range(found.num_row_groups)]
    assert max(sizes) <= 32 << 20
    assert sum(found.row_group(place).num_rows for place in range(found.num_row_groups)) == count
    assert len(sizes) <= 1 + sum(sizes) // (20 << 20)


def test_a_row_larger_than_a_row_group_gets_its_own_group() -> None:
    rows = pa.concat_tables([table(2), table(1, 2, content_text="x" * (33 << 20)), table(2, 3)])

    found = pq.ParquetFile(io.BytesIO(written(rows))).metadata

    assert [found.row_group(place).num_rows for place in range(found.num_row_groups)] == [2, 1, 2]


@pytest.mark.hazard(90)
def test_the_same_rows_give_the_same_bytes_for_any_arrow_chunks() -> None:
    texts = pa.array([f"{number:08d}" * 200 for number in range(4_000)])
    whole = table(4_000).drop_columns(["content_text"]).append_column("content_text", texts)
    pieces = pa.concat_tables([whole.slice(start, 137) for start in range(0, 4_000, 137)])
    noted = encoders.mark_json_columns(whole, {"attributes"}).replace_schema_metadata({"made": "elsewhere"})
    part = pa.concat_tables([whole.slice(0, 5), whole, whole.slice(0, 5)]).slice(5, 4_000)

    assert written(whole) == written(pieces) == written(noted) == written(part)


def test_an_empty_table_gives_a_file_with_columns() -> None:
    back = pq.read_table(io.BytesIO(written(table(1).slice(0, 0))))

    assert (len(back), back.num_columns) == (0, len(MESSAGES.columns))
