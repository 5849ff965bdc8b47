"""The output formats, without Spark: Arrow batches in, bytes out."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.errors import UsageError
from hypaware.query import formats

TIME = datetime(2026, 11, 15, 7, 15, 8, 256000, tzinfo=UTC)
ZONED = pa.timestamp("us", "UTC")
UNSAFE = "\x1b[31m \x1b]0;title\x07 \x9b2J \x7f \u202e \u2066 \r \x00 \u2028"
ACTING = [char for char in UNSAFE if char not in " [31m]0;title2J"]


def batch(**columns: Any) -> pa.RecordBatch:
    arrays = [values if isinstance(values, pa.Array) else pa.array(values) for values in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def render(name: str, *batches: pa.RecordBatch, **look: Any) -> bytes:
    return b"".join(formats.render(name, batches[0].schema, batches, **look))


def text(name: str, *batches: pa.RecordBatch, **look: Any) -> str:
    return render(name, *batches, **look).decode()


def values(column: pa.Array) -> list[Any]:
    return [row["x"] for row in json.loads(render("json", batch(x=column)))]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([TIME, None], pa.timestamp("us", "UTC")), ["2026-11-15T07:15:08.256000Z", None]),
        (pa.array([TIME.replace(tzinfo=None)], pa.timestamp("us")), ["2026-11-15T07:15:08.256000"]),
        (pa.array([-62135596800000000, 253402300799999999], pa.timestamp("us", "UTC")),
         ["0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z"]),
        (pa.array([TIME.replace(second=10, microsecond=0), TIME.replace(microsecond=1)], ZONED),
         ["2026-11-15T07:15:10.000000Z", "2026-11-15T07:15:08.000001Z"]),
        (pa.array([TIME.replace(second=0, microsecond=0)], pa.timestamp("s", "UTC")), ["2026-11-15T07:15:00.000000Z"]),
        (pa.array([date(2026, 11, 15)]), ["2026-11-15"]),
        (pa.array([time(10, 0, 1)], pa.time64("ns")), ["10:00:01.000000000"]),
        (pa.array([1.5, float("nan"), float("inf"), float("-inf"), None]), [1.5, None, None, None, None]),
        (pa.array([b"\x00\xff", None]), ["AP8=", None]),
        (pa.array([2**63 - 1, None]), [2**63 - 1, None]),
        (pa.array([True, False, None]), [True, False, None]),
        (pa.nulls(2), [None, None]),
        (pa.array([{"a": 1, "b": [TIME]}, None], pa.struct([("a", pa.int32()), ("b", pa.list_(ZONED))])),
         [{"a": 1, "b": ["2026-11-15T07:15:08.256000Z"]}, None]),
        (pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int32())), [{"k": 1}, {}, None]),
        (pa.array([[(7, "x")]], pa.map_(pa.int32(), pa.string())), [{"7": "x"}]),
        (pa.array([[1, None], [], None]), [[1, None], [], None]),
        (pa.array([timedelta(days=1)], pa.duration("us")), ["1 day, 0:00:00"]),
    ],
)  # fmt: skip
def test_every_type_is_written_as_json(column: pa.Array, expected: list[Any]) -> None:
    assert values(column) == expected
    assert values(column.slice(1)) == expected[1:], "a part of a column is written like the whole"


@pytest.mark.parametrize("name", ["json", "jsonl", "csv", "markdown", "table"])
def test_times_sort_as_text_in_every_format(name: str) -> None:
    moments = [TIME.replace(microsecond=part) for part in (0, 1, 256, 1000, 250_000, 256_000)]
    written = re.findall(r"2026-\S+?Z", text(name, batch(x=pa.array(moments, ZONED))))
    assert len(written) == len(moments)
    assert written == sorted(written)


def test_decimals_are_json_numbers_with_all_digits() -> None:
    column = pa.array([Decimal("1.50"), Decimal("1E-18"), Decimal("12345678901234567890")], pa.decimal128(38, 18))
    written = text("jsonl", batch(x=column)).splitlines()

    assert written[0] == '{"x":1.500000000000000000}'
    assert written[1] == '{"x":0.000000000000000001}'
    assert written[2] == '{"x":12345678901234567890.000000000000000000}'


def test_json_is_one_array_however_the_rows_are_batched() -> None:
    assert json.loads(render("json", batch(a=[1, 2]), batch(a=[3]))) == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert json.loads(render("json", batch(a=pa.array([], pa.int32())))) == []
    assert json.loads(b"".join(formats.render("json", pa.schema([("a", pa.int32())]), []))) == []


def test_jsonl_is_one_object_per_line_and_empty_without_rows() -> None:
    assert [json.loads(line) for line in render("jsonl", batch(a=["x\ny"]), batch(a=["z"])).splitlines()] == [
        {"a": "x\ny"},
        {"a": "z"},
    ]
    assert render("jsonl", batch(a=pa.array([], pa.int32()))) == b""


def test_columns_with_the_same_name_are_all_in_the_json() -> None:
    two = pa.RecordBatch.from_arrays([pa.array([n]) for n in range(4)], names=["a", "a", "a_2", "a"])

    assert json.loads(render("jsonl", two)) == {"a": 0, "a_3": 1, "a_2": 2, "a_4": 3}


@given(st.lists(st.one_of(st.none(), st.text()), min_size=1))
def test_json_preserves_text_exactly_and_escapes_control_characters(texts: list[str | None]) -> None:
    written = text("jsonl", batch(x=pa.array(texts, pa.string())))

    assert [json.loads(line)["x"] for line in written.split("\n")[:-1]] == texts
    assert not any(char in written for char in ACTING)


@given(st.lists(st.tuples(st.text(), st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))), min_size=1))
def test_csv_is_read_back_exactly_by_any_reader(rows: list[tuple[str, int | None]]) -> None:
    written = text("csv", batch(a=[a for a, _ in rows], b=pa.array([b for _, b in rows], pa.int64())))

    read = list(csv.reader(io.StringIO(written, newline="")))
    assert read == [["a", "b"], *[[a, "" if b is None else str(b)] for a, b in rows]]


def test_csv_has_crlf_minimal_quotes_and_distinguishes_null_from_empty() -> None:
    columns = batch(**{'a"b': ["x", "", None, 'say "hi"'], "c,d": [1.5, float("nan"), None, float("inf")]})

    assert text("csv", columns) == ('"a""b","c,d"\r\nx,1.5\r\n"",NaN\r\n,\r\n"say ""hi""",Infinity\r\n')


