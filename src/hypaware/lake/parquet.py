"""Data files: Parquet files of one source and day, fsynced, under names that no other attempt uses.

Data files never change, so footers are cached. A text that many rows repeat is stored once, so the footer has the size
of each row group in memory too: `hyp.row-group-bytes`, numbers separated by commas.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hypaware.home import durable_files
from hypaware.lake.schema import file_schema, table_from_json_lines
from hypaware.model import canonical
from hypaware.model.columns import ColumnType
from hypaware.model.datasets import BATCH_ID, ROW_ID, SEQ, SOURCE, Dataset, Row

_FOOTER_KEY = "hyp.row-group-bytes"
_MAX_CACHED_FOOTERS = 2_048
# Row groups of a few MiB let a reader skip most of a file. The buffer limit bounds a task's memory.
_ROW_GROUP_BYTES = 4 << 20
_BUFFER_BYTES = 24 << 20
_MAX_OPEN_FILES = 64
_MAX_NAME_BYTES = 120
_BATCH_ROWS = 2_000


@dataclass(frozen=True)
class BuiltFile:
    path: Path
    source: str
    day: str
    rows: int
    bytes: int
    max_seq: int


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
        self._finished: list[BuiltFile] = []
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
        self._finished.append(partition.writer.close(*key))

    def close(self) -> list[BuiltFile]:
        for key in sorted(self._partitions):
            self._finish(key)
        return self._finished

    def discard(self) -> None:
        for partition in self._partitions.values():
            if partition.writer is not None:
                partition.writer.discard()
        for file in self._finished:
            file.path.unlink(missing_ok=True)


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
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=False)
        self.path = path
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = parquet_writer(self._sink, schema)
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
        """Finish the file and fsync it."""
        self._writer.add_key_value_metadata({_FOOTER_KEY: ",".join(map(str, self._group_bytes))})
        self._writer.close()
        self._sink.close()
        self.path.chmod(0o600)
        durable_files.fsync_file(self.path)
        return BuiltFile(self.path, source, day, self._rows, self.path.stat().st_size, self._max_seq)

    def discard(self) -> None:
        self._writer.close()
        self._sink.close()
        self.path.unlink(missing_ok=True)


def parquet_writer(path: Path | pa.NativeFile, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(path, schema, compression="zstd", compression_level=1, store_schema=False)


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


@lru_cache(maxsize=_MAX_CACHED_FOOTERS)
def read_row_groups(path: Path) -> tuple[RowGroup, ...]:
    footer = pq.read_metadata(path)
    column = footer.schema.to_arrow_schema().get_field_index(SEQ)
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    encoded = sum(group.total_byte_size for group in groups)
    stored_share = path.stat().st_size / max(encoded, 1)
    sizes = (footer.metadata or {}).get(_FOOTER_KEY.encode())
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
    with pq.ParquetFile(path) as file:
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
