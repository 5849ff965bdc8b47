"""Build: slices of segments become Parquet files. Runs in Spark's tasks; touches nothing but files of its own.

A task reads lines, judges them by the envelope's rule, stamps sequence, source, row id and flush id, and writes one
file per (source, day), synced, under a name that no other try uses. It returns what it wrote, the dedupe keys it saw
and what it had to refuse. The driver decides which rows are duplicates; a task run again with `drop` leaves them out.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from hypaware import durable
from hypaware.lake.arrow import file_schema, to_batch
from hypaware.model import canonical, datasets
from hypaware.model.coerce import RowRejected
from hypaware.model.datasets import BATCH_ID, ROW_ID, SEQ, SOURCE, Dataset, Row
from hypaware.spool import envelope

KEY_BYTES = 16
# A row group of a few MiB lets a reader skip most of a file; all buffers together bound a task's memory.
_ROW_GROUP_BYTES = 4 << 20
_BUFFER_BYTES = 24 << 20
_NAME_BYTES_MAX = 120


@dataclass(frozen=True)
class Slice:
    """Lines [start, stop) of a segment whose first row has the sequence `base`."""

    segment: str
    path: Path
    base: int
    start: int
    stop: int


@dataclass(frozen=True)
class BuildTask:
    dataset: str
    flush_id: str
    slices: tuple[Slice, ...]
    data_root: Path
    field_ids: Mapping[str, int]
    drop: frozenset[int] = frozenset()


@dataclass(frozen=True)
class BuiltFile:
    path: Path
    source: str
    day: str
    rows: int
    bytes: int
    max_seq: int


@dataclass(frozen=True)
class Reject:
    segment: str
    ordinal: int
    reason: str
    line: bytes


@dataclass
class Built:
    files: list[BuiltFile] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    seqs: array[int] = field(default_factory=lambda: array("q"))
    keys: bytearray = field(default_factory=bytearray)
    """The key hash of each row in `seqs`, KEY_BYTES each. Rows without a key are in neither."""

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


@dataclass(frozen=True)
class BuildFailure:
    """A task that could not build its rows, and why. The rows are at fault unless `surroundings` is set."""

    reason: str
    surroundings: bool = False
    segment: str | None = None
    """The one whose file could not be read."""


def key_hash(dataset: str, key: str) -> bytes:
    """Half a sha256, so that Spark SQL can compute the same over the lake's own rows."""
    return hashlib.sha256(f"{dataset}:{key}".encode()).digest()[:KEY_BYTES]


def build_or_say_why(task: BuildTask) -> Built | BuildFailure:
    """For the executors: a failure is a result, so that one task's rows do not take its neighbours' down."""
    try:
        return build(task)
    except _Unreadable as error:
        return BuildFailure(str(error), surroundings=True, segment=error.segment)
    except (OSError, MemoryError) as error:
        return BuildFailure(f"{type(error).__name__}: {error}", surroundings=True)
    except Exception as error:
        return BuildFailure(f"{type(error).__name__}: {error}")


def workers_run(_: object) -> bool:
    """For the executors: an answer shows that a worker starts and has this module."""
    return True


class _Unreadable(Exception):
    def __init__(self, piece: Slice, error: OSError) -> None:
        super().__init__(f"segment {piece.segment} cannot be read: {error}")
        self.segment = piece.segment


def build(task: BuildTask) -> Built:
    dataset = datasets.get(task.dataset)
    built = Built()
    writer = _PartitionWriter(dataset, task)
    try:
        for piece in task.slices:
            for ordinal, line in _lines(piece):
                seq = piece.base + ordinal
                if seq in task.drop:
                    continue
                try:
                    row = envelope.read_line(dataset, line, ordinal)
                except RowRejected as reason:
                    built.rejects.append(Reject(piece.segment, ordinal, str(reason), line))
                    continue
                if (key := dataset.key_of(row)) is not None:
                    built.seqs.append(seq)
                    built.keys += key_hash(dataset.name, key)
                writer.add(row, seq, len(line))
        built.files = writer.close()
    except BaseException:
        writer.discard()
        raise
    return built


def _lines(piece: Slice) -> Iterator[tuple[int, bytes]]:
    try:
        with open(piece.path, "rb") as file:
            yield from itertools.islice(enumerate(file), piece.start, piece.stop)
    except OSError as error:
        raise _Unreadable(piece, error) from error


class _PartitionWriter:
    """One open Parquet file per (source, day), with bounded buffers."""

    def __init__(self, dataset: Dataset, task: BuildTask) -> None:
        self._dataset = dataset
        self._task = task
        self._schema = file_schema(dataset, task.field_ids)
        self._try = secrets.token_hex(4)
        self._partitions: dict[tuple[str, str], _Partition] = {}
        self._buffered = 0

    def add(self, row: Row, seq: int, size: int) -> None:
        source = self._dataset.source_of(row)
        row_id = canonical.row_id(row)
        where = (source, row[self._dataset.time_column][:10])
        partition = self._partitions.get(where)
        if partition is None:
            partition = self._partitions[where] = _Partition(self._path(*where), self._schema)
        row[SEQ], row[SOURCE], row[ROW_ID], row[BATCH_ID] = seq, source, row_id, self._task.flush_id
        partition.rows.append(row)
        partition.buffered += size
        partition.max_seq = max(partition.max_seq, seq)
        self._buffered += size
        if partition.buffered >= _ROW_GROUP_BYTES:
            self._buffered -= partition.write_rows()
        elif self._buffered >= _BUFFER_BYTES:
            fullest = max(self._partitions.values(), key=lambda each: each.buffered)
            self._buffered -= fullest.write_rows()

    def close(self) -> list[BuiltFile]:
        return [partition.close(source, day) for (source, day), partition in sorted(self._partitions.items())]

    def discard(self) -> None:
        for partition in self._partitions.values():
            partition.discard()

    def _path(self, source: str, day: str) -> Path:
        folder = self._task.data_root / f"{SOURCE}={path_name(source)}" / f"{self._dataset.time_column}_day={day}"
        first = self._task.slices[0]
        return folder / f"{self._task.flush_id}-{first.base + first.start}-{self._try}.parquet"


class _Partition:
    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self._schema = schema
        self._writer: pq.ParquetWriter | None = None
        self.rows: list[Row] = []
        self.buffered = 0
        self.count = 0
        self.max_seq = 0

    def write_rows(self) -> int:
        """Writes what is buffered as one row group: the bytes that this freed."""
        if self._writer is None:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(
                self.path, self._schema, compression="zstd", compression_level=1, store_schema=False
            )
        self._writer.write_batch(to_batch(self._schema, self.rows), row_group_size=len(self.rows))
        self.count += len(self.rows)
        freed, self.buffered, self.rows = self.buffered, 0, []
        return freed

    def close(self, source: str, day: str) -> BuiltFile:
        """Finishes the file and makes its bytes durable."""
        if self.rows:
            self.write_rows()
        assert self._writer is not None
        self._writer.close()
        self.path.chmod(0o600)
        durable.fsync_file(self.path)
        return BuiltFile(self.path, source, day, self.count, self.path.stat().st_size, self.max_seq)

    def discard(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self.path.unlink(missing_ok=True)


def path_name(source: str) -> str:
    """A folder name for a source: any text, also one with slashes, dots or a thousand letters, stays one safe name."""
    name = quote(source, safe="").replace(".", "%2E")
    if len(os.fsencode(name)) <= _NAME_BYTES_MAX:
        return name
    return f"{name[:80]}~{hashlib.sha256(source.encode()).hexdigest()[:16]}"
