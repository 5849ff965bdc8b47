"""What Iceberg records about the columns of a data file: sizes, counts, and bounds with which readers skip the file.

The task that writes a file has its footer in memory, so it computes them, and the commit, during which nothing else
runs, does not read every file again. They are those that Iceberg itself would read from the footer under
`write.metadata.metrics.default = truncate(16)`, in the form of Iceberg's JSON for data files: column id → value, bounds
in Iceberg's binary form, in hexadecimal.

Bounds are left out if one row group lacks them, as Arrow leaves them out of a footer if they are longer than 4 KiB.
Iceberg would take those of the other row groups, which are not bounds.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

MODE_PROPERTY = "write.metadata.metrics.default"
MODE = "truncate(16)"
_LENGTH = 16
_PREFIX = "write.metadata.metrics."
_FIRST_SURROGATE, _LAST_SURROGATE, _LAST_CODE_POINT = 0xD800, 0xDFFF, 0x10FFFF

FileMetrics = Mapping[str, Mapping[str, list[Any]]]


def covers(properties: Mapping[str, str]) -> bool:
    """Return whether a table with these properties wants exactly what `describe_columns` returns."""
    wanted = {name: value for name, value in properties.items() if name.startswith(_PREFIX)}
    return wanted == {MODE_PROPERTY: MODE}


def describe_columns(footer: pq.FileMetaData, schema: pa.Schema) -> FileMetrics:
    """Return the metrics of a flat file whose fields name their ids."""
    sizes: Counter[int] = Counter()
    values: Counter[int] = Counter()
    nulls: Counter[int] = Counter()
    lower: dict[int, Any] = {}
    upper: dict[int, Any] = {}
    uncounted: set[int] = set()
    unbounded: set[int] = set()
    types = {int(field.metadata[b"PARQUET:field_id"]): field.type for field in schema}
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for index, id_ in enumerate(types):
            chunk = group.column(index)
            sizes[id_] += chunk.total_compressed_size
            values[id_] += chunk.num_values
            found = chunk.statistics
            if found is None or not found.has_null_count:
                uncounted.add(id_)
                continue
            nulls[id_] += found.null_count
            if found.has_min_max:
                low, high = found.min_raw, found.max_raw
                lower[id_] = min(low, lower.get(id_, low))
                upper[id_] = max(high, upper.get(id_, high))
            elif found.null_count < chunk.num_values:
                unbounded.add(id_)
    bounded = [id_ for id_ in types if id_ in lower and id_ not in unbounded | uncounted]
    highest = {id_: _upper_bound(upper[id_], types[id_]) for id_ in bounded}
    return {
        "column-sizes": _to_json(sizes),
        "value-counts": _to_json(values),
        "null-value-counts": _to_json({id_: count for id_, count in nulls.items() if id_ not in uncounted}),
        # A footer does not count them.
        "nan-value-counts": _to_json({}),
        "lower-bounds": _to_json({id_: _lower_bound(lower[id_], types[id_]) for id_ in bounded}),
        "upper-bounds": _to_json({id_: bound for id_, bound in highest.items() if bound is not None}),
    }


def _to_json(values: Mapping[int, Any]) -> dict[str, list[Any]]:
    return {"keys": list(values), "values": list(values.values())}


def _lower_bound(value: Any, type_: pa.DataType) -> str:
    if isinstance(value, bytes):
        return value.decode()[:_LENGTH].encode().hex().upper()
    return _encode(value, type_)


def _upper_bound(value: Any, type_: pa.DataType) -> str | None:
    """Return None if no text of the length is greater."""
    if not isinstance(value, bytes):
        return _encode(value, type_)
    text = value.decode()
    if len(text) <= _LENGTH:
        return value.hex().upper()
    # The smallest text of this length that is greater than all texts with this beginning.
    for end in range(_LENGTH - 1, -1, -1):
        following = ord(text[end]) + 1
        if _FIRST_SURROGATE <= following <= _LAST_SURROGATE:
            following = _LAST_SURROGATE + 1
        if following <= _LAST_CODE_POINT:
            return (text[:end] + chr(following)).encode().hex().upper()
    return None


def _encode(value: float, type_: pa.DataType) -> str:
    # A timestamp is an INT64 in the file.
    form = {pa.bool_(): "<?", pa.int32(): "<i", pa.float64(): "<d"}.get(type_, "<q")
    return struct.pack(form, value).hex().upper()
