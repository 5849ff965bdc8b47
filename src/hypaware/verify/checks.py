"""What is checked, one function each. A check reads; it changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from hypaware.home import Home
from hypaware.lake import keys, metadata, rejects, tables
from hypaware.lake.keys import KeyIndex
from hypaware.lake.spark_lake import SparkTable, key_sql
from hypaware.model import canonical
from hypaware.model.columns import Type
from hypaware.model.datasets import INTERNAL, ROW_ID, SEQ, SOURCE, Dataset
from hypaware.spool import reader
from hypaware.state import flushes
from hypaware.state.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SAMPLE = 2_000
_LOT = 100_000


@dataclass(frozen=True)
class Check:
    name: str
    dataset: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class Audit:
    home: Home
    store: Store
    spark: SparkSession
    table: SparkTable
    dataset: Dataset
    deep: bool

    @property
    def name(self) -> str:
        return tables.full_name(self.dataset.name)

    def sql(self, statement: str) -> list[Any]:
        return list(self.spark.sql(statement).collect())

    def check(self, name: str, ok: bool, detail: str) -> Check:
        return Check(name, self.dataset.name, ok, detail)

    @property
    def metadata(self) -> metadata.Metadata:
        found = metadata.entry(self.home, self.dataset.name)
        assert found is not None
        return metadata.read(found.metadata)


def sequences(audit: Audit) -> Check:
    """Unique, and none missing."""
    ((rows, with_seq, distinct),) = audit.sql(f"SELECT count(*), count({SEQ}), count(DISTINCT {SEQ}) FROM {audit.name}")
    detail = f"{rows} rows, {rows - with_seq} without a sequence, {with_seq - distinct} sequences used again"
    return audit.check("sequences", rows == distinct, detail)


def allocation(audit: Audit) -> Check:
    """No sequence that the lake has seen can be given out again."""
    ((highest,),) = audit.sql(f"SELECT coalesce(max({SEQ}), 0) FROM {audit.name}")
    with audit.store.reading() as connection:
        following = flushes.next_seq(connection)
    floor = audit.table.floor
    ok = highest <= floor < following
    return audit.check("allocation", ok, f"highest row {highest}, floor {floor}, next to be given out {following}")


def row_ids(audit: Audit) -> Check:
    """Stored, and true: recomputed over the row as it is."""
    ((missing,),) = audit.sql(f"SELECT count(*) FROM {audit.name} WHERE {ROW_ID} IS NULL")
    looked = wrong = 0
    for lot in _rows(audit):
        for row in lot:
            looked += 1
            wrong += row.pop(ROW_ID) != canonical.row_id(row)
    what = "all" if audit.deep else "a sample of"
    detail = f"{missing} missing; of {what} {looked} rows {wrong} do not match their content"
    return audit.check("row_ids", missing == 0 and wrong == 0, detail)


def duplicates(audit: Audit) -> Check:
    """No two rows with one key."""
    ((keyed, distinct),) = audit.sql(
        f"SELECT count(k), count(DISTINCT k) FROM (SELECT {key_sql(audit.dataset)} k FROM {audit.name})"
    )
    return audit.check("duplicates", keyed == distinct, f"{keyed} rows with a key, {keyed - distinct} of them twice")


def high_water(audit: Audit) -> Check:
    """The state knows the newest row of each source, and the lake has not gone back behind it."""
    in_lake = {row[0]: row[1] for row in audit.sql(f"SELECT {SOURCE}, max({SEQ}) FROM {audit.name} GROUP BY {SOURCE}")}
    with audit.store.reading() as connection:
        in_state = flushes.high_water(connection, audit.dataset.name).get(audit.dataset.name, {})
    behind = sorted(source for source, seq in in_lake.items() if in_state.get(source, 0) < (seq or 0))
    gone = rolled_back(audit)
    detail = f"{len(in_lake)} sources"
    if behind:
        detail += f"; the state is behind the lake for {', '.join(behind)} (hyp verify --repair)"
    if gone:
        detail += (
            f"; the lake went back behind what was recorded for {', '.join(gone)}: it was rolled back or restored "
            "without its state (restore both from one backup, or go on without those rows: hyp verify --repair)"
        )
    return audit.check("high_water", not behind and not gone, detail)


def rolled_back(audit: Audit) -> list[str]:
    """Sources of which rows were recorded that the lake has never heard of."""
    with audit.store.reading() as connection:
        known = flushes.high_water(connection, audit.dataset.name).get(audit.dataset.name, {})
    return sorted(source for source, seq in known.items() if seq > audit.table.floor)


def unfinished(audit: Audit) -> Check:
    """Every flush was settled, every segment is either waiting or gone."""
    with audit.store.reading() as connection:
        left = flushes.unfinished(connection, audit.dataset.name)
    waiting = reader.waiting(audit.home, audit.dataset.name)
    refused = rejects.total(audit.home, audit.dataset.name)
    detail = (
        f"{len(left)} unfinished; {waiting.segments} segments wait in the spool; {refused} rows were refused and kept"
    )
    return audit.check("flushes", not left, detail)


def key_index(audit: Audit) -> Check:
    """Sound, and as far as the lake; with --deep, every key of the lake is in it."""
    if not keys.is_readable(audit.home.keys):
        return audit.check("key_index", False, "it cannot be read (hyp verify --repair)")
    with closing(KeyIndex(audit.home.keys)) as index:
        through = index.through(audit.dataset.name, audit.table.uuid)
        missing = 0
        if audit.deep:
            for lot in audit.table.key_hashes(0):
                wanted = {key for key, _ in lot}
                missing += len(wanted) - len(index.find(sorted(wanted)))
    behind = through is None or through > audit.table.floor
    detail = f"filled through {through}, the lake's floor is {audit.table.floor}"
    if audit.deep:
        detail += f"; {missing} keys of the lake are not in it"
    if behind or missing:
        detail += " (hyp verify --repair)"
    return audit.check("key_index", not behind and not missing, detail)


def files(audit: Audit) -> Check:
    """Every file that the table names is there; what nothing names is counted."""
    known = {file.path: file.bytes for file in metadata.live_files(audit.metadata)}
    missing = [path for path, size in known.items() if not path.is_file() or path.stat().st_size != size]
    strays = orphans(audit)
    detail = f"{len(known)} data files, {len(missing)} missing or short"
    if missing:
        detail += f": {missing[0]}"
    if strays:
        size = sum(path.stat().st_size for path in strays)
        detail += f"; {len(strays)} files ({size} bytes) that interrupted writes left behind (hyp verify --repair)"
    return audit.check("files", not missing, detail)


def orphans(audit: Audit) -> list[Path]:
    """Data files that no snapshot names. Under the table's mutex nothing is being written."""
    held = audit.metadata
    named = {
        file.path.resolve()
        for snapshot in held.snapshots
        for manifest in metadata.manifests(snapshot)
        for file in metadata.data_files(held, manifest)
    }
    return [path for path in audit.table.data_root.rglob("*.parquet") if path.resolve() not in named]


