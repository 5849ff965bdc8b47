"""Make values from outside storable in a column: keep, repair or drop them.

Nothing here raises. Every value that is repaired or dropped is counted as `bad_<column>`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

from hypaware.model import canonical
from hypaware.model.columns import Type, coercer
from hypaware.model.data_uris import may_hold_base64, strip_json, strip_text
from hypaware.model.datasets import Row

_timestamp, _json = coercer(Type.TIMESTAMP), coercer(Type.JSON)
# The usual form, with days 01 to 28: such a timestamp is valid without a calendar check.
_PLAIN_TIMESTAMP = re.compile(
    r"(?!0000)[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
    r"\.(?:[0-9]{3}(Z)|[0-9]{6}Z)"
)
# Python refuses to convert larger integers to text.
_MAX_BITS = 13_000


def utc_text(value: Any) -> str | None:
    """Return a timestamp in canonical form, or None unless it is ISO 8601 with a time zone in the years 1 to 9999."""
    if not isinstance(value, str):
        return None
    if plain := _PLAIN_TIMESTAMP.fullmatch(value):
        return value if plain.lastindex is None else value[:-1] + "000Z"
    try:
        timestamp: str = _timestamp(value)
    except ValueError:
        return None
    return timestamp


def text(value: Any, column: str, skipped: Counter[str]) -> str | None:
    if type(value) is str:
        return value if value.isascii() else _encodable(value, column, skipped)
    if value is not None:
        skipped[f"bad_{column}"] += 1
    return None


def flag(value: Any, column: str, skipped: Counter[str]) -> bool | None:
    if value is None or type(value) is bool:
        return value
    skipped[f"bad_{column}"] += 1
    return None


def json_text(value: Any, column: str, skipped: Counter[str]) -> str:
    """Return the canonical text of a JSON value without base64 data; text that contains JSON is parsed."""
    try:
        written: str = _json(value)
    except ValueError:
        skipped[f"bad_{column}"] += 1
        value = mended(value)
        written = _json(value)
    return _json(strip_json(value)) if may_hold_base64(written) else written


def put_text(row: Row, column: str, value: Any, skipped: Counter[str]) -> None:
    """Set the column unless the value is None or unusable."""
    if type(value) is str and value.isascii():
        row[column] = value
    elif value is not None and (storable_text := text(value, column, skipped)) is not None:
        row[column] = storable_text


def put_long_text(row: Row, column: str, value: Any, skipped: Counter[str]) -> None:
    """Set a column to text that may contain data URIs, without their payloads."""
    put_text(row, column, strip_text(value) if type(value) is str else value, skipped)


def is_encodable(value: str) -> bool:
    """Return whether UTF-8 can encode the text; lone surrogates cannot be encoded."""
    try:
        value.encode("utf-8", "strict")
    except UnicodeEncodeError:
        return False
    return True


def mended(value: Any, depth: int = canonical.MAX_DEPTH) -> Any:
    """Replace values that JSON cannot represent or that nest too deeply by null, and lone surrogates by U+FFFD."""
    if isinstance(value, str):
        return _whole_characters(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= _MAX_BITS else None
    if depth == 0:
        return None
    if isinstance(value, dict):
        return {_whole_characters(key): mended(item, depth - 1) for key, item in value.items() if isinstance(key, str)}
    if isinstance(value, list | tuple):
        return [mended(item, depth - 1) for item in value]
    return None


def _encodable(value: str, column: str, skipped: Counter[str]) -> str:
    if is_encodable(value):
        return value
    skipped[f"bad_{column}"] += 1
    return _whole_characters(value)


def _whole_characters(value: str) -> str:
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
