"""The survey of one dataset of a cache, before anything is reserved.

For every data file the footer is read, and two columns: the old sequence, and the column that determines the source. A
missing or damaged file is thus known before the first row is written. Data files that an earlier takeover imported
completely (by its checkpoints) are left out, because data files never change; of a spool file only the new bytes are
read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hypaware.model.datasets import SEQ, UNKNOWN_SOURCE, Dataset
from hypaware.regular import open_regular
from hypaware.state.source_mark import SourceMark
from hypaware.takeover import table
from hypaware.takeover.cache import Cache, Partition, SpoolFile, hash_of
from hypaware.takeover.table import CacheDamaged, Table, TableFile

PROVIDER = "import-cache"
_FIELD_ID = b"PARQUET:field_id"

Told = Callable[[int, int], None]
"""(files read, files in all)"""


@dataclass(frozen=True)
class Found:
    """A data file with the old sequences of its live rows, in file order, null if a row has none."""

    partition: Partition
    data_file: TableFile
    mark: str
    """The name under which its checkpoint is stored."""
    columns: Mapping[str, str]
    """Its columns and their current names in the table."""
    seqs: pa.Array = field(compare=False)
    sources: frozenset[str]
    taken: bool = False
    """Whether an earlier takeover imported it."""


@dataclass
class Survey:
    dataset: str
    files: list[Found] = field(default_factory=list)
    spools: list[SpoolFile] = field(default_factory=list)
    unreadable: list[CacheDamaged] = field(default_factory=list)

    @property
    def due(self) -> list[Found]:
        return [file for file in self.files if not file.taken]

    @property
    def sources(self) -> set[str]:
        return {source for file in self.files for source in file.sources}

    @property
    def bytes(self) -> int:
        return sum(file.data_file.bytes for file in self.due) + sum(each.size - each.start for each in self.spools)


def survey(cache: Cache, dataset: Dataset, checkpoints: Mapping[str, SourceMark], on_progress: Told) -> Survey:
    """Survey the dataset, spool files without the bytes already imported. Damage is collected, not raised."""
    result = Survey(dataset.name)
    for each in cache.spools:
        if each.dataset == dataset.name:
            try:
                remaining = _remaining(each, checkpoints.get(each.name))
            except OSError as error:
                result.unreadable.append(CacheDamaged(f"cannot read {each.path}: {error}"))
            else:
                result.spools += [remaining] if remaining is not None else []
    files = list(_list_files(cache, dataset, result.unreadable))
    for number, (partition, opened, file) in enumerate(files):
        on_progress(number, len(files))
        try:
            result.files.append(_survey_file(dataset, partition, opened, file, checkpoints))
        except CacheDamaged as damage:
            result.unreadable.append(damage)
    # Rows without a sequence have no other order.
    result.files.sort(key=lambda each: (each.partition.name, each.data_file.order, each.data_file.name))
    return result


def _remaining(spool: SpoolFile, mark: SourceMark | None) -> SpoolFile | None:
    """Return the part not imported yet, or None. A file that no longer starts with the imported bytes is read from the
    start."""
    if mark is None or mark.consumed > spool.size:
        return spool
    with open_regular(spool.path) as file:
        if hash_of(file, mark.consumed).hexdigest() != mark.prefix_hash:
            return spool
    return replace(spool, start=max(spool.start, mark.consumed)) if mark.consumed < spool.size else None


def _list_files(
    cache: Cache, dataset: Dataset, unreadable: list[CacheDamaged]
) -> Iterator[tuple[Partition, Table, TableFile]]:
    for partition in cache.partitions:
        if partition.dataset == dataset.name:
            try:
                opened = table.opened(partition.live_table())
                files = [(partition, opened, file) for file in opened.files]
            except CacheDamaged as damage:
                unreadable.append(damage)
                continue
            yield from files


def _survey_file(
    dataset: Dataset, partition: Partition, opened: Table, file: TableFile, checkpoints: Mapping[str, SourceMark]
) -> Found:
    mark = f"{opened.uuid}/{file.name}"
    try:
        size = file.path.stat().st_size
        if size != file.bytes:
            raise CacheDamaged(f"{file.path} has {size} bytes instead of {file.bytes}")
        with pq.ParquetFile(file.path) as parquet:
            columns = _columns(parquet.schema_arrow, opened.columns, file.path)
            if parquet.metadata.num_rows != file.records:
                raise CacheDamaged(f"{file.path} has {parquet.metadata.num_rows} rows instead of {file.records}")
            wanted = {name: column for column, name in columns.items() if name in (SEQ, *dataset.source_columns)}
            rows = parquet.read(columns=list(wanted.values()))
    except CacheDamaged:
        raise
    except (OSError, pa.ArrowException) as error:
        raise CacheDamaged(f"cannot read {file.path}: {error}") from error
    is_live = _live_mask(file.records, file.deleted)
    source_columns = [rows.column(wanted[name]) for name in dataset.source_columns if name in wanted]
    seqs = rows.column(wanted[SEQ]).cast(pa.int64()) if SEQ in wanted else pa.nulls(file.records, pa.int64())
    if isinstance(seqs, pa.ChunkedArray):
        seqs = seqs.combine_chunks()
    return Found(
        partition,
        file,
        mark,
        columns,
        seqs.filter(is_live),
        _sources(source_columns, file.records),
        mark in checkpoints,
    )


def _live_mask(rows: int, deleted: frozenset[int]) -> pa.Array:
    return pa.array([place not in deleted for place in range(rows)]) if deleted else pa.repeat(True, rows)


def _sources(source_columns: list[pa.ChunkedArray], rows: int) -> frozenset[str]:
    """Return the sources by the same rule as `Dataset.source_of`."""
    if not rows:
        return frozenset()
    filled = [pc.if_else(pc.equal(text, ""), pa.scalar(None, text.type), text) for text in source_columns]
    return frozenset(pc.unique(pc.coalesce(*filled, UNKNOWN_SOURCE)).to_pylist())


def _columns(schema: pa.Schema, by_id: Mapping[int, str], path: Path) -> dict[str, str]:
    """Map columns to their current names: by field id, or by name in a file without ids."""
    result = {}
    for each in schema:
        field_id = (each.metadata or {}).get(_FIELD_ID)
        name = by_id.get(int(field_id)) if field_id is not None else each.name
        if name is not None:
            if pa.types.is_struct(each.type) and each.type.get_field_index("typed_value") >= 0:
                raise CacheDamaged(f"{path}: column {name} is a shredded VARIANT, which is not supported")
            result[each.name] = name
    return result
