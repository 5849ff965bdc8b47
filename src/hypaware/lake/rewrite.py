"""Rewrite data files: sort rows by sequence, write files of the target size, and optionally filter or patch rows.

Runs in Spark tasks for compaction, purge and rebuild. Input and output are files of one (source, day); no table
references the new files yet. Rows keep their sequence, row id and flush id. Memory holds only row groups whose
sequences overlap; files of flushes and imports hardly do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hypaware.errors import LakeError
from hypaware.lake import row_groups
from hypaware.lake.arrow import file_schema
from hypaware.lake.build import Built
from hypaware.lake.partitions import BuiltFile, Place, finish, parquet_writer
from hypaware.lake.row_groups import RowGroup
from hypaware.lake.sizes import TARGET_BYTES
from hypaware.model import datasets
from hypaware.model.datasets import SEQ

_GROUP_BYTES = 4 << 20
_BATCH_ROWS = 2_000


class Amend(Protocol):
    """Changes columns of rows, but not their number, order or sequences. A plain value that is sent to tasks."""

    def apply(self, rows: pa.Table) -> pa.Table:
        """Return the patched rows in the same order."""


class LeaveOut(Protocol):
    """Selects rows to drop. A plain value that is sent to tasks."""

    def select(self, rows: pa.Table) -> Any:
        """Return a boolean Arrow array that is true for each row to drop. Rows have all columns of the table."""


@dataclass(frozen=True)
class Rewritten:
    """The row balance of a `RewriteTask`."""

    rows_in: int
    rows_out: int
    sum_in: int
    """Sum of the sequences: proves that the same rows came out, not only as many."""
    sum_out: int
    dropped: tuple[int, ...] = ()
    """Sequences of the dropped rows."""

    @property
    def balanced(self) -> bool:
        return self.rows_in == self.rows_out + len(self.dropped) and self.sum_in == self.sum_out + sum(self.dropped)


@dataclass(frozen=True)
class RewriteTask:
    """Rewrite files of one (source, day). `Built.files` are the new files, `Built.reports` is one `Rewritten`."""

    dataset: str
    source: str
    day: str
    paths: tuple[Path, ...]
    output: Place
    field_ids: Mapping[str, int]
    exclude: LeaveOut | None = None
    patch: Amend | None = None
    target_bytes: int = TARGET_BYTES

    def run(self) -> Built:
        dataset = datasets.get(self.dataset)
        schema = file_schema(dataset, self.field_ids)
        writer = Writer(lambda: self.output.new_file(dataset, self.source, self.day), schema, self.target_bytes)
        balance = _Tally()
        try:
            for rows in in_order(self.paths, schema):
                balance.count_input(rows)
                if self.exclude is not None:
                    unwanted = pc.fill_null(self.exclude.select(rows), False)
                    balance.dropped += rows.filter(unwanted).column(SEQ).to_pylist()
                    rows = rows.filter(pc.invert(unwanted))
                if self.patch is not None:
                    rows = self.patch.apply(rows)
                balance.count_output(rows)
                writer.add(rows)
            files = writer.close(self.source, self.day)
        except BaseException:
            writer.discard()
            raise
        return Built(files=files, reports=[balance.result()])


class _Tally:
    def __init__(self) -> None:
        self.rows_in = self.rows_out = self.sum_in = self.sum_out = 0
        self.dropped: list[int] = []

    def count_input(self, rows: pa.Table) -> None:
        self.rows_in += rows.num_rows
        self.sum_in += _sum(rows)

    def count_output(self, rows: pa.Table) -> None:
        self.rows_out += rows.num_rows
        self.sum_out += _sum(rows)

    def result(self) -> Rewritten:
        return Rewritten(self.rows_in, self.rows_out, self.sum_in, self.sum_out, tuple(self.dropped))


def in_order(paths: Sequence[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of all files by sequence, a few MiB at a time, or more if row groups overlap.

    A row group is read when its first sequence is next. Rows without a sequence come with the first rows.
    """
    groups = sorted(((path, group) for path in paths for group in _row_groups(path)), key=lambda each: _first(each[1]))
    buffer: list[pa.Table] = []
    buffered = 0
    with _Reader(schema) as reader:
        for path, group in groups:
            if buffered >= _GROUP_BYTES:
                rows = pa.concat_tables(buffer)
                ready = pc.fill_null(pc.less(rows.column(SEQ), _first(group)), True)
                if pc.any(ready).as_py():
                    yield _sorted(rows.filter(ready))
                    rows = rows.filter(pc.invert(ready))
                buffer, buffered = [rows], rows.nbytes
            buffer.append(reader.read(path, group))
            buffered += buffer[-1].nbytes
    if any(rows.num_rows for rows in buffer):
        yield _sorted(pa.concat_tables(buffer))


