"""Build: write rows to Parquet data files, one per source and day.

Runs in Spark tasks and touches only their own files. A task reads its input and passes the rows with their sequences,
the same ones each time, to `build_rows`. That adds the internal columns, writes fsynced files under names that no other
attempt uses, and returns the files, the keys and the rejects for `prepare`.

A text that many rows repeat is stored once, so the footer of a file has the size of each row group in memory too:
`hyp.row-group-bytes`, numbers separated by commas.

@ref flush#build
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import os
import secrets
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Protocol, runtime_checkable
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.parquet as pq

from hypaware.errors import NotReady, Retryable
from hypaware.home import durable_files
from hypaware.home.storage import ObjectPath, open_whole, put_file, spool_object
from hypaware.lake.file_metrics import FileMetrics, describe_columns
from hypaware.lake.row_keys import MatchKeys
from hypaware.lake.schema import TIMESTAMP, file_schema, parquet_writer
from hypaware.lake.tombstones import NO_TOMBSTONES, Tombstones
from hypaware.model import canonical, datasets
from hypaware.model.datasets import BATCH_ID, ROW_ID, SEQ, SOURCE, Dataset, Row, RowRejected, hash_row_key, is_own_row
from hypaware.spool import segments

FOOTER_KEY = "hyp.row-group-bytes"
# Row groups of a few MiB let a reader skip most of a file. The buffer limit bounds a task's memory.
_ROW_GROUP_BYTES = 4 << 20
_BUFFER_BYTES = 24 << 20
_MAX_OPEN_FILES = 64
_CLOSING_THREADS = 4
_MAX_NAME_BYTES = 120

BuildWatcher = Callable[[int, int, int], None]
"""Receives (bytes, files, rows) of the finished tasks of one run."""
SessionFactsById = Mapping[str, Mapping[str, str]]
"""Session id → columns."""


class RowWriter(Protocol):
    def add(self, row: Row, seq: int) -> None: ...
    def close(self) -> list[BuiltFile]: ...
    def discard(self) -> None: ...


class Task(Protocol):
    def run(self) -> BuildResult: ...


@runtime_checkable
class WatchedTask(Protocol):
    """A task whose progress is reported."""

    @property
    def bytes(self) -> int:
        """The number of bytes that it reads."""

    @property
    def files(self) -> int:
        """The number of files that it reads."""


@runtime_checkable
class DriverTask(Protocol):
    """A task that reads files of the driver's machine and is too rare to be sent to a cluster."""

    @property
    def runs_in_driver(self) -> bool: ...


@dataclass(frozen=True)
class Reject:
    segment: str
    ordinal: int
    reason: str
    line: bytes


@dataclass
class BuildResult:
    files: list[BuiltFile] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    seqs: array[int] = field(default_factory=lambda: array("q"))
    keys: bytearray = field(default_factory=bytearray)
    """The key hash of each row in `seqs`, KEY_BYTES bytes each. Rows without a key are in neither."""
    reports: list[Any] = field(default_factory=list)
    """Values that tasks pass back to their creator."""
    withdrawn: list[range] = field(default_factory=list)
    """Sequences of rows that were written and then withdrawn. They are removed from the files again."""
    purged: array[int] = field(default_factory=lambda: array("q"))
    """Sequences of purged rows, which were not written."""
    match_keys: MatchKeys = field(default_factory=MatchKeys)
    """Match keys: what live and native rows of the same part share."""

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


@dataclass(frozen=True)
class BuildSettings:
    """How the files of a flush are built: what all its tasks share. See `prepare.plan_build`."""

    dataset: str
    flush_id: str
    data_root: Path
    field_ids: Mapping[str, int]
    own_gateway: str | None = None
    """The gateway id of this home. Rows of other gateways are deduplicated separately."""
    tombstones: Tombstones = NO_TOMBSTONES
    """Rows of purged sessions and periods are counted and not written."""
    match_native: bool = False
    """Whether `BuildResult.match_keys` also covers native rows."""


