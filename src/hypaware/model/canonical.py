"""Canonical JSON, and row ids computed from it.

Canonical text is UTF-8 with sorted keys and no white space, so equal values have equal texts. Integers keep every
digit, even beyond 64 bits. Values that JSON cannot represent (NaN, infinities, lone surrogates, keys that are not
text) and values nested more deeply than `MAX_DEPTH` raise ValueError. The depth limit is a constant, so every process
applies the same one.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, NoReturn

import orjson

# orjson reads an integer beyond 64 bits as a float, so numbers of 19 digits or more need a second look. Mapping all
# digits to one byte, and everything that can precede a number to another, finds them with one bytes search, in a tenth
# of the time of a regular expression. Ids and fractions with as many digits are preceded by other bytes.
_NORMALIZE_DIGITS = bytes.maketrans(b"0123456789:,[- \t\n\r", b"0" * 10 + b":" * 8)
_LONG_NUMBER = b"0" * 19
_LONG_NUMBER_START = b":" + _LONG_NUMBER
_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
# Nested containers; the same limit as orjson's.
MAX_DEPTH = 254


def loads(data: bytes | str) -> Any:
    """Parse JSON; raise ValueError with a reason for anything that is not strictly JSON."""
    raw = data.encode("utf-8", "strict") if isinstance(data, str) else data
    value = orjson.loads(raw)
    return json.loads(raw, parse_constant=_reject_constant) if may_hold_long_number(raw) else value


def may_hold_long_number(raw: bytes) -> bool:
    """Return whether `orjson.loads` may read a number in this text, or in any of its lines, unlike `loads`."""
    normalized = raw.translate(_NORMALIZE_DIGITS)
    return _LONG_NUMBER_START in normalized or normalized.startswith(_LONG_NUMBER)


def dumps(value: Any) -> str:
    """Return the canonical text of a JSON value; raise ValueError if it has none."""
    try:
        raw = orjson.dumps(value, option=_OPTIONS)
    except TypeError as refused:
        # Serialize integers beyond 64 bits slowly; anything else that orjson refuses is an error.
        _reject_other_types(value, refused)
        try:
            text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            text.encode("utf-8", "strict")
        except UnicodeEncodeError as error:
            raise ValueError("text holds a lone surrogate, which UTF-8 cannot store") from error
        return text
    # orjson writes NaN and infinities as null, so only a text that contains null can hide one.
    if b"null" in raw:
        _reject_nan(value)
    return raw.decode()


def compute_row_id(row: dict[str, Any]) -> str:
    """Return the id of a coerced row: SHA-256 over its non-null columns, so that adding a column changes no id."""
    return serialize_row(row)[0]


def serialize_row(row: dict[str, Any]) -> tuple[str, bytes]:
    """Return the row id and the JSON text that it is the hash of."""
    raw = orjson.dumps(row, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(raw).hexdigest(), raw


def _reject_other_types(value: Any, refused: TypeError) -> None:
    pending = [(value, 1)]
    while pending:
        item, depth = pending.pop()
        if isinstance(item, dict | list | tuple) and depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        if isinstance(item, dict):
            if not all(isinstance(key, str) for key in item):
                raise ValueError(f"not a JSON value: {refused}")
            pending.extend((each, depth + 1) for each in item.values())
        elif isinstance(item, list | tuple):
            pending.extend((each, depth + 1) for each in item)
        elif item is not None and not isinstance(item, str | int | float | bool):
            raise ValueError(f"not a JSON value: {refused}")


def _reject_nan(value: Any) -> None:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, float) and not math.isfinite(item):
            raise ValueError(f"{item} is not a JSON number")
        if isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, list | tuple):
            pending.extend(item)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
