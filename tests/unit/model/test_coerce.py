"""A row is accepted whole or rejected with a reason; coercing it again changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.model.columns import Column, ColumnType
from hypaware.model.datasets import INTERNAL, RowRejected, coerce_row
from tests.support.rows import MESSAGES, row
from tests.support.strategies import json_values

_GATEWAY = "gw-1"
_WRONG: dict[ColumnType, tuple[Any, ...]] = {
    ColumnType.STRING: (1, 1.5, True, ["text"], {"text": "text"}, "\ud800"),
    ColumnType.INT: ("one", 1.5, True, [1], {"n": 1}, 2**31),
    ColumnType.BIGINT: ("one", 1.5, True, [1], {"n": 1}, 2**63),
    ColumnType.BOOLEAN: ("true", 0, 1, [True], {"is": True}),
    ColumnType.TIMESTAMP: ("today", 1_700_000_000, "2026-11-15T07:15:08", True, ["2026-11-15T07:15:08Z"]),
    ColumnType.JSON: (float("nan"), {"a": float("inf")}, {1: "number as key"}, {"set"}, "\ud800"),
}
_columns = st.sampled_from([column.name for column in MESSAGES.columns])
_raw_rows = st.dictionaries(_columns | st.sampled_from(INTERNAL) | st.text(), json_values, max_size=8)


def _coerced(raw: Any) -> dict[str, Any]:
    return coerce_row(MESSAGES, raw, _GATEWAY)


def _coerce_or_reason(raw: Any) -> tuple[dict[str, Any] | None, str]:
    """Return the coerced row, or None and the reason."""
    try:
        return _coerced(raw), ""
    except RowRejected as reason:
        return None, str(reason)


def test_the_dataset_has_56_columns() -> None:
    assert len(MESSAGES.columns) == 56


@pytest.mark.parametrize("column", MESSAGES.columns, ids=lambda column: column.name)
def test_every_column_rejects_a_value_of_another_type(column: Column) -> None:
    for wrong in _WRONG[column.type]:
        with pytest.raises(RowRejected, match=f"column {column.name}: "):
            _coerced(row(1, **{column.name: wrong}))


@pytest.mark.hazard(60)
@given(_raw_rows.map(lambda odd: {**row(1), **odd}) | _raw_rows | json_values)
def test_any_json_is_either_coerced_or_rejected(raw: Any) -> None:
    coerced, reason = _coerce_or_reason(raw)
    if coerced is None:
        assert 0 < len(reason) < 400
        return
    assert None not in coerced.values()
    assert _coerced(coerced) == coerced


@given(st.dictionaries(_columns, st.text() | st.integers() | st.booleans() | st.none(), max_size=6))
def test_coercing_a_coerced_row_changes_nothing(odd: dict[str, Any]) -> None:
    coerced, _ = _coerce_or_reason({**row(1), **odd})
    assert coerced is None or _coerced(coerced) == coerced


def test_derived_columns_are_filled_in() -> None:
    coerced = _coerced(row(7, message_created_at="2026-11-15T23:30:00-02:00"))
    assert coerced["gateway_id"] == _GATEWAY
    assert coerced["schema_version"] == 7
    assert coerced["part_id"] == "message-7#0"
    assert coerced["date"] == "2026-11-16"


@pytest.mark.parametrize(
    ("column", "value"),
    [("gateway_id", "gw-2"), ("schema_version", 6), ("part_id", "message-1#1"), ("date", "2026-11-14")],
)
def test_derived_columns_must_match_the_other_columns(column: str, value: Any) -> None:
    with pytest.raises(RowRejected, match=f"column {column}: .* contradicts"):
        _coerced(row(1, **{column: value}))


@pytest.mark.parametrize(
    "name",
    ["session_id", "provider", "conversation_started_at", "message_id", "message_index", "message_created_at", "role"],
)
def test_a_row_without_a_required_column_is_rejected(name: str) -> None:
    for missing in (row(1, **{name: None}), {key: value for key, value in row(1).items() if key != name}):
        with pytest.raises(RowRejected, match=f"column {name} is required"):
            _coerced(missing)


def test_an_unknown_column_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(RowRejected, match=r"unknown column 'sesion_id'\. Did you mean session_id\?"):
        _coerced(row(1, sesion_id="x"))


@pytest.mark.parametrize("name", INTERNAL)
def test_internal_columns_cannot_be_sent(name: str) -> None:
    with pytest.raises(RowRejected, match=f"column {name} is set by the lake"):
        _coerced(row(1, **{name: 1}))


@pytest.mark.parametrize("raw", [None, [], "text", 1, 1.5, True])
def test_a_row_must_be_a_json_object(raw: Any) -> None:
    with pytest.raises(RowRejected, match="a row must be a JSON object"):
        _coerced(raw)


def test_a_rejection_reason_is_short_for_any_input() -> None:
    endless = "x" * 1_000_000
    for raw in (row(1, part_id=endless), row(1, message_index=endless), row(1, **{endless: 1})):
        with pytest.raises(RowRejected) as refused:
            _coerced(raw)
        assert len(str(refused.value)) < 400