ALL = (sequences, allocation, row_ids, duplicates, high_water, unfinished, key_index, files)


def _rows(audit: Audit) -> Iterator[list[dict[str, Any]]]:
    """Rows in the form that their id was computed over: coerced, without nulls; all of them, or the newest few."""
    columns = ", ".join(f"`{column.name}`" for column in audit.dataset.columns)
    select = f"SELECT {ROW_ID}, {columns} FROM {audit.name} WHERE {ROW_ID} IS NOT NULL"
    if not audit.deep:
        yield _coerced(audit.dataset, audit.spark.sql(f"{select} AND {SEQ} > {audit.table.floor - _SAMPLE}").toArrow())
        return
    for start in range(0, audit.table.floor, _LOT):
        lot = audit.spark.sql(f"{select} AND {SEQ} > {start} AND {SEQ} <= {start + _LOT}").toArrow()
        yield _coerced(audit.dataset, lot)


def _coerced(dataset: Dataset, table: pa.Table) -> list[dict[str, Any]]:
    for column in dataset.columns:
        if column.type is Type.TIMESTAMP:
            place = table.schema.get_field_index(column.name)
            text = pc.strftime(table.column(place).cast(pa.timestamp("us", "UTC")), format="%Y-%m-%dT%H:%M:%SZ")
            table = table.set_column(place, column.name, text)
    kept = set(table.column_names) - (set(INTERNAL) - {ROW_ID})
    return [
        {name: value for name, value in row.items() if value is not None and name in kept} for row in table.to_pylist()
    ]
