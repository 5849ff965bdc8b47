"""Rewrite data files: sort rows by sequence, write files of the target size, and optionally filter or patch rows.

Runs in Spark tasks for compaction, purge and rebuild. Input and output are files of one (source, day); a row that a
patch gives another day goes to a file of that day. Rows keep their sequence, row id and flush id. Memory holds only row
groups whose sequences overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hypaware.errors import LakeError
from hypaware.home.storage import arrow_source
from hypaware.lake import TARGET_FILE_BYTES
from hypaware.lake.build import BuildResult, BuiltFile, DataFileWriter, OutputPaths
from hypaware.lake.parquet import RowGroup, conform_rows, read_row_groups
from hypaware.lake.schema import file_schema
from hypaware.model import datasets
from hypaware.model.datasets import SEQ, Dataset

_GROUP_BYTES = 4 << 20


class RowPatch(Protocol):
    """Changes columns of rows, but not their number, order or sequences. A plain value that is sent to tasks."""

    def apply(self, rows: pa.Table) -> pa.Table:
        """Return the patched rows in the same order."""


class RowFilter(Protocol):
    """Selects rows to drop. A plain value that is sent to tasks."""

    def select(self, rows: pa.Table) -> Any:
        """Return a boolean Arrow array that is true for each row to drop. Rows have all columns of the table."""


@dataclass(frozen=True)
class RewriteBalance:
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
    """Rewrite files of one (source, day). Returns the new files and, as the only report, a `RewriteBalance`."""

    dataset: str
    source: str
    day: str
    paths: tuple[Path, ...]
    output: OutputPaths
    field_ids: Mapping[str, int]
    exclude: RowFilter | None = None
    patch: RowPatch | None = None
    target_bytes: int = TARGET_FILE_BYTES

    def run(self) -> BuildResult:
        dataset = datasets.get(self.dataset)
        schema = file_schema(dataset, self.field_ids)
        writers: dict[str, RollingWriter] = {}
        rows_in = rows_out = sum_in = sum_out = 0
        dropped: list[int] = []
        try:
            for rows in read_in_order(self.paths, schema):
                rows_in, sum_in = rows_in + rows.num_rows, sum_in + _sum_sequences(rows)
                if self.exclude is not None:
                    unwanted = pc.fill_null(self.exclude.select(rows), False)
                    dropped += rows.filter(unwanted).column(SEQ).to_pylist()
                    rows = rows.filter(pc.invert(unwanted))
                if self.patch is not None:
                    rows = self.patch.apply(rows)
                rows_out, sum_out = rows_out + rows.num_rows, sum_out + _sum_sequences(rows)
                for day, some in self._split_by_day(rows, dataset):
                    if day not in writers:
                        writers[day] = RollingWriter(self.output, dataset, self.source, day, schema, self.target_bytes)
                    writers[day].add(some)
            files = [file for writer in writers.values() for file in writer.close()]
        except BaseException:
            for writer in writers.values():
                writer.discard()
            raise
        balance = RewriteBalance(rows_in, rows_out, sum_in, sum_out, tuple(dropped))
        return BuildResult(files=files, reports=[balance])

    def _split_by_day(self, rows: pa.Table, dataset: Dataset) -> Iterator[tuple[str, pa.Table]]:
        if self.patch is None:
            yield self.day, rows
            return
        days = rows.column(dataset.time_column).cast(pa.date32()).cast(pa.string())
        for day in pc.unique(days).to_pylist():
            yield day, rows.filter(pc.equal(days, day))


def _sum_sequences(rows: pa.Table) -> int:
    return int(pc.sum(rows.column(SEQ).cast(pa.decimal128(38, 0))).as_py() or 0)


def read_in_order(
    paths: Sequence[Path], schema: pa.Schema, deleted: Mapping[Path, Sequence[int]] | None = None
) -> Iterator[pa.Table]:
    """Yield the rows of all files by sequence, a few MiB at a time, those without a sequence with the first ones.

    `deleted` are positions in files whose rows are left out.
    """
    groups: list[tuple[Path, RowGroup]] = []
    for path in paths:
        with _name_file_in_errors(path):
            groups += [(path, group) for group in read_row_groups(path)]
    groups.sort(key=lambda each: each[1].min_seq or 0)
    buffer: list[pa.Table] = []
    buffered = 0
    # Keep the last file open, because the next group usually comes from it too.
    open_file = lru_cache(maxsize=1)(lambda path: pq.ParquetFile(arrow_source(path)))
    for path, group in groups:
        if buffered >= _GROUP_BYTES:
            rows = pa.concat_tables(buffer)
            ready = pc.fill_null(pc.less(rows.column(SEQ), group.min_seq or 0), True)
            if pc.any(ready).as_py():
                yield _sort_by_sequence(rows.filter(ready))
                rows = rows.filter(pc.invert(ready))
            buffer, buffered = [rows], rows.nbytes
        with _name_file_in_errors(path):
            file = open_file(path)
            present = set(file.schema_arrow.names)
            wanted = [name for name in schema.names if name in present]
            rows = file.read_row_group(group.index, columns=wanted, use_threads=False)
        if deleted and path in deleted:
            rows = without_positions(
                rows, deleted[path], sum(each.rows for each in read_row_groups(path)[: group.index])
            )
        buffer.append(conform_rows(rows, schema))
        buffered += buffer[-1].nbytes
    if any(rows.num_rows for rows in buffer):
        yield _sort_by_sequence(pa.concat_tables(buffer))


def without_positions(rows: pa.Table, positions: Sequence[int], start: int) -> pa.Table:
    """Return the rows of a file from `start` on without those at the given positions of the file."""
    if not positions:
        return rows
    places = pa.array(range(start, start + rows.num_rows), pa.int64())
    return rows.filter(pc.invert(pc.is_in(places, value_set=pa.array(positions, pa.int64()))))


def _sort_by_sequence(rows: pa.Table) -> pa.Table:
    """Sort rows by sequence, unless they are in order, as rows of consecutive flushes are."""
    seqs = rows.column(SEQ).combine_chunks()
    if pc.all(pc.less_equal(seqs.slice(0, len(seqs) - 1), seqs.slice(1)), skip_nulls=False).as_py():
        return rows
    return rows.take(pc.sort_indices(seqs))


def read_columns(path: Path, names: Sequence[str]) -> pa.Table:
    """Read the given columns, as far as the file has them."""
    with _name_file_in_errors(path), pq.ParquetFile(arrow_source(path)) as parquet:
        present = set(parquet.schema_arrow.names)
        return parquet.read(columns=[name for name in names if name in present], use_threads=False)


@contextmanager
def _name_file_in_errors(path: Path) -> Iterator[None]:
    """Add the path to read errors."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise LakeError(f"{path} cannot be read: {error}", kind="unreadable_file") from error


