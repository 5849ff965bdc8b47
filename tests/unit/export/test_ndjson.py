"""Rows survive the wire format unchanged."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.export import encoders
from hypaware.model import canonical
from hypaware.model.columns import Column, ColumnType
from hypaware.model.datasets import Dataset, coerce_row
from tests.support import rows
from tests.support.forward_servers import GATEWAY, stored, table
from tests.support.rows import MESSAGES
from tests.support.strategies import json_values

# One nullable column of each type and no required column, unlike our own datasets.
LOOSE = Dataset(
    name="loose",
    about="For tests.",
    columns=tuple(Column(type_.value.lower(), type_, "Of this type.") for type_ in ColumnType),
    time_column="timestamp",
    source_columns=("string",),
    key_column="string",
)
MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))
# Text that looks like JSON, and other text.
TEXT = (
    st.text() | json_values.map(json.dumps) | st.sampled_from(["", "null", '"', '",\n  "', "\\", "\x1b[2J", "\u2028"])
)
VALUES = {
    ColumnType.STRING: TEXT,
    ColumnType.INT: st.integers(-(2**31), 2**31 - 1),
    ColumnType.BIGINT: st.integers(-(2**63), 2**63 - 1) | st.integers(2**53 - 3, 2**53 + 3) | st.integers(-9, 9),
    ColumnType.BOOLEAN: st.booleans(),
    ColumnType.DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
    ColumnType.TIMESTAMP: MOMENTS,
    ColumnType.JSON: json_values | TEXT,
}


def some_of(dataset: Dataset) -> st.SearchStrategy[dict[str, Any]]:
    # Derived columns are left out.
    free = {column.name: VALUES[column.type] for column in dataset.columns if column.name not in dataset.derive({}, "")}
    for name in ("date", "part_id"):
        free.pop(name, None)
    return st.fixed_dictionaries(
        {name: free[name] for name in dataset.required if name in free},
        optional={name: values for name, values in free.items() if name not in dataset.required},
    )


def encoded(coerced: list[dict[str, Any]], dataset: Dataset = MESSAGES) -> list[bytes]:
    json_columns = {column.name for column in dataset.columns if column.type is ColumnType.JSON}
    return list(encoders.encode_ndjson(table(coerced, dataset), json_columns).lines)


def received(lines: list[bytes], dataset: Dataset = MESSAGES) -> list[dict[str, Any]]:
    return [coerce_row(dataset, canonical.loads(line), GATEWAY) for line in lines]


@given(st.lists(some_of(MESSAGES), min_size=1, max_size=4))
def test_a_row_arrives_unchanged(raw: list[dict[str, Any]]) -> None:
    coerced = stored(raw)

    assert received(encoded(coerced)) == coerced


@given(st.lists(some_of(LOOSE), min_size=1, max_size=6))
def test_a_row_of_any_types_and_nulls_arrives_unchanged(raw: list[dict[str, Any]]) -> None:
    coerced = stored(raw, LOOSE)

    lines = encoded(coerced, LOOSE)

    assert received(lines, LOOSE) == coerced
    assert [sorted(json.loads(line)) for line in lines] == [sorted(row) for row in coerced]


@given(st.lists(some_of(LOOSE), min_size=1, max_size=4))
def test_a_row_is_one_line_without_integers_that_javascript_cannot_represent(raw: list[dict[str, Any]]) -> None:
    for line in encoded(stored(raw, LOOSE), LOOSE):
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        json.loads(line, parse_int=safe_number)


def safe_number(digits: str) -> int:
    assert abs(int(digits)) <= encoders.MAX_SAFE_INTEGER
    return int(digits)


def on_the_wire(column: str, value: Any) -> Any:
    (line,) = encoded(stored([{column: value}], LOOSE), LOOSE)
    return json.loads(line).get(column)


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        ({"a": [1, None]}, {"a": [1, None]}),
        ([], []),
        (12, 12),
        (True, True),
        ("plain words", "plain words"),
        ('"12"', '"12"'),
        ('"null"', '"null"'),
        ("null", "null"),
        ({"n": 2**53 - 1}, {"n": 2**53 - 1}),
        ({"n": 2**53}, '{"n":9007199254740992}'),
        ([-(10**30)], f"[{-(10**30)}]"),
        ({"id": "9007199254740993"}, {"id": "9007199254740993"}),
        ({"x": 0.1234567890123456}, {"x": 0.1234567890123456}),
    ],
)
def test_a_json_value_is_sent_as_text_only_if_it_would_change(value: Any, wire: Any) -> None:
    assert on_the_wire("json", value) == wire


@pytest.mark.parametrize(
    ("number", "wire"),
    [(2**53 - 1, 2**53 - 1), (2**53, "9007199254740992"), (-(2**53), "-9007199254740992"), (-(2**63), str(-(2**63)))],
)
def test_a_large_integer_is_sent_as_text(number: int, wire: Any) -> None:
    assert on_the_wire("bigint", number) == wire


def test_a_timestamp_has_microseconds_and_a_zone() -> None:
    moment = datetime(2026, 11, 15, 7, 15, 8, 256000, UTC)

    assert on_the_wire("timestamp", moment) == "2026-11-15T07:15:08.256000Z"


def test_json_with_line_feeds_remains_one_line() -> None:
    """An imported lake may hold JSON in another notation."""
    rows_of_others = pa.table({"json": ['{\n "a": 1\n}', "not\njson", "[1]"]})

    lines = encoders.encode_ndjson(rows_of_others, {"json"}).lines

    assert [json.loads(line) for line in lines] == [{"json": '{\n "a": 1\n}'}, {"json": "not\njson"}, {"json": [1]}]
    assert all(line.count(b"\n") == 1 for line in lines)


def test_the_lines_do_not_depend_on_arrow_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = [
        rows.row(
            number, content_text=f'line {number}\n"' if number % 7 else None, tool_args="null" if number % 5 else {}
        )
        for number in range(300)
    ]
    coerced = stored(raw)
    whole = encoded(coerced)
    json_columns = {column.name for column in MESSAGES.columns if column.type is ColumnType.JSON}
    in_pieces = pa.concat_tables([table(coerced[start : start + 70]) for start in range(0, 300, 70)])
    large = in_pieces.cast(
        pa.schema(
            (field.name, pa.large_string() if pa.types.is_string(field.type) else field.type)
            for field in in_pieces.schema
        )
    )

    monkeypatch.setattr(encoders, "_LINES_BLOCK_ROWS", 64)
    assert list(encoders.encode_ndjson(in_pieces, json_columns).lines) == whole
    assert list(encoders.encode_ndjson(large, json_columns).lines) == whole
    assert list(encoders.encode_ndjson(in_pieces.slice(33, 150), json_columns).lines) == whole[33:183]
    monkeypatch.setattr(encoders, "_LINES_BLOCK_BYTES", 1)
    assert list(encoders.encode_ndjson(in_pieces, json_columns).lines) == whole


def test_an_empty_table_gives_no_lines() -> None:
    assert list(encoders.encode_ndjson(table(stored([rows.row(1)])).slice(0, 0), ()).lines) == []


def test_sizes_equal_the_lengths_of_the_lines() -> None:
    payload = encoders.encode_ndjson(table(stored(rows.rows(5))), {"attributes"})

    assert sum(payload.sizes) == len(b"".join(payload.lines))
    assert payload.slice(1, 3).lines == payload.lines[1:3]


def test_an_unsupported_type_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="column x has the unsupported type date32"):
        encoders.encode_ndjson(pa.table({"x": [date(2026, 11, 1)]}), ())
