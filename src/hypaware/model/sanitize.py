"""Make values from outside storable in a column: keep, repair or drop them, and remove base64 data.

Nothing here raises. Every value that is repaired or dropped is counted as `bad_<column>`. A data URI keeps its media
type and loses its payload: `data:image/png;base64,<stripped>`. The payload of a base64 source (`{"type": "base64",
"data": …}`) and other long base64 in the fields that clients use for it is removed in the same way.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

from hypaware.model import canonical
from hypaware.model.columns import ColumnType, get_coercer
from hypaware.model.datasets import Row

STRIPPED = "<stripped>"
_URI = re.compile(r"""data:([^\s,;"'<>]{0,127}(?:;[^\s,;"'<>]{1,127}){0,4});base64,[A-Za-z0-9+/=_%-]+""")
_PAYLOAD = re.compile(r"[A-Za-z0-9+/=_\s-]*")
# Shorter values are names, hashes and test images.
_MIN_PAYLOAD = 512
_coerce_timestamp, _coerce_json = get_coercer(ColumnType.TIMESTAMP), get_coercer(ColumnType.JSON)
# The usual form, with days 01 to 28: such a timestamp is valid without a calendar check.
_PLAIN_TIMESTAMP = re.compile(
    r"(?!0000)[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
    r"\.(?:[0-9]{3}(Z)|[0-9]{6}Z)"
)
# Python refuses to convert larger integers to text.
_MAX_BITS = 13_000


def strip_text(text: str) -> str:
    return _URI.sub(rf"data:\1;base64,{STRIPPED}", text) if ";base64," in text else text


def may_contain_base64(json_text: str) -> bool:
    """Return whether `strip_json` could find anything, from a quick look at the value's JSON text."""
    return "base64" in json_text or "mimeType" in json_text


def strip_json(value: Any) -> Any:
    """Return a copy of the value without base64 data. Its nesting must be within `canonical.MAX_DEPTH`."""
    if isinstance(value, str):
        return strip_text(value)
    if isinstance(value, list):
        return [strip_json(item) for item in value]
    if isinstance(value, dict):
        return {key: STRIPPED if _is_payload(value, key, item) else strip_json(item) for key, item in value.items()}
    return value


def _is_payload(holder: dict[str, Any], key: str, item: Any) -> bool:
    if not isinstance(item, str) or key not in ("data", "base64"):
        return False
    if key == "data":
        if holder.get("type") == "base64":
            return True
        if "mimeType" not in holder and "media_type" not in holder:
            return False
    return len(item) > _MIN_PAYLOAD and _PAYLOAD.fullmatch(item) is not None


def to_utc_text(value: Any) -> str | None:
    """Return a timestamp in canonical form, or None unless it is ISO 8601 with a time zone in the years 1 to 9999."""
    if not isinstance(value, str):
        return None
    if plain := _PLAIN_TIMESTAMP.fullmatch(value):
        return value if plain.lastindex is None else value[:-1] + "000Z"
    try:
        return str(_coerce_timestamp(value))
    except ValueError:
        return None


def sanitize_text(value: Any, column: str, skipped: Counter[str]) -> str | None:
    if type(value) is str and (value.isascii() or is_encodable(value)):
        return value
    if value is not None:
        skipped[f"bad_{column}"] += 1
    return _replace_surrogates(value) if type(value) is str else None


def sanitize_flag(value: Any, column: str, skipped: Counter[str]) -> bool | None:
    if value is None or type(value) is bool:
        return value
    skipped[f"bad_{column}"] += 1
    return None


def sanitize_json(value: Any, column: str, skipped: Counter[str]) -> str:
    """Return the canonical text of a JSON value without base64 data; text that contains JSON is parsed."""
    try:
        written: str = _coerce_json(value)
    except ValueError:
        skipped[f"bad_{column}"] += 1
        value = repair_json(value)
        written = _coerce_json(value)
    return _coerce_json(strip_json(value)) if may_contain_base64(written) else written


def put_text(row: Row, column: str, value: Any, skipped: Counter[str]) -> None:
    """Set the column unless the value is None or unusable."""
    if type(value) is str and value.isascii():
        row[column] = value
    elif value is not None and (storable_text := sanitize_text(value, column, skipped)) is not None:
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


def repair_json(value: Any, depth: int = canonical.MAX_DEPTH) -> Any:
    """Replace values that JSON cannot represent or that nest too deeply by null, and lone surrogates by U+FFFD."""
    if isinstance(value, str):
        return _replace_surrogates(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= _MAX_BITS else None
    if depth == 0:
        return None
    if isinstance(value, dict):
        return {
            _replace_surrogates(key): repair_json(item, depth - 1)
            for key, item in value.items()
            if isinstance(key, str)
        }
    if isinstance(value, list | tuple):
        return [repair_json(item, depth - 1) for item in value]
    return None


def _replace_surrogates(value: str) -> str:
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