def read_columns(path: Path, names: Sequence[str]) -> pa.Table:
    """Read the given columns, as far as the file has them."""
    with _naming(path), pq.ParquetFile(path) as parquet:
        present = set(parquet.schema_arrow.names)
        return parquet.read(columns=[name for name in names if name in present], use_threads=False)


def read_batches(path: Path, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read the given columns in batches, as far as the file has them."""
    with _naming(path), pq.ParquetFile(path) as parquet:
        present = set(parquet.schema_arrow.names)
        yield from parquet.iter_batches(_BATCH_ROWS, columns=[name for name in names if name in present])


class _Reader:
    """Reads row groups. Keeps the last file open, because the next group usually comes from it too."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._open: tuple[Path, pq.ParquetFile] | None = None

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open is not None:
            self._open[1].close()

    def read(self, path: Path, group: RowGroup) -> pa.Table:
        """Read one row group. Columns that the file lacks are null."""
        with _naming(path):
            file = self._file(path)
            names = set(file.schema_arrow.names)
            wanted = [name for name in self._schema.names if name in names]
            rows = file.read_row_group(group.index, columns=wanted, use_threads=False)
        columns = [
            rows.column(field.name).cast(field.type) if field.name in names else pa.nulls(len(rows), field.type)
            for field in self._schema
        ]
        return pa.Table.from_arrays(columns, schema=self._schema)

    def _file(self, path: Path) -> pq.ParquetFile:
        if self._open is None or self._open[0] != path:
            self.__exit__()
            self._open = path, pq.ParquetFile(path)
        return self._open[1]


def _row_groups(path: Path) -> tuple[RowGroup, ...]:
    with _naming(path):
        return row_groups.of_file(path)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Add the path to read errors."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise LakeError(f"{path} cannot be read: {error}", kind="unreadable_file") from error


class Writer:
    """Writes row groups of a few MiB to files of about the target size."""

    def __init__(self, new_path: Callable[[], Path], schema: pa.Schema, target_bytes: int = TARGET_BYTES) -> None:
        self._new_path = new_path
        self._schema = schema
        self._target_bytes = target_bytes
        self._buffer = schema.empty_table()
        self._finished: list[_File] = []
        self._open: _File | None = None

    def add(self, rows: pa.Table) -> None:
        self._buffer = pa.concat_tables([self._buffer, rows])
        while self._buffer.nbytes >= _GROUP_BYTES and self._buffer.num_rows > 1:
            count = max(1, self._buffer.num_rows * _GROUP_BYTES // self._buffer.nbytes)
            self._write(self._buffer.slice(0, count))
            self._buffer = self._buffer.slice(count)

    def _write(self, rows: pa.Table) -> None:
        if self._open is None:
            path = self._new_path()
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._open = _File(path, self._schema)
        self._open.write(rows)
        if self._open.bytes >= self._target_bytes:
            self._finish()

    def _finish(self) -> None:
        if self._open is not None:
            self._open.close()
            self._finished.append(self._open)
            self._open = None

    def close(self, source: str, day: str) -> list[BuiltFile]:
        if self._buffer.num_rows:
            self._write(self._buffer)
        self._finish()
        return [file.built(source, day) for file in self._finished]

    def discard(self) -> None:
        for file in (*self._finished, *filter(None, [self._open])):
            file.discard()


class _File:
    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._sink = path.open("xb")
        self._writer = parquet_writer(self._sink, schema)
        self._groups: list[int] = []
        self._rows = 0
        self._max_seq = 0

    @property
    def bytes(self) -> int:
        return self._sink.tell()

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._groups.append(rows.nbytes)
        self._rows += rows.num_rows
        self._max_seq = max(self._max_seq, pc.max(rows.column(SEQ)).as_py() or 0)

    def close(self) -> None:
        self._writer.add_key_value_metadata(row_groups.footer_note(self._groups))
        self._writer.close()
        self._sink.close()
        finish(self._path)

    def built(self, source: str, day: str) -> BuiltFile:
        return BuiltFile(self._path, source, day, self._rows, self._path.stat().st_size, self._max_seq)

    def discard(self) -> None:
        self._writer.close()
        self._sink.close()
        self._path.unlink(missing_ok=True)


def _first(group: RowGroup) -> int:
    return group.min_seq if group.min_seq is not None else 0


def _sorted(rows: pa.Table) -> pa.Table:
    """Sort rows by sequence, unless they are in order, as rows of consecutive flushes are."""
    seqs = rows.column(SEQ).combine_chunks()
    if pc.all(pc.less_equal(seqs.slice(0, len(seqs) - 1), seqs.slice(1)), skip_nulls=False).as_py():
        return rows
    return rows.take(pc.sort_indices(seqs))


def _sum(rows: pa.Table) -> int:
    return int(pc.sum(rows.column(SEQ).cast(pa.decimal128(38, 0))).as_py() or 0)
