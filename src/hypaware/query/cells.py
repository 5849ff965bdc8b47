"""Convert Arrow columns to JSON values and to text.

Timestamps are ISO 8601 in UTC with a Z (without it if the type has no zone) and without trailing zeros; dates are ISO
8601, bytes base64, decimals numbers with all digits, NaN and infinities null. Structs and maps become objects, arrays
arrays. Whole columns are converted at once, with Arrow's own loops where it has one.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc


def values(column: pa.Array) -> list[Any]:
    """Return each value in a form that `orjson` can write."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return _listed(_times(column))
    if pa.types.is_decimal(kind):
        return _mapped(column, lambda number: orjson.Fragment(_digits(number)))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _mapped(column, lambda data: base64.b64encode(data).decode())
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        return _listed(column.cast(pa.string()))
    if pa.types.is_struct(kind):
        return _structs(column)
    if pa.types.is_map(kind):
        keys, items = values(column.keys), values(column.items)
        return _slices(column, lambda start, end: dict(zip(map(_key, keys[start:end]), items[start:end], strict=True)))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        elements = values(column.values)
        return _slices(column, lambda start, end: elements[start:end])
    if pa.types.is_duration(kind):
        return _mapped(column, str)
    return _listed(column)


def texts(column: pa.Array) -> list[str | None]:
    """Return each value as readable text, null as None."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _listed(column)
    if pa.types.is_decimal(kind):
        return _mapped(column, _digits)
    if pa.types.is_floating(kind):
        return _mapped(column, _float)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return _listed(column.cast(pa.string()))
    return [None if value is None else value if isinstance(value, str) else _json(value) for value in values(column)]


def is_number(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal))


def json_bytes(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)


def _json(value: Any) -> str:
    return json_bytes(value).decode()


def _times(column: pa.Array) -> pa.Array:
    # Remove the zone first: Arrow would look it up in the time zone files of the machine.
    plain = column.cast(pa.int64()).cast(pa.timestamp(column.type.unit))
    written = pc.strftime(plain, format="%Y-%m-%dT%H:%M:%S" + ("" if column.type.tz is None else "Z"))
    if column.type.unit == "s":
        return written
    return pc.replace_substring_regex(written, pattern=r"\.?0+(Z?)$", replacement=r"\1")


def _structs(column: pa.Array) -> list[Any]:
    names = [column.type.field(index).name for index in range(column.type.num_fields)]
    fields = [values(column.field(index)) for index in range(column.type.num_fields)]
    is_valid = column.is_valid().to_pylist()
    rows = zip(*fields, strict=True) if fields else (() for _ in is_valid)
    return [dict(zip(names, row, strict=True)) if valid else None for valid, row in zip(is_valid, rows, strict=True)]


def _slices(column: pa.Array, cut: Callable[[int, int], Any]) -> list[Any]:
    offsets = column.offsets.to_pylist()
    is_valid = column.is_valid().to_pylist()
    return [cut(offsets[index], offsets[index + 1]) if valid else None for index, valid in enumerate(is_valid)]


def _listed(column: pa.Array) -> list[Any]:
    listed: list[Any] = column.to_pylist()
    return listed


def _mapped(column: pa.Array, convert: Callable[[Any], Any]) -> list[Any]:
    return [None if value is None else convert(value) for value in column.to_pylist()]


def _key(value: Any) -> str:
    if isinstance(value, orjson.Fragment):
        return str(value.contents)
    return value if isinstance(value, str) else _json(value)


def _digits(number: Decimal) -> str:
    return format(number, "f")


def _float(number: float) -> str:
    if number != number:
        return "NaN"
    return repr(number).replace("inf", "Infinity")
