"""Decoding Parquet's VARIANT into JSON values: `metadata` holds the names, `value` the tree.

The first byte of a value holds its type in two bits (primitive, short string, object, array) and further flags in six.
Types that JSON lacks become text: dates and times in ISO 8601, binary as base64, a UUID in its usual form.
"""

from __future__ import annotations

import base64
import struct
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

from hypaware.model import canonical

_PRIMITIVE, _SHORT_TEXT, _OBJECT, _ARRAY = range(4)
_CACHED_BYTES = 4096
_EPOCH = datetime(1970, 1, 1)


def decode_variant(metadata: bytes, value: bytes) -> Any:
    """Return the JSON value; raise ValueError if it is malformed. Equal values are shared between rows: do not modify
    them."""
    return _decode_cached(metadata, value) if len(value) <= _CACHED_BYTES else _decode(metadata, value)


def _decode(metadata: bytes, value: bytes) -> Any:
    try:
        return _value(value, 0, _names(metadata), 0)
    except (IndexError, struct.error, KeyError, OverflowError, UnicodeDecodeError) as error:
        raise ValueError(f"malformed VARIANT ({type(error).__name__})") from error


# Most VARIANTs of a cache repeat: null, an empty list, the attributes of a session.
_decode_cached = lru_cache(maxsize=2048)(_decode)


@lru_cache(maxsize=512)
def _names(metadata: bytes) -> tuple[str, ...]:
    header = metadata[0]
    if header & 0x0F != 1:
        raise ValueError(f"VARIANT version {header & 0x0F} is not supported")
    width = (header >> 6) + 1
    count = _number(metadata, 1, width)
    start = 1 + width
    ends = [_number(metadata, start + index * width, width) for index in range(count + 1)]
    texts = start + (count + 1) * width
    if texts + ends[-1] > len(metadata):
        raise IndexError
    return tuple(metadata[texts + ends[n] : texts + ends[n + 1]].decode() for n in range(count))


def _value(data: bytes, offset: int, names: tuple[str, ...], depth: int) -> Any:
    if depth > canonical.MAX_DEPTH:
        raise ValueError("nested too deeply")
    type_, flags = data[offset] & 3, data[offset] >> 2
    if type_ == _SHORT_TEXT:
        return _slice(data, offset + 1, flags).decode()
    if type_ == _PRIMITIVE:
        return _PRIMITIVES[flags](data, offset + 1)
    offset_width = (flags & 3) + 1
    id_width = ((flags >> 2) & 3) + 1 if type_ == _OBJECT else 0
    count_width = 4 if (flags >> 4 if type_ == _OBJECT else flags >> 2) & 1 else 1
    count = _number(data, offset + 1, count_width)
    ids = offset + 1 + count_width
    offsets = ids + count * id_width
    values = offsets + (count + 1) * offset_width
    found = [
        _value(data, values + _number(data, offsets + index * offset_width, offset_width), names, depth + 1)
        for index in range(count)
    ]
    if type_ == _ARRAY:
        return found
    return {names[_number(data, ids + index * id_width, id_width)]: each for index, each in enumerate(found)}


def _slice(data: bytes, offset: int, length: int) -> bytes:
    if offset + length > len(data):
        raise IndexError
    return data[offset : offset + length]


def _number(data: bytes, offset: int, width: int) -> int:
    return int.from_bytes(_slice(data, offset, width), "little")


def _signed(width: int) -> Callable[[bytes, int], int]:
    return lambda data, offset: int.from_bytes(_slice(data, offset, width), "little", signed=True)


def _decimal(width: int) -> Callable[[bytes, int], int | float]:
    def read(data: bytes, offset: int) -> int | float:
        decimal = Decimal(_signed(width)(data, offset + 1)).scaleb(-data[offset])
        if decimal == decimal.to_integral_value():
            return int(decimal)
        number = float(decimal)
        if Decimal(repr(number)) != decimal:
            raise ValueError(f"the decimal {decimal} has more digits than a JSON number can hold")
        return number

    return read


def _timestamp(zone: str, per_second: int) -> Callable[[bytes, int], str]:
    def read(data: bytes, offset: int) -> str:
        seconds, rest = divmod(_signed(8)(data, offset), per_second)
        digits = len(str(per_second)) - 1
        return f"{(_EPOCH + timedelta(seconds=seconds)).isoformat()}.{rest:0{digits}}{zone}"

    return read


def _long_bytes(data: bytes, offset: int) -> bytes:
    return _slice(data, offset + 4, _number(data, offset, 4))


_PRIMITIVES: dict[int, Callable[[bytes, int], Any]] = {
    0: lambda data, offset: None,
    1: lambda data, offset: True,
    2: lambda data, offset: False,
    3: _signed(1),
    4: _signed(2),
    5: _signed(4),
    6: _signed(8),
    7: lambda data, offset: float(struct.unpack_from("<d", data, offset)[0]),
    8: _decimal(4),
    9: _decimal(8),
    10: _decimal(16),
    11: lambda data, offset: (_EPOCH + timedelta(days=_signed(4)(data, offset))).date().isoformat(),
    12: _timestamp("Z", 1_000_000),
    13: _timestamp("", 1_000_000),
    14: lambda data, offset: float(struct.unpack_from("<f", data, offset)[0]),
    15: lambda data, offset: base64.b64encode(_long_bytes(data, offset)).decode(),
    16: lambda data, offset: _long_bytes(data, offset).decode(),
    17: lambda data, offset: (
        (_EPOCH + timedelta(microseconds=_signed(8)(data, offset))).time().isoformat("microseconds")
    ),
    18: _timestamp("Z", 1_000_000_000),
    19: _timestamp("", 1_000_000_000),
    20: lambda data, offset: str(uuid.UUID(bytes=_slice(data, offset, 16))),
}
