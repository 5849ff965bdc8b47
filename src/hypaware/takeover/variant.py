"""Parquet's VARIANT as plain JSON values: `metadata` holds the names, `value` the tree.

A value begins with a byte: two bits say what it is (primitive, short text, object, array), six bits more about it.
What JSON has no form for is written as text: dates and times in ISO 8601, binary as base64, a UUID as it is.
"""

from __future__ import annotations

import base64
import struct
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

from hypaware.model import canonical

_PRIMITIVE, _SHORT_TEXT, _OBJECT, _ARRAY = range(4)
_CACHED_BYTES = 4096
_EPOCH = datetime(1970, 1, 1)


def decode(metadata: bytes, value: bytes) -> Any:
    """The JSON value. Shared between rows that hold the same one: nobody may change it. ValueError if malformed."""
    return _remembered(metadata, value) if len(value) <= _CACHED_BYTES else _decode(metadata, value)


def _decode(metadata: bytes, value: bytes) -> Any:
    try:
        return _value(value, 0, _names(metadata), 0)
    except (IndexError, struct.error, KeyError, OverflowError, UnicodeDecodeError) as error:
        raise ValueError(f"a malformed VARIANT ({type(error).__name__})") from error


# Most of a cache's VARIANTs repeat: null, an empty list, the attributes of a session.
_remembered = lru_cache(maxsize=2048)(_decode)


@lru_cache(maxsize=512)
def _names(metadata: bytes) -> tuple[str, ...]:
    header = metadata[0]
    if header & 0x0F != 1:
        raise ValueError(f"a VARIANT of version {header & 0x0F}, which nobody knows")
    width = (header >> 6) + 1
    count = _number(metadata, 1, width)
    start = 1 + width
    ends = [_number(metadata, start + place * width, width) for place in range(count + 1)]
    texts = start + (count + 1) * width
    if texts + ends[-1] > len(metadata):
        raise IndexError
    return tuple(metadata[texts + ends[n] : texts + ends[n + 1]].decode() for n in range(count))


def _value(data: bytes, at: int, names: tuple[str, ...], depth: int) -> Any:
    if depth > canonical.MAX_DEPTH:
        raise ValueError("nested too deeply")
    kind, more = data[at] & 3, data[at] >> 2
    if kind == _SHORT_TEXT:
        return _slice(data, at + 1, more).decode()
    if kind == _PRIMITIVE:
        return _PRIMITIVES[more](data, at + 1)
    offset_width = (more & 3) + 1
    id_width = ((more >> 2) & 3) + 1 if kind == _OBJECT else 0
    count_width = 4 if (more >> 4 if kind == _OBJECT else more >> 2) & 1 else 1
    count = _number(data, at + 1, count_width)
    ids = at + 1 + count_width
    offsets = ids + count * id_width
    values = offsets + (count + 1) * offset_width
    found = [
        _value(data, values + _number(data, offsets + place * offset_width, offset_width), names, depth + 1)
        for place in range(count)
    ]
    if kind == _ARRAY:
        return found
    return {names[_number(data, ids + place * id_width, id_width)]: each for place, each in enumerate(found)}


def _slice(data: bytes, at: int, length: int) -> bytes:
    if at + length > len(data):
        raise IndexError
    return data[at : at + length]


def _number(data: bytes, at: int, width: int) -> int:
    return int.from_bytes(_slice(data, at, width), "little")


def _signed(width: int) -> Callable[[bytes, int], int]:
    return lambda data, at: int.from_bytes(_slice(data, at, width), "little", signed=True)


def _floating(form: str) -> Callable[[bytes, int], float]:
    return lambda data, at: float(struct.unpack_from(form, data, at)[0])


def _decimal(width: int) -> Callable[[bytes, int], int | float]:
    def read(data: bytes, at: int) -> int | float:
        exact = Decimal(_signed(width)(data, at + 1)).scaleb(-data[at])
        if exact == exact.to_integral_value():
            return int(exact)
        near = float(exact)
        if Decimal(repr(near)) != exact:
            raise ValueError(f"the decimal {exact} has more digits than a JSON number keeps")
        return near

    return read


def _moment(zone: str, per_second: int) -> Callable[[bytes, int], str]:
    def read(data: bytes, at: int) -> str:
        seconds, rest = divmod(_signed(8)(data, at), per_second)
        digits = len(str(per_second)) - 1
        return f"{(_EPOCH + timedelta(seconds=seconds)).isoformat()}.{rest:0{digits}}{zone}"

    return read


def _day(data: bytes, at: int) -> str:
    return (date(1970, 1, 1) + timedelta(days=_signed(4)(data, at))).isoformat()


def _time(data: bytes, at: int) -> str:
    moment = datetime.combine(date(1970, 1, 1), time(), UTC) + timedelta(microseconds=_signed(8)(data, at))
    return moment.time().isoformat("microseconds")


def _long_bytes(data: bytes, at: int) -> bytes:
    return _slice(data, at + 4, _number(data, at, 4))


_PRIMITIVES: dict[int, Callable[[bytes, int], Any]] = {
    0: lambda data, at: None,
    1: lambda data, at: True,
    2: lambda data, at: False,
    3: _signed(1),
    4: _signed(2),
    5: _signed(4),
    6: _signed(8),
    7: _floating("<d"),
    8: _decimal(4),
    9: _decimal(8),
    10: _decimal(16),
    11: _day,
    12: _moment("Z", 1_000_000),
    13: _moment("", 1_000_000),
    14: _floating("<f"),
    15: lambda data, at: base64.b64encode(_long_bytes(data, at)).decode(),
    16: lambda data, at: _long_bytes(data, at).decode(),
    17: _time,
    18: _moment("Z", 1_000_000_000),
    19: _moment("", 1_000_000_000),
    20: lambda data, at: str(uuid.UUID(bytes=_slice(data, at, 16))),
}
