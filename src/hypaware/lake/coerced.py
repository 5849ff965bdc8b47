"""Stored rows in the form that producers give them in, and that their ids were computed over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hypaware.model.columns import Type
from hypaware.model.datasets import Dataset


def coerced_rows(dataset: Dataset, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Rows in the form that their id was computed over: coerced, without nulls."""
    table = pa.Table.from_batches([batch])
    for column in dataset.columns:
        if column.type is Type.TIMESTAMP and column.name in table.column_names:
            place = table.schema.get_field_index(column.name)
            text = pc.strftime(table.column(place).cast(pa.timestamp("us", "UTC")), format="%Y-%m-%dT%H:%M:%SZ")
            table = table.set_column(place, column.name, text)
    for row in table.to_pylist():
        yield {name: value for name, value in row.items() if value is not None}