def build_rows(
    settings: BuildSettings,
    first_seq: int,
    rows: Iterable[tuple[int, Row]],
    built: BuildResult,
    writer: RowWriter | None = None,
) -> BuildResult:
    """Write coerced rows with their sequences to files, and complete `built`, to which their reader adds the rejects.

    `first_seq` is the lowest sequence of the task, for the file names. A dry run passes a writer that only counts.
    """
    dataset, own_gateway = datasets.get(settings.dataset), settings.own_gateway
    if writer is None:
        paths = OutputPaths(settings.data_root, settings.flush_id, first_seq)
        writer = PartitionWriter(dataset, paths, settings.field_ids)
    is_purged = settings.tombstones.purge_filter.predicate(dataset)
    may_be_live = dataset.match_rules.may_be_live if dataset.match_rules is not None else None
    # Reference counting frees rows; if the cycle collector scans millions of them, the build takes twice as long.
    collects_garbage = gc.isenabled()
    gc.disable()
    try:
        for seq, row in rows:
            if is_purged is not None and is_purged(row):
                built.purged.append(seq)
                continue
            if (key := hash_row_key(dataset, row, own_gateway)) is not None:
                built.seqs.append(seq)
                built.keys += key
            if (
                may_be_live is not None
                and (settings.match_native or may_be_live(row))
                # Rows of another gateway were matched there.
                and is_own_row(row, own_gateway)
            ):
                built.match_keys.record(dataset, row, seq)
            writer.add(row, seq)
        built.files = writer.close()
    except BaseException:
        writer.discard()
        raise
    finally:
        if collects_garbage:
            gc.enable()
    return built


@dataclass(frozen=True)
class BuildFailure:
    """A failed build task. Its rows are to blame unless `is_environmental` is set."""

    reason: str
    is_environmental: bool = False
    segment: str | None = None
    """The segment whose file could not be read."""


class SliceUnreadable(Exception):
    def __init__(self, segment: str, error: OSError) -> None:
        super().__init__(f"segment {segment} cannot be read: {error}")
        self.segment = segment


def run_catching(task: Task, counts: Sequence[Any] = ()) -> BuildResult | BuildFailure:
    """Run a task in an executor and add what it has done to `counts`. A failure must not fail the other tasks."""
    try:
        result = task.run()
        count_done(task, result, counts)
        return result
    except SliceUnreadable as error:
        return BuildFailure(str(error), is_environmental=True, segment=error.segment)
    except (OSError, MemoryError, NotReady, Retryable) as error:
        # The last two: a store that refuses the keys, or does not answer. The rows are not to blame.
        return BuildFailure(f"{type(error).__name__}: {error}", is_environmental=True)
    except Exception as error:
        return BuildFailure(f"{type(error).__name__}: {error}")


def count_done(task: object, result: BuildResult, counts: Sequence[Any]) -> None:
    if counts and isinstance(task, WatchedTask):
        for count, done in zip(counts, (task.bytes, task.files, result.rows), strict=True):
            count.add(done)


def confirm_worker(_: object) -> bool:
    """Return True in an executor, which proves that workers start and can import this module."""
    return True


@dataclass(frozen=True)
class SegmentSlice:
    """Lines [start, stop) of a segment whose first row has the sequence `base`."""

    segment: str
    path: Path
    base: int
    start: int
    stop: int
    copy: Path | Exception | None = None
    """A copy of these lines alone, or why the driver could not read them (`task_input`)."""

    def lines(self) -> Iterator[tuple[int, bytes]]:
        try:
            if isinstance(self.copy, Exception):
                raise self.copy
            if self.copy is not None:
                with open(self.copy, "rb") as file:
                    yield from enumerate(file, self.start)
                return
            with open_whole(self.path) as file:
                yield from itertools.islice(enumerate(file), self.start, self.stop)
        except OSError as error:
            if isinstance(self.path, ObjectPath) and not isinstance(error, FileNotFoundError):
                # The store does not answer: this segment is no worse than any other.
                raise
            raise SliceUnreadable(self.segment, error) from error

    def read_bytes(self) -> Iterator[bytes]:
        with open_whole(self.path) as file:
            yield from itertools.islice(file, self.start, self.stop)


@dataclass(frozen=True)
class SegmentTask:
    settings: BuildSettings
    slices: tuple[SegmentSlice, ...]
    facts: SessionFactsById = field(default_factory=dict)
    """Facts about sessions that became known after their rows were recorded."""

    @property
    def inputs(self) -> tuple[SegmentSlice, ...]:
        """The slices of files. Every machine can read those of objects."""
        return tuple(each for each in self.slices if not isinstance(each.path, ObjectPath))

    def with_copies(self, copies: Sequence[Path | Exception]) -> SegmentTask:
        placed = dict(zip(self.inputs, copies, strict=True))
        return replace(self, slices=tuple(replace(each, copy=placed.get(each)) for each in self.slices))

    def run(self) -> BuildResult:
        dataset, built = datasets.get(self.settings.dataset), BuildResult()

        def read_rows() -> Iterator[tuple[int, Row]]:
            for piece in self.slices:
                for ordinal, line in piece.lines():
                    try:
                        row = segments.decode_line(dataset, line, ordinal)
                    except RowRejected as reason:
                        built.rejects.append(Reject(piece.segment, ordinal, str(reason), line))
                        continue
                    if self.facts:
                        fill_session_facts(dataset, row, self.facts)
                    yield piece.base + ordinal, row

        return build_rows(self.settings, self.slices[0].base + self.slices[0].start, read_rows(), built)


