"""Column types, and the coercion of a producer's value into one of them.

A coerced value is plain JSON: text, a number or a boolean. A timestamp is UTC text with microseconds
(`2026-11-15T07:15:08.256000Z`); a JSON column is canonical JSON text. Coercing a coerced value changes nothing.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache, partial
from typing import Any

from hypaware.model import canonical

INT_RANGE = range(-(2**31), 2**31)
BIGINT_RANGE = range(-(2**63), 2**63)
# JavaScript's timestamp form, which lacks three zeros, and the canonical form itself.
_TIMESTAMP_TEXT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}([0-9]{3})?Z", re.ASCII)
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}")


class ColumnType(StrEnum):
    STRING = "STRING"
    INT = "INT"
    BIGINT = "BIGINT"
    DOUBLE = "DOUBLE"
    BOOLEAN = "BOOLEAN"
    TIMESTAMP = "TIMESTAMP"
    JSON = "JSON"


@dataclass(frozen=True)
class Column:
    name: str
    type: ColumnType
    about: str
    required: bool = False
    distinct: bool = False
    """Most rows have a value of their own, so a dictionary would make a data file larger and slower to write."""


def get_coercer(type_: ColumnType) -> Callable[[Any], Any]:
    """Return the function that coerces a value (never None) to this type or raises ValueError with the reason."""
    return _COERCERS[type_]


def format_timestamp(moment: datetime) -> str:
    """Return the canonical text of a time: UTC with microseconds and Z."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _coerce_string(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, got {preview(value)}")
    try:
        if not value.isascii():
            value.encode("utf-8", "strict")
    except UnicodeEncodeError:
        raise ValueError("text holds a lone surrogate, which UTF-8 cannot store") from None
    return value


def _coerce_integer(value: Any, allowed: range) -> int:
    if type(value) is int and value in allowed:
        return value
    # An integer beyond 2^53 is sent as text, so that JavaScript readers keep its digits.
    if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"expected a whole number, got {preview(value)}")
    if not allowed.start <= value < allowed.stop:
        raise ValueError(f"{preview(value)} is outside {allowed.start}..{allowed.stop - 1}")
    return int(value)


def _coerce_double(value: Any) -> float:
    """Return a finite number: JSON, in which rows are stored and delivered, has no NaN and no infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number, got {preview(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{preview(value)} is not a finite number")
    return number


def _coerce_boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, got {preview(value)}")
    return value


def _coerce_timestamp(value: Any) -> str:
    if isinstance(value, str):
        return _coerce_timestamp_text(value)
    if isinstance(value, datetime):
        return _format_utc(value, value)
    raise ValueError(f"expected an ISO 8601 time with a time zone, got {preview(value)}")


@lru_cache(maxsize=4096)
def _coerce_timestamp_text(value: str) -> str:
    """Cached: the rows of a session share its start time, and the parts of a message share its time."""
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(f"expected an ISO 8601 time with a time zone, got {preview(value)}") from None
    if written := _TIMESTAMP_TEXT.fullmatch(value):
        return value if written[1] else f"{value[:-1]}000Z"
    return _format_utc(moment, value)


def is_canonical_timestamp(text: str) -> bool:
    try:
        return _coerce_timestamp_text(text) == text
    except ValueError:
        return False


def _format_utc(moment: datetime, value: object) -> str:
    if moment.utcoffset() is None:
        raise ValueError(f"time {preview(value)} has no time zone; add Z or an offset")
    try:
        return format_timestamp(moment)
    except OverflowError:
        raise ValueError(f"time {preview(value)} is outside the years 1 to 9999 in UTC") from None


def _coerce_json(value: Any) -> str:
    """Parse text that contains JSON; treat other text as a JSON string (a tool's plain-text input)."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError, RecursionError):
            return canonical.dumps(canonical.loads(value))
    return canonical.dumps(value)


def preview(value: Any) -> str:
    """Return a short, printable form of any value, for messages."""
    try:
        text = ascii(value[:60] if isinstance(value, str) else value)
    except (RecursionError, ValueError):
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= 60 else text[:57] + "..."


_COERCERS: dict[ColumnType, Callable[[Any], Any]] = {
    ColumnType.STRING: _coerce_string,
    ColumnType.INT: partial(_coerce_integer, allowed=INT_RANGE),
    ColumnType.BIGINT: partial(_coerce_integer, allowed=BIGINT_RANGE),
    ColumnType.DOUBLE: _coerce_double,
    ColumnType.BOOLEAN: _coerce_boolean,
    ColumnType.TIMESTAMP: _coerce_timestamp,
    ColumnType.JSON: _coerce_json,
}