class RollingWriter:
    """Writes row groups of a few MiB to files of about the target size."""

    def __init__(
        self,
        output: OutputPaths,
        dataset: Dataset,
        source: str,
        day: str,
        schema: pa.Schema,
        target_bytes: int = TARGET_FILE_BYTES,
    ) -> None:
        self._output = output
        self._dataset = dataset
        self._partition = (source, day)
        self._schema = schema
        self._target_bytes = target_bytes
        self._buffer = schema.empty_table()
        self._finished: list[BuiltFile] = []
        self._open: DataFileWriter | None = None

    def add(self, rows: pa.Table) -> None:
        self._buffer = pa.concat_tables([self._buffer, rows])
        while self._buffer.nbytes >= _GROUP_BYTES and self._buffer.num_rows > 1:
            count = max(1, self._buffer.num_rows * _GROUP_BYTES // self._buffer.nbytes)
            self._write(self._buffer.slice(0, count))
            self._buffer = self._buffer.slice(count)

    def _write(self, rows: pa.Table) -> None:
        if self._open is None:
            self._open = DataFileWriter(self._output.new_file(self._dataset, *self._partition), self._schema)
        self._open.write(rows)
        if self._open.bytes >= self._target_bytes:
            self._finish()

    def _finish(self) -> None:
        if self._open is not None:
            self._finished.append(self._open.close(*self._partition))
            self._open = None

    def close(self) -> list[BuiltFile]:
        if self._buffer.num_rows:
            self._write(self._buffer)
        self._finish()
        return self._finished

    def discard(self) -> None:
        for file in self._finished:
            file.path.unlink(missing_ok=True)
        if self._open is not None:
            self._open.discard()
