"""A lake written by another Iceberg implementation, for tests that rebuild the state from files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.model.datasets import SEQ, SOURCE

_SCHEMA = Schema(NestedField(1, SEQ, LongType(), required=False), NestedField(2, SOURCE, StringType(), required=False))
_BY_SOURCE = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), SOURCE))


def create_table(home: Home, dataset: str, floor: int | None = None, **properties: str) -> Any:
    """Create a dataset's table without rows, as retention may leave it."""
    home.warehouse.mkdir(parents=True, exist_ok=True)
    catalog = SqlCatalog(metadata.CATALOG, uri=f"sqlite:///{home.catalog}", warehouse=home.warehouse.as_uri())
    catalog.create_namespace_if_not_exists(metadata.NAMESPACE)
    held = {metadata.FLOOR_PROPERTY: str(floor)} if floor is not None else {}
    return catalog.create_table(
        f"{metadata.NAMESPACE}.{dataset}", _SCHEMA, partition_spec=_BY_SOURCE, properties={**held, **properties}
    )


def append(table: Any, by_source: Mapping[str, list[int]], segments: str = "") -> None:
    """Commit rows with these sequences, and `segments` in the summary, as a flush does."""
    pairs = [(seq, source) for source, seqs in by_source.items() for seq in seqs]
    rows = pa.table({SEQ: [seq for seq, _ in pairs], SOURCE: [source for _, source in pairs]})
    table.append(rows, snapshot_properties={metadata.SEGMENTS_PROPERTY: segments} if segments else {})
