"""Mark JSON columns. Arrow has one type for text and JSON, so the metadata `hyp.type` = `JSON` marks the latter.

A blob sink marks a table before it passes it to an encoder.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

_MARK = b"hyp.type"
_JSON = b"JSON"


def mark(table: pa.Table, json_columns: Collection[str]) -> pa.Table:
    """Mark these columns as JSON and remove all other field metadata, so that it cannot affect the encoded bytes."""
    fields = [
        field.with_metadata({_MARK: _JSON}) if field.name in json_columns else field.remove_metadata()
        for field in table.schema
    ]
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields))


def json_columns(table: pa.Table) -> frozenset[str]:
    """Return the columns that `mark` marked."""
    return frozenset(field.name for field in table.schema if (field.metadata or {}).get(_MARK) == _JSON)
