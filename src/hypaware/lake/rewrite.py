"""Writing the rows of data files again: in the order of their sequences, in files of a good size, less some.

Runs in Spark's tasks, for whoever keeps a table: rows of one (source, day) go in, files of the same (source, day) come
out, under names that nothing names yet. A row stays what it was, its sequence, its id and its flush included. Memory
holds the row groups that overlap in their sequences, not the files: what a flush or an import writes hardly overlaps.
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
    """Changes columns of rows, never how many they are, nor their sequences. A plain value, it travels to the tasks."""

    def of(self, rows: pa.Table) -> pa.Table:
        """The same rows, in their order."""


class LeaveOut(Protocol):
    """Says which rows do not go on. Travels to the tasks, so it is a plain value."""

    def rows(self, rows: pa.Table) -> Any:
        """A boolean Arrow array, true where a row (all columns of the table) is left out."""


@dataclass(frozen=True)
class Rewritten:
    """The note of a `RewriteTask`: the balance of its rows."""

    rows_in: int
    rows_out: int
    sum_in: int
    """Of the sequences, so that not only as many rows but the same rows came out."""
    sum_out: int
    left_out: tuple[int, ...] = ()
    """Sequences of the rows that did not go on."""

    @property
    def balanced(self) -> bool:
        return self.rows_in == self.rows_out + len(self.left_out) and self.sum_in == self.sum_out + sum(self.left_out)


@dataclass(frozen=True)
class RewriteTask:
    """All rows of the files, of one (source, day). `Built.files` are the new files, `Built.notes` one `Rewritten`."""

    dataset: str
    source: str
    day: str
    paths: tuple[Path, ...]
    place: Place
    field_ids: Mapping[str, int]
    leave_out: LeaveOut | None = None
    amend: Amend | None = None
    target_bytes: int = TARGET_BYTES

    def run(self) -> Built:
        dataset = datasets.get(self.dataset)
        schema = file_schema(dataset, self.field_ids)
        writer = Writer(lambda: self.place.new_file(dataset, self.source, self.day), schema, self.target_bytes)
        tally = _Tally()
        try:
            for rows in in_order(self.paths, schema):
                tally.saw(rows)
                if self.leave_out is not None:
                    unwanted = pc.fill_null(self.leave_out.rows(rows), False)
                    tally.left_out += rows.filter(unwanted).column(SEQ).to_pylist()
                    rows = rows.filter(pc.invert(unwanted))
                if self.amend is not None:
                    rows = self.amend.of(rows)
                tally.passed(rows)
                writer.add(rows)
            files = writer.close(self.source, self.day)
        except BaseException:
            writer.discard()
            raise
        return Built(files=files, notes=[tally.note()])


class _Tally:
    def __init__(self) -> None:
        self.rows_in = self.rows_out = self.sum_in = self.sum_out = 0
        self.left_out: list[int] = []

    def saw(self, rows: pa.Table) -> None:
        self.rows_in += rows.num_rows
        self.sum_in += _sum(rows)

    def passed(self, rows: pa.Table) -> None:
        self.rows_out += rows.num_rows
        self.sum_out += _sum(rows)

    def note(self) -> Rewritten:
        return Rewritten(self.rows_in, self.rows_out, self.sum_in, self.sum_out, tuple(self.left_out))


def in_order(paths: Sequence[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of all files in the order of their sequences, some MiB at a time or more where much overlaps.

    Row groups are read as their first sequence comes up. Rows without a sequence come with whatever comes first.
    """
    groups = sorted(((path, group) for path in paths for group in _row_groups(path)), key=lambda each: _first(each[1]))
    waiting: list[pa.Table] = []
    held = 0
    with _Reader(schema) as reader:
        for path, group in groups:
            if held >= _GROUP_BYTES:
                rows = pa.concat_tables(waiting)
                ready = pc.fill_null(pc.less(rows.column(SEQ), _first(group)), True)
                if pc.any(ready).as_py():
                    yield _sorted(rows.filter(ready))
                    rows = rows.filter(pc.invert(ready))
                waiting, held = [rows], rows.nbytes
            waiting.append(reader.read(path, group))
            held += waiting[-1].nbytes
    if any(rows.num_rows for rows in waiting):
        yield _sorted(pa.concat_tables(waiting))


def read_columns(path: Path, names: Sequence[str]) -> pa.Table:
    """Those of the columns that the file has."""
    with _naming(path), pq.ParquetFile(path) as held:
        present = set(held.schema_arrow.names)
        return held.read(columns=[name for name in names if name in present], use_threads=False)


def read_batches(path: Path, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The same, some rows at a time."""
    with _naming(path), pq.ParquetFile(path) as held:
        present = set(held.schema_arrow.names)
        yield from held.iter_batches(_BATCH_ROWS, columns=[name for name in names if name in present])


class _Reader:
    """Row groups, with the file that the last one came from held open: the next one is most often in it too."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._open: tuple[Path, pq.ParquetFile] | None = None

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open is not None:
            self._open[1].close()

    def read(self, path: Path, group: RowGroup) -> pa.Table:
        """Columns that are younger than the file are null."""
        with _naming(path):
            file = self._file(path)
            names = set(file.schema_arrow.names)
            wanted = [name for name in self._schema.names if name in names]
            rows = file.read_row_group(group.place, columns=wanted, use_threads=False)
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
    """Whoever reads of the trouble wants to know which file it was."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise LakeError(f"{path} cannot be read: {error}", kind="unreadable_file") from error


class Writer:
    """Row groups of a few MiB, files of about the target size, the next one begun when one is full."""

    def __init__(self, new_path: Callable[[], Path], schema: pa.Schema, target_bytes: int = TARGET_BYTES) -> None:
        self._new_path = new_path
        self._schema = schema
        self._target_bytes = target_bytes
        self._waiting = schema.empty_table()
        self._finished: list[_File] = []
        self._open: _File | None = None

    def add(self, rows: pa.Table) -> None:
        self._waiting = pa.concat_tables([self._waiting, rows])
        while self._waiting.nbytes >= _GROUP_BYTES and self._waiting.num_rows > 1:
            count = max(1, self._waiting.num_rows * _GROUP_BYTES // self._waiting.nbytes)
            self._write(self._waiting.slice(0, count))
            self._waiting = self._waiting.slice(count)

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
        if self._waiting.num_rows:
            self._write(self._waiting)
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
    """What flushes wrote one after the other is in order already."""
    seqs = rows.column(SEQ).combine_chunks()
    if pc.all(pc.less_equal(seqs.slice(0, len(seqs) - 1), seqs.slice(1)), skip_nulls=False).as_py():
        return rows
    return rows.take(pc.sort_indices(seqs))


def _sum(rows: pa.Table) -> int:
    return int(pc.sum(rows.column(SEQ).cast(pa.decimal128(38, 0))).as_py() or 0)
