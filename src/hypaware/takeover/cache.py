"""A cache of the original: its layout, and the survey of a dataset before anything is reserved. The cache is only read.

    <cache>/datasets/<dataset>/source=<source>/cursor.json      names the live table: {"tableDir": "table", …}
    <cache>/datasets/<dataset>/source=<source>/table*/          an Iceberg table
    <cache>/datasets/<dataset>/client=…/date=…/epoch=<n>/       an Iceberg table, written by older versions
    <cache>/datasets/<dataset>/<any>/_hypaware_spool/           active.jsonl, flush-*.jsonl: rows not yet flushed

The state of the installation (plugins/, sinks/) is next to the cache, and its config is one directory above. `.retired`
holds data that was moved elsewhere. A partly flushed spool file has a `<file>.progress.json` with a `byteOffset`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hypaware.clients import original_install
from hypaware.errors import HypError
from hypaware.home.durable_files import open_regular_file
from hypaware.model.datasets import SEQ, UNKNOWN_SOURCE, Dataset
from hypaware.state.flushes import SourceCheckpoint
from hypaware.takeover import table
from hypaware.takeover.table import CacheDamaged, CacheDataFile, CacheTable

_CURSOR = "cursor.json"
_SPOOL = "_hypaware_spool"
_RETIRED = ".retired"
_TABLE = "table"
_TABLE_PREFIXES = ("table", "epoch=")
PROVIDER = original_install.IMPORT_PROVIDER
_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True)
class CachePartition:
    """A logical partition of a dataset: one live table, and older tables that are no longer used."""

    dataset: str
    segments: tuple[str, ...]
    """Its directories below the dataset's."""
    path: Path

    @property
    def name(self) -> str:
        return "/".join(self.segments)

    def live_table(self) -> Path:
        """Return the table that the cursor names."""
        path = self.path / _CURSOR
        if not path.exists():
            return self.path
        try:
            cursor = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise CacheDamaged(f"cannot read {path}: {error}") from error
        if not isinstance(cursor, dict):
            raise CacheDamaged(f"{path} is not a cursor")
        named = cursor.get("tableDir")
        if named is None and cursor.get("layout") == "source-table":
            named = _TABLE
        if named is None:
            by_epoch = f"epoch={cursor.get('epoch', 0)}"
            named = by_epoch if (self.path / by_epoch).is_dir() else _TABLE
        if not isinstance(named, str) or Path(named).name != named or named in ("", ".", ".."):
            raise CacheDamaged(f"{path} names {named!r}, which is not a directory next to it")
        found = self.path / named
        if found.is_symlink() or not found.is_dir():
            raise CacheDamaged(f"{path} names the table {named}, which does not exist")
        return found


@dataclass(frozen=True)
class CacheSpoolFile:
    """Rows not yet flushed: the bytes from `start` to `size` of this inode."""

    dataset: str
    path: Path
    name: str
    """Its path within the cache."""
    start: int
    size: int
    inode: int


@dataclass
class OriginalCache:
    root: Path
    partitions: list[CachePartition] = field(default_factory=list)
    spools: list[CacheSpoolFile] = field(default_factory=list)
    not_followed: list[Path] = field(default_factory=list)
    """Links in place of directories."""

    @property
    def datasets(self) -> list[str]:
        return sorted({each.dataset for each in self.partitions} | {each.dataset for each in self.spools})

    @property
    def state_roots(self) -> list[Path]:
        """Where the state of the installation can be: in the cache itself or next to it."""
        return [self.root, self.root.parent] if self.root.name == "cache" else [self.root]

    @property
    def configs(self) -> list[Path]:
        """Where its config can be, that of the installation first."""
        roots = [*self.state_roots, self.root.parent.parent] if self.root.name == "cache" else self.state_roots
        seeds = [path for root in self.state_roots for path in sorted((root / "config-control").glob("*.json"))]
        return [path for root in roots if (path := root / "hypaware-config.json").is_file()] + seeds


