"""Columns of a data file as rows of plain values: VARIANT as JSON values, timestamps as text.

A value that cannot be read becomes a `Malformed`, so that only its row is rejected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import pyarrow as pa

from hypaware.takeover.variant import decode

_EPOCH = datetime(1970, 1, 1)


def plain_rows(batch: pa.RecordBatch, columns: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    names, values = [], []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        names.append(columns[name])
        storage = column.storage if isinstance(column, pa.ExtensionArray) else column
        if pa.types.is_struct(storage.type) and storage.type.get_field_index("metadata") >= 0:
            values.append(_json_values(storage))
        elif pa.types.is_timestamp(storage.type):
            values.append(_timestamps(storage))
        else:
            values.append(storage.to_pylist())
    return (dict(zip(names, row, strict=True)) for row in zip(*values, strict=True))


def _json_values(variants: pa.StructArray) -> list[Any]:
    metadata, value = variants.field("metadata"), variants.field("value")
    return [
        None if not valid or encoded is None else _json_value(names, encoded)
        for valid, names, encoded in zip(
            variants.is_valid().to_pylist(), metadata.to_pylist(), value.to_pylist(), strict=True
        )
    ]


def _timestamps(column: pa.Array) -> list[Any]:
    """Return timestamps as text: a file can hold timestamps that Python cannot represent."""
    zone = "Z" if column.type.tz else ""
    micros = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64()).to_pylist()
    return [None if value is None else _timestamp(value, zone) for value in micros]


@lru_cache(maxsize=4096)
def _timestamp(micros: int, zone: str) -> Any:
    try:
        return (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds") + zone
    except OverflowError:
        return Malformed(f"the time {micros} microseconds after 1970 is outside the years 1 to 9999")


@dataclass(frozen=True)
class Malformed:
    """Stands for a value that cannot be read: its row is rejected, other rows of the file are not."""

    reason: str

    def __str__(self) -> str:
        return self.reason


def _json_value(names: bytes, encoded: bytes) -> Any:
    try:
        return decode(names, encoded)
    except ValueError as error:
        return Malformed(str(error))
