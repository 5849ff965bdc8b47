"""Ingesting NDJSON: each line is stored, or rejected with its number and a reason."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypaware.errors import HypError, Retryable
from hypaware.home import Home
from hypaware.spool import ingest as ingesting
from hypaware.spool import reader
from hypaware.spool.ingest import RejectedLine, ingest
from hypaware.spool.writer import Spool
from tests.support.rows import DATASET, row, rows
from tests.support.strategies import json_values

if TYPE_CHECKING:
    from tests.unit.spool.conftest import Spooled


def _ndjson(*values: Any) -> io.BytesIO:
    return io.BytesIO(b"".join(json.dumps(value).encode() + b"\n" for value in values))


def _with(**columns: Any) -> bytes:
    return json.dumps(row(1, **columns)).encode()


def test_valid_rows_are_stored_sealed_and_counted(home: Home, spooled: Spooled) -> None:
    report = ingest(home, DATASET, _ndjson(*rows(3)))
    assert (report.accepted, report.rejected, report.segments) == (3, [], 1)
    assert report.as_json() == {"dataset": DATASET, "accepted": 3, "rejected": [], "segments": 1}
    assert spooled() == ["message-0", "message-1", "message-2"]
    assert reader.summarize_spool(home, DATASET).rows == 3


def test_valid_rows_are_stored_and_rejected_lines_are_listed(home: Home, spooled: Spooled) -> None:
    lines = io.BytesIO(b"\n".join([_with(), b"", b"not json", b"  ", b"[1]", _with(role=7), _with(message_id="last")]))
    report = ingest(home, DATASET, lines)
    assert report.accepted == 2
    assert [rejected.line for rejected in report.rejected] == [3, 5, 6]
    assert report.rejected[1] == RejectedLine(5, "a row must be a JSON object, not an array")
    assert report.rejected[2] == RejectedLine(6, "column role: expected text, got 7")
    assert spooled() == ["message-1", "last"]


@pytest.mark.hazard(60)
@pytest.mark.parametrize(
    "line",
    [
        b'{"session_id":"\xff"}',
        b'{"session_id":"\xed\xa0\x80"}',
        _with(session_id="\ud800"),
        b"\x00",
        _with().replace(b'"session-1"', b'"raw \x00 in text"'),
        _with().replace(b'"message_index": 1', b'"message_index": NaN'),
        _with().replace(b'"message_index": 1', b'"message_index": 1e999'),
        _with().replace(b'"message_index": 1', b'"message_index": 123456789012345678901234567890'),
        _with().replace(b'"message_index": 1', b'"message_index": ' + b"9" * 5_000),
        _with().replace(b'"message_index": 1', b'"message_index": 1.5'),
        _with(message_created_at="0000-01-01T00:00:00Z"),
        _with(message_created_at="9999-12-31T23:59:59-12:00"),
        _with(message_created_at="10000-01-01T00:00:00Z"),
        _with(message_created_at="2026-02-30T00:00:00Z"),
        b'{"attributes":' + b"[" * 100_000,
        _with(attributes=0).replace(b'"attributes": 0', b'"attributes": ' + b"[" * 300 + b"]" * 300),
        b'{"a":1}{"b":2}',
        b"'single'",
    ],
)  # fmt: skip
def test_a_line_that_is_not_a_row_is_rejected_and_the_others_are_stored(
    home: Home, spooled: Spooled, line: bytes
) -> None:
    before, after = json.dumps(row(100)).encode(), json.dumps(row(200)).encode()
    report = ingest(home, DATASET, io.BytesIO(b"\n".join([before, line, after])))
    assert report.accepted == 2
    assert [rejected.line for rejected in report.rejected] == [2]
    assert spooled() == ["message-100", "message-200"]


@pytest.mark.hazard(60)
@pytest.mark.parametrize(
    ("column", "value", "stored"),
    [
        ("content_text", "NUL \x00 and 🐍", "NUL \x00 and 🐍"),
        ("attributes", {"n": 2**70}, f'{{"n":{2**70}}}'),
        ("attributes", {"deep": [[[[0]]]]}, '{"deep":[[[[0]]]]}'),
        ("tool_args", "NaN", '"NaN"'),
        ("message_created_at", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000000Z"),
        ("message_created_at", "9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999Z"),
    ],
)
def test_unusual_values_are_stored_exactly(home: Home, column: str, value: Any, stored: Any) -> None:
    assert ingest(home, DATASET, _ndjson(row(1, **{column: value}))).accepted == 1
    assert [found[column] for found in reader.read_spooled_rows(home, DATASET, [column])] == [stored]


@pytest.mark.hazard(60)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(json_values.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=30), max_size=5))
def test_every_line_of_any_input_is_accounted_for(home: Home, lines: list[bytes]) -> None:
    held = b"\n".join(lines)
    report = ingest(home, DATASET, io.BytesIO(held))
    lines = held.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    counted = [number for number, line in enumerate(lines, 1) if line.strip()]
    assert report.accepted == 0
    assert [rejected.line for rejected in report.rejected] == counted


def test_a_giant_line_is_rejected_without_being_loaded(
    home: Home, spooled: Spooled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingesting, "MAX_LINE_BYTES", 2_000)
    giant = _with(content_text="x" * 10_000)
    exact = _with(message_id="exact", content_text="")
    exact = _with(message_id="exact", content_text="x" * (1_999 - len(exact)))
    report = ingest(home, DATASET, io.BytesIO(b"\n".join([giant, exact, giant])))
    assert [rejected.line for rejected in report.rejected] == [1, 3]
    assert "longer than" in report.rejected[0].reason
    assert spooled() == ["exact"]


def test_a_byte_order_mark_is_not_part_of_the_first_line(home: Home) -> None:
    report = ingest(home, DATASET, io.BytesIO(b"\xef\xbb\xbf" + _with() + b"\n"))
    assert (report.accepted, report.rejected) == (1, [])


def test_strict_stores_nothing_if_any_row_is_rejected(home: Home, spooled: Spooled) -> None:
    report = ingest(home, DATASET, _ndjson(row(1), [], row(2)), strict=True)
    assert (report.accepted, len(report.rejected)) == (0, 1)
    assert spooled() == []
    assert ingest(home, DATASET, _ndjson(row(1), row(2)), strict=True).accepted == 2
    assert spooled() == ["message-1", "message-2"]


def test_strict_reads_a_pipe_twice(home: Home, spooled: Spooled) -> None:
    read, write = os.pipe()
    os.write(write, _ndjson(*rows(2)).getvalue())
    os.close(write)
    with open(read, "rb") as lines:
        assert ingest(home, DATASET, lines, strict=True).accepted == 2
    assert spooled() == ["message-0", "message-1"]


def test_strict_starts_at_the_current_position_of_the_input(home: Home, spooled: Spooled, tmp_path: Path) -> None:
    """`(read header; hyp ingest … --strict) < file`: the second pass must not start at the header."""
    (tmp_path / "rows").write_bytes(b"header\n" + _ndjson(*rows(2)).getvalue())
    with open(tmp_path / "rows", "rb", buffering=0) as raw:
        raw.seek(len(b"header\n"))
        with io.BufferedReader(raw) as lines:
            report = ingest(home, DATASET, lines, strict=True)
    assert (report.accepted, report.rejected) == (2, [])
    assert spooled() == ["message-0", "message-1"]


def test_an_unknown_dataset_reads_nothing(home: Home) -> None:
    lines = _ndjson(row(1))
    with pytest.raises(HypError, match="unknown dataset 'messages'"):
        ingest(home, "messages", lines)
    assert lines.tell() == 0


def test_many_rows_are_acknowledged_in_batches_with_progress_reports(home: Home, spooled: Spooled) -> None:
    reported: list[float | None] = []
    report = ingest(home, DATASET, _ndjson(*rows(2_500)), progress=lambda _message, done, _total: reported.append(done))
    assert report.accepted == len(spooled()) == 2_500
    assert reported == [1_000, 2_000]


@pytest.mark.hazard(13)
def test_a_disk_that_fills_up_keeps_acknowledged_rows(
    home: Home, spooled: Spooled, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = Spool.append_coerced
    calls = []

    def filling_up(spool: Spool, dataset: str, batch: list[Any]) -> int:
        calls.append(len(batch))
        if len(calls) == 2:
            raise Retryable("no space")
        return append(spool, dataset, batch)

    monkeypatch.setattr(Spool, "append_coerced", filling_up)
    with pytest.raises(Retryable):
        ingest(home, DATASET, _ndjson(*rows(1_500)))
    assert len(spooled()) == 1_000
