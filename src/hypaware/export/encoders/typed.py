"""Which columns hold JSON. Arrow has one type for text; the field's metadata tells the two apart.

A blob sink marks a table before it hands it to an encoder: `hyp.type` = `JSON` stands on each field of that type.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

_MARK = b"hyp.type"
_JSON = b"JSON"


def mark(table: pa.Table, json_columns: Collection[str]) -> pa.Table:
    """The same columns; whatever else their fields said is left out, so that it cannot change an encoder's bytes."""
    fields = [
        field.with_metadata({_MARK: _JSON}) if field.name in json_columns else field.remove_metadata()
        for field in table.schema
    ]
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields))


def json_columns(table: pa.Table) -> frozenset[str]:
    return frozenset(field.name for field in table.schema if (field.metadata or {}).get(_MARK) == _JSON)
