"""Coercion of single values."""

from __future__ import annotations

import enum
import json
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.model import canonical
from hypaware.model.columns import BIGINT_RANGE, INT_RANGE, ColumnType, get_coercer
from tests.support.strategies import json_values


class _Code(enum.IntEnum):
    OK = 200


class _NoOffset(tzinfo):
    def utcoffset(self, _moment: datetime | None) -> None:
        return None

    dst = tzname = utcoffset


def _coerce_or_reason(kind: ColumnType, value: Any) -> tuple[Any, str]:
    """Return the coerced value and an empty reason, or None and the reason."""
    try:
        return get_coercer(kind)(value), ""
    except ValueError as reason:
        return None, str(reason)


@pytest.mark.parametrize(
    ("kind", "value", "coerced"),
    [
        (ColumnType.STRING, "", ""),
        (ColumnType.STRING, "Grüße \x00 🐍", "Grüße \x00 🐍"),
        (ColumnType.INT, INT_RANGE.start, INT_RANGE.start),
        (ColumnType.INT, "2147483647", INT_RANGE.stop - 1),
        (ColumnType.INT, _Code.OK, 200),
        (ColumnType.BIGINT, "9223372036854775807", BIGINT_RANGE.stop - 1),
        (ColumnType.BIGINT, "-9223372036854775808", BIGINT_RANGE.start),
        (ColumnType.BOOLEAN, False, False),
        (ColumnType.TIMESTAMP, "2026-11-15T08:15:08.2561234+01:00", "2026-11-15T07:15:08.256123Z"),
        (ColumnType.TIMESTAMP, "2026-11-15T07:15:08Z", "2026-11-15T07:15:08.000000Z"),
        (ColumnType.TIMESTAMP, "0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000000Z"),
        (ColumnType.TIMESTAMP, "9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999Z"),
        (
            ColumnType.TIMESTAMP,
            datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=-2))),
            "2026-01-01T02:00:00.000000Z",
        ),
        (ColumnType.JSON, {"b": 1, "a": [True, None]}, '{"a":[true,null],"b":1}'),
        (ColumnType.JSON, ' {"b": 1, "a": 2} ', '{"a":2,"b":1}'),
        (ColumnType.JSON, "plain words", '"plain words"'),
        (ColumnType.JSON, "1e400", '"1e400"'),
        (ColumnType.JSON, "NaN", '"NaN"'),
        (ColumnType.JSON, "12345678901234567890123", "12345678901234567890123"),
        (ColumnType.JSON, False, "false"),
    ],
)
def test_a_value_becomes_the_plain_form_of_its_type(kind: ColumnType, value: Any, coerced: Any) -> None:
    found = get_coercer(kind)(value)
    assert (found, type(found)) == (coerced, type(coerced))


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (ColumnType.STRING, 1, "expected text, got 1"),
        (ColumnType.STRING, "\ud800", "lone surrogate"),
        (ColumnType.INT, 2**31, "2147483648 is outside"),
        (ColumnType.INT, 1.0, "expected a whole number, got 1.0"),
        (ColumnType.INT, True, "expected a whole number, got True"),
        (ColumnType.INT, "12.5", "expected a whole number"),
        (ColumnType.INT, "١٢", "expected a whole number"),
        (ColumnType.BIGINT, 2**63, "is outside"),
        (ColumnType.BIGINT, "-9223372036854775809", "is outside"),
        (ColumnType.BOOLEAN, 1, "expected true or false, got 1"),
        (ColumnType.BOOLEAN, "true", "expected true or false"),
        (ColumnType.TIMESTAMP, 1_700_000_000, "expected an ISO 8601 time"),
        (ColumnType.TIMESTAMP, "yesterday", "expected an ISO 8601 time"),
        (ColumnType.TIMESTAMP, "2026-11-15", "has no time zone"),
        (ColumnType.TIMESTAMP, "2026-11-15T07:15:08", "has no time zone"),
        (ColumnType.TIMESTAMP, datetime(2026, 1, 1, tzinfo=_NoOffset()), "has no time zone"),
        (ColumnType.TIMESTAMP, "0000-01-01T00:00:00Z", "expected an ISO 8601 time"),
        (ColumnType.TIMESTAMP, "9999-12-31T23:59:59-01:00", "outside the years 1 to 9999"),
        (ColumnType.TIMESTAMP, "0001-01-01T00:00:00+01:00", "outside the years 1 to 9999"),
        (ColumnType.TIMESTAMP, "10000-01-01T00:00:00Z", "expected an ISO 8601 time"),
        (ColumnType.JSON, {1: 2}, "not a JSON value"),
        (ColumnType.JSON, float("nan"), "nan is not a JSON number"),
        (ColumnType.JSON, "\ud800", "surrogate|not a JSON value"),
    ],
)
@pytest.mark.hazard(60)
def test_a_value_of_another_type_is_rejected_with_a_reason(kind: ColumnType, value: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        get_coercer(kind)(value)


@pytest.mark.hazard(60)
def test_a_number_too_long_to_convert_is_rejected() -> None:
    with pytest.raises(ValueError, match="too large to show is outside"):
        get_coercer(ColumnType.BIGINT)(10**5_000)


@pytest.mark.hazard(60)
@pytest.mark.parametrize("kind", ColumnType)
@given(value=json_values.filter(lambda value: value is not None))
def test_coercion_is_idempotent_and_raises_only_value_errors(kind: ColumnType, value: Any) -> None:
    coerced, reason = _coerce_or_reason(kind, value)
    assert len(reason) < 200
    assert reason or get_coercer(kind)(coerced) == coerced


@given(json_values)
def test_a_json_column_accepts_a_value_or_its_text(value: Any) -> None:
    text = json.dumps(value)
    if value is not None and not isinstance(value, str):
        assert get_coercer(ColumnType.JSON)(value) == get_coercer(ColumnType.JSON)(text)
    assert canonical.loads(get_coercer(ColumnType.JSON)(text)) == value


@pytest.mark.hazard(60)
@given(st.text(alphabet='[]{}",:0123456789eE+-.\\ud8 ntf', max_size=40) | st.text(max_size=40))
def test_a_json_column_accepts_any_text(text: str) -> None:
    """A tool's input may be plain text that looks almost like JSON."""
    stored = get_coercer(ColumnType.JSON)(text)
    assert get_coercer(ColumnType.JSON)(stored) == stored


@pytest.mark.hazard(60)
@pytest.mark.parametrize("depth", [300, 1_000, 100_000])
def test_text_that_is_nested_too_deeply_to_be_json_is_kept_as_text(depth: int) -> None:
    text = "[" * depth + "]" * depth
    assert canonical.loads(get_coercer(ColumnType.JSON)(text)) == text


@given(st.datetimes(timezones=st.timezones()))
def test_times_keep_their_instant(moment: datetime) -> None:
    written, reason = _coerce_or_reason(ColumnType.TIMESTAMP, moment)
    assert "outside the years" in reason or datetime.fromisoformat(written) == moment.astimezone(UTC)
