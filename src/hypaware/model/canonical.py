"""Canonical JSON and the hashes made of it: one value, one text, whatever order its keys came in.

Canonical text is UTF-8 with sorted keys and no white space. Whole numbers keep every digit, also beyond 64 bits.
What JSON cannot say (NaN, infinities, lone surrogates, keys that are not text) is refused, never bent, and so is what
is nested too deeply: the limit is a number, so that every process draws it at the same place.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, NoReturn

import orjson

# orjson reads a whole number beyond 64 bits as a float; one of 19 digits or more may be such a number. With all digits
# made equal, and everything that can stand before a number, such a number is one search for bytes, a tenth of the time
# that a pattern takes. Ids and fractions of as many digits have something else before them.
_ALIKE = bytes.maketrans(b"0123456789:,[- \t\n\r", b"0" * 10 + b":" * 8)
_LONG_NUMBER = b"0" * 19
_BEGINS_A_LONG_NUMBER = b":" + _LONG_NUMBER
_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
# Containers within containers; as many as orjson writes.
MAX_DEPTH = 254


def parse(data: bytes | str) -> Any:
    """Reads JSON; raises ValueError with a reason for anything that is not exactly JSON."""
    raw = data.encode("utf-8", "strict") if isinstance(data, str) else data
    value = orjson.loads(raw)
    alike = raw.translate(_ALIKE)
    if _BEGINS_A_LONG_NUMBER in alike or alike.startswith(_LONG_NUMBER):
        return json.loads(raw, parse_constant=_refuse_constant)
    return value


def text(value: Any) -> str:
    """The canonical text of a JSON value; raises ValueError if it has none."""
    try:
        raw = orjson.dumps(value, option=_OPTIONS)
    except TypeError as refused:
        return _exact_text(value, refused)
    # orjson writes NaN and the infinities as null; only a text with a null in it can hide one.
    if b"null" in raw:
        _refuse_nan(value)
    return raw.decode()


def row_id(row: dict[str, Any]) -> str:
    """The id of a coerced row: sha256 over the columns that are not null, so that adding a column changes none."""
    return row_id_and_text(row)[0]


def row_id_and_text(row: dict[str, Any]) -> tuple[str, bytes]:
    """The id, and the JSON that it is the hash of."""
    raw = orjson.dumps(row, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(raw).hexdigest(), raw


def _exact_text(value: Any, refused: TypeError) -> str:
    """The slow way, for whole numbers beyond 64 bits; anything else that orjson refused is refused here too."""
    _refuse_other_types(value, refused)
    try:
        written = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        written.encode("utf-8", "strict")
    except UnicodeEncodeError as error:
        raise ValueError("text holds a lone surrogate, which UTF-8 cannot store") from error
    return written


def _refuse_other_types(value: Any, refused: TypeError) -> None:
    waiting = [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        if isinstance(item, dict | list | tuple) and depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        if isinstance(item, dict):
            if not all(isinstance(key, str) for key in item):
                raise ValueError(f"not a JSON value: {refused}")
            waiting.extend((each, depth + 1) for each in item.values())
        elif isinstance(item, list | tuple):
            waiting.extend((each, depth + 1) for each in item)
        elif item is not None and not isinstance(item, str | int | float | bool):
            raise ValueError(f"not a JSON value: {refused}")


def _refuse_nan(value: Any) -> None:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, float) and not math.isfinite(item):
            raise ValueError(f"{item} is not a JSON number")
        if isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            waiting.extend(item)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