def find_cache(requested: Path) -> OriginalCache:
    """Find the cache in a directory, which may also be the installation's own (`~/.hyp`), and list its contents."""
    for root in (requested, requested / "cache", requested / "hypaware" / "cache"):
        if (root / "datasets").is_dir():
            cache = OriginalCache(root)
            try:
                _list_contents(cache)
            except OSError as error:
                raise CacheDamaged(f"cannot list the cache {root}: {error}") from error
            return cache
    problem = "the directory does not exist" if not requested.is_dir() else "it has no directory `datasets`"
    raise HypError(
        f"{requested} is not a cache of HypAware: {problem}. Pass the directory that holds `datasets`, often "
        "~/.hyp/hypaware/cache",
        kind="not_a_cache",
    )


def _list_contents(cache: OriginalCache) -> None:
    """List spools before tables: a row that is flushed in between is found twice and recognised by its key, never
    missed."""
    folders = list(_walk_folders(cache, cache.root / "datasets", ()))
    for segments, folder in folders:
        if segments[-1] == _SPOOL:
            cache.spools += _spool_files(cache, segments[0], folder)
    for segments, folder in folders:
        may_be_partition = len(segments) == 1 or segments[-1] != _SPOOL
        if may_be_partition and ((folder / _CURSOR).exists() or table.is_table(folder)):
            cache.partitions.append(CachePartition(segments[0], segments[1:], folder))


def _walk_folders(cache: OriginalCache, folder: Path, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Path]]:
    for entry in sorted(os.scandir(folder), key=lambda found: found.name):
        path = folder / entry.name
        is_table_name = entry.name.startswith(_TABLE_PREFIXES) or entry.name in ("metadata", "data")
        if entry.is_symlink():
            if entry.is_dir():
                cache.not_followed.append(path)
        elif entry.is_dir() and entry.name != _RETIRED and not (above and is_table_name):
            segments = (*above, entry.name)
            yield segments, path
            if entry.name != _SPOOL:
                yield from _walk_folders(cache, path, segments)


def _spool_files(cache: OriginalCache, dataset: str, folder: Path) -> Iterator[CacheSpoolFile]:
    """Yield the spool files, the oldest first; the active one is the newest."""
    flushing = sorted(path for path in folder.glob("flush-*.jsonl") if path.is_file())
    active = [path for path in (folder / "active.jsonl",) if path.is_file()]
    for path in [*flushing, *active]:
        status = path.stat()
        start = min(_flushed_bytes(path), status.st_size)
        if start < status.st_size:
            name = path.relative_to(cache.root).as_posix()
            yield CacheSpoolFile(dataset, path, name, start, status.st_size, status.st_ino)


