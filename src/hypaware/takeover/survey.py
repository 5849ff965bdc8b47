"""What there is to take of one dataset, looked at before anything is reserved.

Of every data file the footer is read, and two things of its rows: the old sequence and what the source follows from.
So a file that is missing or torn is known before the first row is written. Files that an earlier take-over took whole
(its marks say so) are left out: data files never change, and a spool file gives what came since.
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
"""(files looked at, files in all)"""


@dataclass(frozen=True)
class Found:
    """A data file: its live rows' old sequences, in its own order, null where a row has none."""

    partition: Partition
    file: TableFile
    mark: str
    """The name under which it is remembered once it is taken."""
    columns: Mapping[str, str]
    """Its columns, and what the table calls them now."""
    seqs: pa.Array = field(compare=False)
    sources: frozenset[str]
    taken: bool = False
    """Whether an earlier take-over took it."""


@dataclass
class Survey:
    dataset: str
    files: list[Found] = field(default_factory=list)
    spools: list[SpoolFile] = field(default_factory=list)
    unreadable: list[CacheDamaged] = field(default_factory=list)

    @property
    def due(self) -> list[Found]:
        return [found for found in self.files if not found.taken]

    @property
    def sources(self) -> set[str]:
        return {source for found in self.files for source in found.sources}

    @property
    def bytes(self) -> int:
        return sum(found.file.bytes for found in self.due) + sum(each.size - each.start for each in self.spools)


def survey(cache: Cache, dataset: Dataset, known: Mapping[str, SourceMark], told: Told) -> Survey:
    """Everything of the dataset, spool files without what was taken of them; damage is collected, not raised."""
    found = Survey(dataset.name)
    for each in cache.spools:
        if each.dataset == dataset.name:
            try:
                rest = _rest(each, known.get(each.name))
            except OSError as error:
                found.unreadable.append(CacheDamaged(f"{each.path} cannot be read: {error}"))
            else:
                found.spools += [rest] if rest is not None else []
    listed = list(_listed(cache, dataset, found.unreadable))
    for number, (partition, opened, file) in enumerate(listed):
        told(number, len(listed))
        try:
            found.files.append(_looked_at(dataset, partition, opened, file, known))
        except CacheDamaged as damage:
            found.unreadable.append(damage)
    # Rows without a sequence have no order but this one.
    found.files.sort(key=lambda each: (each.partition.name, each.file.order, each.file.name))
    return found


def _rest(spool: SpoolFile, mark: SourceMark | None) -> SpoolFile | None:
    """What was not taken yet; None if that is nothing. A file that does not begin as it did is taken from anew."""
    if mark is None or mark.consumed > spool.size:
        return spool
    with open_regular(spool.path) as file:
        if hash_of(file, mark.consumed).hexdigest() != mark.prefix_hash:
            return spool
    return replace(spool, start=max(spool.start, mark.consumed)) if mark.consumed < spool.size else None


def _listed(
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


def _looked_at(
    dataset: Dataset, partition: Partition, opened: Table, file: TableFile, known: Mapping[str, SourceMark]
) -> Found:
    mark = f"{opened.uuid}/{file.name}"
    try:
        size = file.path.stat().st_size
        if size != file.bytes:
            raise CacheDamaged(f"{file.path} has {size} bytes, and its table says {file.bytes}")
        with pq.ParquetFile(file.path) as held:
            columns = _columns(held.schema_arrow, opened.columns, file.path)
            if held.metadata.num_rows != file.records:
                raise CacheDamaged(f"{file.path} has {held.metadata.num_rows} rows, and its table says {file.records}")
            wanted = {name: of_file for of_file, name in columns.items() if name in (SEQ, *dataset.source_columns)}
            rows = held.read(columns=list(wanted.values()))
    except CacheDamaged:
        raise
    except (OSError, pa.ArrowException) as error:
        raise CacheDamaged(f"{file.path} cannot be read: {error}") from error
    alive = _alive(file.records, file.deleted)
    texts = [rows.column(wanted[name]) for name in dataset.source_columns if name in wanted]
    seqs = rows.column(wanted[SEQ]).cast(pa.int64()) if SEQ in wanted else pa.nulls(file.records, pa.int64())
    if isinstance(seqs, pa.ChunkedArray):
        seqs = seqs.combine_chunks()
    return Found(partition, file, mark, columns, seqs.filter(alive), _sources(texts, file.records), mark in known)


def _alive(rows: int, deleted: frozenset[int]) -> pa.Array:
    return pa.array([place not in deleted for place in range(rows)]) if deleted else pa.repeat(True, rows)


def _sources(texts: list[pa.ChunkedArray], rows: int) -> frozenset[str]:
    """By the same rule as `Dataset.source_of`."""
    if not rows:
        return frozenset()
    filled = [pc.if_else(pc.equal(text, ""), pa.scalar(None, text.type), text) for text in texts]
    return frozenset(pc.unique(pc.coalesce(*filled, UNKNOWN_SOURCE)).to_pylist())


def _columns(schema: pa.Schema, by_id: Mapping[int, str], path: Path) -> dict[str, str]:
    """A column is known by its field id; in a file without ids, by its name."""
    found = {}
    for each in schema:
        told = (each.metadata or {}).get(_FIELD_ID)
        name = by_id.get(int(told)) if told is not None else each.name
        if name is not None:
            if pa.types.is_struct(each.type) and each.type.get_field_index("typed_value") >= 0:
                raise CacheDamaged(f"{path}: column {name} is a shredded VARIANT, which is not read here")
            found[each.name] = name
    return found