def fill_session_facts(dataset: Dataset, row: Row, facts: SessionFactsById) -> None:
    """Fill the empty columns of a live row. A native row already has all facts that its client knew."""
    known = facts.get(row.get("session_id", ""))
    if known and not row.get("cwd") and dataset.match_rules is not None and dataset.match_rules.may_be_live(row):
        for name, value in known.items():
            if name in dataset.coercers and not row.get(name):
                row[name] = value


@dataclass(frozen=True)
class BuiltFile:
    path: Path
    source: str
    day: str
    rows: int
    bytes: int
    max_seq: int
    metrics: FileMetrics | None = None
    """If they are missing, the commit reads them from the file."""


@dataclass(frozen=True)
class OutputPaths:
    """Paths for the files of one task: in the table's data folder, named after the flush id."""

    data_root: Path
    flush_id: str
    first_seq: int

    def new_file(self, dataset: Dataset, source: str, day: str) -> Path:
        folder = self.data_root / f"{SOURCE}={encode_path_name(source)}" / f"{dataset.time_column}_day={day}"
        return folder / f"{self.flush_id}-{self.first_seq}-{secrets.token_hex(4)}.parquet"


def encode_path_name(source: str) -> str:
    """Return a safe folder name for a source, which may contain slashes or dots and have any length."""
    name = quote(source, safe="").replace(".", "%2E")
    if len(os.fsencode(name)) <= _MAX_NAME_BYTES:
        return name
    return f"{name[:80]}~{hashlib.sha256(source.encode()).hexdigest()[:16]}"


class PartitionWriter:
    """Writes one Parquet file per (source, day), with bounded buffers, and sets the internal columns."""

    def __init__(self, dataset: Dataset, output: OutputPaths, field_ids: Mapping[str, int]) -> None:
        self._dataset = dataset
        self._output = output
        self._schema = file_schema(dataset, field_ids)
        self._partitions: dict[tuple[str, str], _Partition] = {}
        self._threads = ThreadPoolExecutor(_CLOSING_THREADS)
        self._closed: list[tuple[Path, Future[BuiltFile]]] = []
        self._buffered = 0

    def add(self, row: Row, seq: int) -> None:
        row_id, line = canonical.serialize_row(row)
        key = (self._dataset.source_of(row), row[self._dataset.time_column][:10])
        partition = self._partitions.get(key)
        if partition is None:
            path = self._output.new_file(self._dataset, *key)
            partition = _Partition(path, self._schema, {SOURCE: key[0], BATCH_ID: self._output.flush_id})
            self._partitions[key] = partition
        partition.lines.append(line)
        partition.seqs.append(seq)
        partition.row_ids.append(row_id)
        partition.buffered += len(line)
        self._buffered += len(line)
        if partition.buffered >= _ROW_GROUP_BYTES:
            self._write(key)
        elif self._buffered >= _BUFFER_BYTES:
            self._write(max(self._partitions, key=lambda each: self._partitions[each].buffered))

    def _write(self, key: tuple[str, str]) -> None:
        partition = self._partitions[key]
        self._buffered -= partition.write_rows()
        # Limit the number of open files: finish the one that was written least recently.
        self._partitions[key] = self._partitions.pop(key)
        opened = [each for each, partition in self._partitions.items() if partition.writer is not None]
        if len(opened) > _MAX_OPEN_FILES:
            self._buffered -= self._partitions[opened[0]].buffered
            self._finish(opened[0])

    def _finish(self, key: tuple[str, str]) -> None:
        partition = self._partitions.pop(key)
        if partition.lines:
            partition.write_rows()
        assert partition.writer is not None
        # An fsync takes as long as writing a thousand rows, which goes on meanwhile.
        self._closed.append((partition.path, self._threads.submit(partition.writer.close, *key)))
        if len(self._closed) > _MAX_OPEN_FILES:
            # On a slow disk, no more files than these wait open.
            self._closed[-_MAX_OPEN_FILES][1].result()

    def close(self) -> list[BuiltFile]:
        """Return the files when all of them are durable."""
        with self._threads:
            for key in sorted(self._partitions):
                self._finish(key)
        return [file.result() for _, file in self._closed]

    def discard(self) -> None:
        for partition in self._partitions.values():
            if partition.writer is not None:
                partition.writer.discard()
        self._threads.shutdown()
        for path, _ in self._closed:
            path.unlink(missing_ok=True)


