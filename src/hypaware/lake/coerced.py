"""Conversion of stored rows to the form in which producers supply them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hypaware.model.columns import Type
from hypaware.model.datasets import Dataset


def coerced_rows(dataset: Dataset, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield rows in the form that their row id is computed from: coerced, without nulls."""
    table = pa.Table.from_batches([batch])
    for column in dataset.columns:
        if column.type is Type.TIMESTAMP and column.name in table.column_names:
            index = table.schema.get_field_index(column.name)
            text = pc.strftime(table.column(index).cast(pa.timestamp("us", "UTC")), format="%Y-%m-%dT%H:%M:%SZ")
            table = table.set_column(index, column.name, text)
    for row in table.to_pylist():
        yield {name: value for name, value in row.items() if value is not None}
