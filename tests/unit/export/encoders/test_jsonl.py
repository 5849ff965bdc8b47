"""JSON lines as a text reader sees them."""

from __future__ import annotations

import gzip
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from hypaware.export import encoders
from hypaware.export.encoders import JSONL, JSONL_ZSTD, Encoder
from tests.support.blob_destination import table, table_of
from tests.support.rows import row

JSON_COLUMNS = ("tools", "tool_args", "attributes", "status", "previous_message_id", "raw_frame", "compact_metadata")


def written(rows: pa.Table, encoder: Encoder = JSONL) -> bytes:
    file = io.BytesIO()
    encoder.write(encoders.mark_json_columns(rows, JSON_COLUMNS), file)
    return file.getvalue()


def lines(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(data).splitlines()]


def test_a_line_holds_the_row_with_json_as_values_times_as_text_and_without_nulls() -> None:
    (found,) = lines(written(table_of([row(3, tool_args={"a": [1, None, "ü\n"]}, is_error=True)])))

    assert found["tool_args"] == {"a": [1, None, "ü\n"]}
    assert found["attributes"]["usage"] == {"output_tokens": 3}
    assert found["message_created_at"] == "2026-11-15T07:00:03.000000Z"
    assert found["message_index"] == 3
    assert found["is_error"] is True
    assert None not in found.values()
    assert "system_text" not in found


def test_each_row_is_one_line_in_order() -> None:
    found = lines(written(table(20_000)))

    assert [each["message_index"] for each in found] == list(range(20_000))


@pytest.mark.hazard(90)
@pytest.mark.parametrize("encoder", [JSONL, JSONL_ZSTD], ids=lambda encoder: encoder.name)
def test_the_same_rows_give_the_same_bytes_for_any_arrow_chunks(encoder: Encoder) -> None:
    whole = table(9_000)
    pieces = pa.concat_tables([whole.slice(start, 137) for start in range(0, 9_000, 137)])

    assert written(whole, encoder) == written(pieces, encoder)


def test_the_compressed_file_contains_neither_name_nor_time() -> None:
    header = written(table(1))[:10]

    assert header[3] == 0  # no name
    assert header[4:8] == b"\0\0\0\0"


@pytest.mark.parametrize("encoder", [JSONL, JSONL_ZSTD], ids=lambda encoder: encoder.name)
def test_duckdb_reads_every_row(tmp_path: Path, encoder: Encoder) -> None:
    path = tmp_path / f"x.{encoder.extension}"
    path.write_bytes(written(table(20_000), encoder))

    found = duckdb.execute(
        "SELECT count(*), sum(attributes.usage.output_tokens), epoch(max(message_created_at))::BIGINT "
        "FROM read_json(?)",
        [str(path)],
    ).fetchone()

    last = datetime(2026, 11, 15, 7, 0, tzinfo=UTC) + timedelta(seconds=19_999)
    assert found == (20_000, sum(range(20_000)), int(last.timestamp()))


def test_zstd_output_is_a_single_frame() -> None:
    data = written(table(30_000), JSONL_ZSTD)

    assert data.count(b"\x28\xb5\x2f\xfd") == 1


@pytest.mark.parametrize("encoder", [JSONL, JSONL_ZSTD], ids=lambda encoder: encoder.name)
def test_the_file_stays_open(encoder: Encoder) -> None:
    file = io.BytesIO()

    encoder.write(table(1), file)

    assert file.tell() == len(file.getvalue()) > 0