@dataclass
class _Partition:
    """One output file. Buffers rows as the JSON their id is computed from, which is small and fast to convert."""

    path: Path
    schema: pa.Schema
    constant: dict[str, str]
    writer: DataFileWriter | None = None
    lines: list[bytes] = field(default_factory=list)
    seqs: list[int] = field(default_factory=list)
    row_ids: list[str] = field(default_factory=list)
    buffered: int = 0

    def write_rows(self) -> int:
        """Write the buffered rows as one row group. Return the number of buffered bytes."""
        if self.writer is None:
            self.writer = DataFileWriter(self.path, self.schema)
        internal = {name: pa.repeat(value, len(self.lines)) for name, value in self.constant.items()}
        internal[SEQ], internal[ROW_ID] = pa.array(self.seqs, pa.int64()), pa.array(self.row_ids, pa.string())
        freed, self.buffered = self.buffered, 0
        self.writer.write(table_from_json_lines(self.schema, self.lines, internal), freed)
        self.lines, self.seqs, self.row_ids = [], [], []
        return freed


class DataFileWriter:
    """Writes one new data file, with the sizes of its row groups in memory in the footer."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self._spooled: IO[bytes] | None = None
        if isinstance(path, ObjectPath):
            self._spooled = spool_object()
            self._sink = pa.PythonFile(self._spooled, "w")
        else:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600, exist_ok=False)
            self._sink = pa.OSFile(str(path), "wb")
        self._schema = schema
        self._footer: list[pq.FileMetaData] = []
        self._writer = parquet_writer(self._sink, schema, self._footer)
        self._group_bytes: list[int] = []
        self._rows = self._max_seq = 0

    @property
    def bytes(self) -> int:
        return int(self._sink.tell())

    def write(self, rows: pa.Table, memory_bytes: int | None = None) -> None:
        """Write one row group; its size in memory is that of the table unless given."""
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._group_bytes.append(rows.nbytes if memory_bytes is None else memory_bytes)
        self._rows += rows.num_rows
        self._max_seq = max(self._max_seq, pc.max(rows.column(SEQ)).as_py() or 0)

    def close(self, source: str, day: str) -> BuiltFile:
        """Finish the file and make it durable."""
        self._writer.add_key_value_metadata({FOOTER_KEY: ",".join(map(str, self._group_bytes))})
        self._writer.close()
        if self._spooled is not None and isinstance(self.path, ObjectPath):
            self._sink.flush()
            size = self._spooled.tell()
            put_file(self.path, self._spooled)
            self._sink.close()
        else:
            self._sink.close()
            self.path.chmod(0o600)
            durable_files.fsync_file(self.path)
            size = self.path.stat().st_size
        (footer,) = self._footer
        metrics = describe_columns(footer, self._schema)
        return BuiltFile(self.path, source, day, self._rows, size, self._max_seq, metrics)

    def discard(self) -> None:
        self._writer.close()
        self._sink.close()
        if self._spooled is None:
            self.path.unlink(missing_ok=True)


def table_from_json_lines(schema: pa.Schema, lines: Sequence[bytes], internal: Mapping[str, pa.Array]) -> pa.Table:
    """Convert rows to a table: public columns from coerced rows in JSON, internal columns from `internal`.

    Parsing the JSON that the row id was computed from takes Arrow half as long as building a list per column.
    """
    data = b"\n".join(lines)
    # Timestamps are parsed as text and cast, because Arrow ignores zones.
    parsed = pa.schema(
        (field.name, pa.string() if field.type == TIMESTAMP else field.type)
        for field in schema
        if field.name not in internal
    )
    read = pj.read_json(
        pa.BufferReader(data),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=parsed, newlines_in_values=False, unexpected_field_behavior="error"
        ),
    )
    arrays = [
        internal[field.name] if field.name in internal else read.column(field.name).cast(field.type) for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)