@pytest.mark.hazard(62)
def test_csv_is_exact_in_a_file_and_escaped_on_a_terminal() -> None:
    column = batch(x=[UNSAFE])

    assert UNSAFE in text("csv", column)
    shown = text("csv", column, width=80)
    assert not any(char in shown for char in ACTING)
    assert "\\x1b[31m" in shown


def test_arrow_is_an_ipc_stream_of_the_same_batches() -> None:
    first, second = batch(a=[1, 2], b=["x", None]), batch(a=[3], b=["y"])

    with pa.ipc.open_stream(render("arrow", first, second)) as reader:
        assert reader.read_all().equals(pa.Table.from_batches([first, second]))


def test_arrow_without_rows_still_has_the_schema() -> None:
    schema = pa.schema([("a", pa.int32())])

    with pa.ipc.open_stream(b"".join(formats.render("arrow", schema, []))) as reader:
        assert reader.read_all().schema == schema


@pytest.mark.parametrize("name", formats.FORMATS)
def test_a_result_is_streamed(name: str) -> None:
    asked_for = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal asked_for
        for number in range(3):
            asked_for += 1
            yield batch(a=[number])

    written_after = {asked_for for chunk in formats.render(name, batch(a=[0]).schema, batches()) if chunk}

    assert {1, 2, 3} <= written_after


def test_an_unknown_format_is_an_error_that_suggests_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="Did you mean json"):
        formats.render("jsn", pa.schema([]), [])


@pytest.mark.hazard(62)
@pytest.mark.parametrize("name", ["table", "markdown"])
@pytest.mark.parametrize("width", [None, 60, 12])
def test_stored_text_cannot_control_the_terminal(name: str, width: int | None) -> None:
    hostile = batch(**{UNSAFE: [UNSAFE, "plain"]})
    nested = batch(x=[[UNSAFE]])

    for shown in (text(name, hostile, width=width), text(name, nested, width=width)):
        assert not any(char in shown for char in ACTING)
    if width is None:
        assert "\\x1b" in text(name, hostile)


@pytest.mark.parametrize("name", ["table", "markdown"])
def test_a_row_stays_one_line(name: str) -> None:
    written = text(name, batch(x=["a\nb\r\nc\td"]))

    assert len(written.splitlines()) == 3
