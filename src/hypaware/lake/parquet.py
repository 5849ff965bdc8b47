"""Read data files: their row groups, batches of columns, and whether the row ids match the content.

Data files never change, so footers are cached.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hypaware.home.identity import is_own_gateway
from hypaware.home.storage import arrow_source
from hypaware.lake.build import FOOTER_KEY
from hypaware.model import canonical, datasets
from hypaware.model.columns import ColumnType
from hypaware.model.datasets import ROW_ID, SEQ, Dataset

if TYPE_CHECKING:
    from pyspark import SparkContext

_MAX_CACHED_FOOTERS = 2_048
_BATCH_ROWS = 2_000


@dataclass(frozen=True)
class RowGroup:
    index: int
    rows: int
    bytes: int
    """Share of the file size on disk."""
    unpacked: int
    """Approximate size in memory; at least the stored size if the footer does not have it."""
    sequenced: int
    """Number of rows with a sequence; an upper bound if not `exact`."""
    exact: bool
    min_seq: int | None
    max_seq: int | None


def mask_own_rows(gateway: Any, own: str) -> Any:
    """Return `is_own_gateway` for a column of gateway ids."""
    found = [each for each in pc.unique(gateway).to_pylist() if is_own_gateway(each, own)]
    return pc.is_in(gateway, pa.array(found, gateway.type))


@lru_cache(maxsize=_MAX_CACHED_FOOTERS)
def read_row_groups(path: Path) -> tuple[RowGroup, ...]:
    footer = pq.read_metadata(arrow_source(path))
    column = footer.schema.to_arrow_schema().get_field_index(SEQ)
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    encoded = sum(group.total_byte_size for group in groups)
    stored_share = path.stat().st_size / max(encoded, 1)
    sizes = (footer.metadata or {}).get(FOOTER_KEY.encode())
    recorded = [int(size) for size in sizes.split(b",")] if sizes else [0] * len(groups)
    found = []
    for index, group in enumerate(groups):
        stored, unpacked = int(group.total_byte_size * stored_share), max(recorded[index], group.total_byte_size)
        # If the file is older than the column, no row has a sequence.
        sequenced, exact, lowest, highest = group.num_rows if column >= 0 else 0, column < 0, None, None
        if column >= 0 and (statistics := group.column(column).statistics) is not None:
            exact = bool(statistics.has_null_count)
            sequenced -= statistics.null_count if exact else 0
            lowest, highest = (statistics.min, statistics.max) if statistics.has_min_max else (None, None)
        found.append(RowGroup(index, group.num_rows, stored, unpacked, sequenced, exact, lowest, highest))
    return tuple(found)


def read_batches(path: Path, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read the given columns in batches, as far as the file has them."""
    with pq.ParquetFile(arrow_source(path)) as file:
        present = set(file.schema_arrow.names)
        yield from file.iter_batches(_BATCH_ROWS, columns=[name for name in names if name in present])


def conform_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows with the columns of a schema. Columns that an older file lacks are null."""
    present = set(rows.column_names)
    columns = [
        rows.column(field.name).cast(field.type) if field.name in present else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def to_producer_rows(dataset: Dataset, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield rows in the form that their row id is computed from: coerced, without nulls."""
    table = pa.Table.from_batches([batch])
    for column in dataset.columns:
        if column.type is ColumnType.TIMESTAMP and column.name in table.column_names:
            index = table.schema.get_field_index(column.name)
            text = pc.strftime(table.column(index).cast(pa.timestamp("us", "UTC")), format="%Y-%m-%dT%H:%M:%SZ")
            table = table.set_column(index, column.name, text)
    for row in table.to_pylist():
        yield {name: value for name, value in row.items() if value is not None}


class RowIdCheck(NamedTuple):
    checked: int
    missing: int
    wrong: int


def check_row_ids(spark: SparkContext, dataset: str, paths: Sequence[Path], max_rows: int | None = None) -> RowIdCheck:
    """Count the rows without a row id, and those whose id does not match their content, in each file's first rows."""
    if not paths:
        return RowIdCheck(0, 0, 0)
    check = partial(check_file_row_ids, dataset, max_rows=max_rows)
    found = spark.parallelize(paths, len(paths)).map(check).collect()
    return RowIdCheck(*map(sum, zip(*found, strict=True)))


def check_file_row_ids(name: str, path: Path, max_rows: int | None = None) -> RowIdCheck:
    dataset = datasets.get(name)
    checked = missing = wrong = 0
    for batch in read_batches(path, [ROW_ID, *(column.name for column in dataset.columns)]):
        for row in to_producer_rows(dataset, batch):
            row_id = row.pop(ROW_ID, None)
            checked += 1
            missing += row_id is None
            # A settled row has native columns but keeps the row id of its live row.
            patched = dataset.match_rules is not None and dataset.match_rules.is_patched(row)
            wrong += row_id is not None and not patched and row_id != canonical.compute_row_id(row)
            if checked == max_rows:
                return RowIdCheck(checked, missing, wrong)
    return RowIdCheck(checked, missing, wrong)