def _flushed_bytes(path: Path) -> int:
    """Return how many bytes were flushed; 0 if unknown, because flushed rows are recognised by their keys."""
    try:
        offset = json.loads(path.with_name(f"{path.name}.progress.json").read_bytes())["byteOffset"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return int(offset) if isinstance(offset, int | float) and 0 <= offset < 2**63 else 0


@dataclass(frozen=True)
class SurveyedFile:
    """A data file with the old sequences of its live rows, in file order, null if a row has none."""

    partition: CachePartition
    data_file: CacheDataFile
    mark: str
    """The name under which its checkpoint is stored."""
    columns: Mapping[str, str]
    """Its columns and their current names in the table."""
    seqs: pa.Array = field(compare=False)
    sources: frozenset[str]
    taken: bool = False
    """Whether an earlier takeover imported it."""


@dataclass
class CacheSurvey:
    dataset: str
    files: list[SurveyedFile] = field(default_factory=list)
    spools: list[CacheSpoolFile] = field(default_factory=list)
    unreadable: list[CacheDamaged] = field(default_factory=list)

    @property
    def due(self) -> list[SurveyedFile]:
        return [file for file in self.files if not file.taken]

    @property
    def sources(self) -> set[str]:
        return {source for file in self.files for source in file.sources}

    @property
    def bytes(self) -> int:
        return sum(file.data_file.bytes for file in self.due) + sum(each.size - each.start for each in self.spools)


def survey_dataset(
    cache: OriginalCache,
    dataset: Dataset,
    checkpoints: Mapping[str, SourceCheckpoint],
    on_progress: Callable[[int, int], None],
) -> CacheSurvey:
    """Survey the dataset; damage is collected, not raised. `on_progress` gets (files read, files in all).

    Of every data file the footer is read, and two columns: the old sequence, and the column that determines the source.
    A missing or damaged file is thus known before the first row is written. Data files that an earlier takeover
    imported completely (by its checkpoints) are left out, because data files never change; of a spool file only the new
    bytes are read.
    """
    result = CacheSurvey(dataset.name)
    for each in cache.spools:
        if each.dataset == dataset.name:
            try:
                remaining = _remaining(each, checkpoints.get(each.name))
            except OSError as error:
                result.unreadable.append(CacheDamaged(f"cannot read {each.path}: {error}"))
            else:
                result.spools += [remaining] if remaining is not None else []
    files: list[tuple[CachePartition, CacheTable, CacheDataFile]] = []
    for partition in cache.partitions:
        if partition.dataset == dataset.name:
            try:
                opened = table.open_table(partition.live_table())
                files += [(partition, opened, file) for file in opened.files]
            except CacheDamaged as damage:
                result.unreadable.append(damage)
    for number, (partition, opened, file) in enumerate(files):
        on_progress(number, len(files))
        try:
            result.files.append(_survey_file(dataset, partition, opened, file, checkpoints))
        except CacheDamaged as damage:
            result.unreadable.append(damage)
    # Rows without a sequence have no other order.
    result.files.sort(key=lambda each: (each.partition.name, each.data_file.order, each.data_file.name))
    return result


def _remaining(spool: CacheSpoolFile, mark: SourceCheckpoint | None) -> CacheSpoolFile | None:
    """Return the part not imported yet, or None. A file that no longer starts with the imported bytes is read from the
    start."""
    if mark is None or mark.consumed > spool.size:
        return spool
    with open_regular_file(spool.path) as file:
        if hash_prefix(file, mark.consumed).hexdigest() != mark.prefix_hash:
            return spool
    return replace(spool, start=max(spool.start, mark.consumed)) if mark.consumed < spool.size else None


def hash_prefix(file: BinaryIO, length: int) -> hashlib._Hash:
    """Hash the first `length` bytes and leave the file position after them."""
    file.seek(0)
    found = hashlib.sha256()
    left = length
    while left > 0 and (block := file.read(min(left, 1 << 20))):
        found.update(block)
        left -= len(block)
    return found


def _survey_file(
    dataset: Dataset,
    partition: CachePartition,
    opened: CacheTable,
    file: CacheDataFile,
    checkpoints: Mapping[str, SourceCheckpoint],
) -> SurveyedFile:
    mark = f"{opened.uuid}/{file.name}"
    try:
        size = file.path.stat().st_size
        if size != file.bytes:
            raise CacheDamaged(f"{file.path} has {size} bytes instead of {file.bytes}")
        with pq.ParquetFile(file.path) as parquet:
            columns = _current_columns(parquet.schema_arrow, opened.columns, file.path)
            if parquet.metadata.num_rows != file.records:
                raise CacheDamaged(f"{file.path} has {parquet.metadata.num_rows} rows instead of {file.records}")
            wanted = {name: column for column, name in columns.items() if name in (SEQ, *dataset.source_columns)}
            rows = parquet.read(columns=list(wanted.values()))
    except CacheDamaged:
        raise
    except (OSError, pa.ArrowException) as error:
        raise CacheDamaged(f"cannot read {file.path}: {error}") from error
    is_live = pa.repeat(True, file.records)
    if file.deleted:
        is_live = pa.array([position not in file.deleted for position in range(file.records)])
    seqs = rows.column(wanted[SEQ]).cast(pa.int64()) if SEQ in wanted else pa.nulls(file.records, pa.int64())
    if isinstance(seqs, pa.ChunkedArray):
        seqs = seqs.combine_chunks()
    sources = frozenset[str]()
    if file.records:
        # The same rule as in `Dataset.source_of`.
        texts = [rows.column(wanted[name]) for name in dataset.source_columns if name in wanted]
        filled = [pc.if_else(pc.equal(text, ""), pa.scalar(None, text.type), text) for text in texts]
        sources = frozenset(pc.unique(pc.coalesce(*filled, UNKNOWN_SOURCE)).to_pylist())
    return SurveyedFile(partition, file, mark, columns, seqs.filter(is_live), sources, mark in checkpoints)


def _current_columns(schema: pa.Schema, by_id: Mapping[int, str], path: Path) -> dict[str, str]:
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
