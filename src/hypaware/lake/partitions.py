"""Write rows to fsynced Parquet files, one per (source, day), under names that no other attempt uses."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from hypaware import durable
from hypaware.lake import row_groups
from hypaware.lake.arrow import file_schema, from_json_lines
from hypaware.model import canonical
from hypaware.model.datasets import BATCH_ID, ROW_ID, SEQ, SOURCE, Dataset, Row

# Row groups of a few MiB let a reader skip most of a file. The buffer limit bounds a task's memory.
_ROW_GROUP_BYTES = 4 << 20
_BUFFER_BYTES = 24 << 20
_MAX_OPEN = 64
_NAME_BYTES_MAX = 120


@dataclass(frozen=True)
class BuiltFile:
    path: Path
    source: str
    day: str
    rows: int
    bytes: int
    max_seq: int


@dataclass(frozen=True)
class Place:
    """Paths for the files of one task: in the table's data folder, named after the flush id."""

    data_root: Path
    flush_id: str
    first_seq: int

    def new_file(self, dataset: Dataset, source: str, day: str) -> Path:
        folder = self.data_root / f"{SOURCE}={path_name(source)}" / f"{dataset.time_column}_day={day}"
        return folder / f"{self.flush_id}-{self.first_seq}-{secrets.token_hex(4)}.parquet"


class PartitionWriter:
    """Writes one Parquet file per (source, day), with bounded buffers, and sets the internal columns."""

    def __init__(self, dataset: Dataset, output: Place, field_ids: Mapping[str, int]) -> None:
        self._dataset = dataset
        self._output = output
        self._schema = file_schema(dataset, field_ids)
        self._partitions: dict[tuple[str, str], _Partition] = {}
        self._finished: list[BuiltFile] = []
        self._buffered = 0

    def add(self, row: Row, seq: int) -> None:
        row_id, line = canonical.row_id_and_text(row)
        key = (self._dataset.source_of(row), row[self._dataset.time_column][:10])
        partition = self._partitions.get(key)
        if partition is None:
            path = self._output.new_file(self._dataset, *key)
            partition = _Partition(path, self._schema, source=key[0], batch_id=self._output.flush_id)
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
        opened = [each for each, partition in self._partitions.items() if partition.is_open]
        if len(opened) > _MAX_OPEN:
            self._buffered -= self._partitions[opened[0]].buffered
            self._finish(opened[0])

    def _finish(self, key: tuple[str, str]) -> None:
        self._finished.append(self._partitions.pop(key).close(*key))

    def close(self) -> list[BuiltFile]:
        for key in sorted(self._partitions):
            self._finish(key)
        return self._finished

    def discard(self) -> None:
        for partition in self._partitions.values():
            partition.discard()
        for file in self._finished:
            file.path.unlink(missing_ok=True)


class _Partition:
    """One output file. Buffers rows as the JSON their id is computed from, which is small and fast to convert."""

    def __init__(self, path: Path, schema: pa.Schema, source: str, batch_id: str) -> None:
        self.path = path
        self._schema = schema
        self._constant = {SOURCE: source, BATCH_ID: batch_id}
        self._writer: pq.ParquetWriter | None = None
        self.lines: list[bytes] = []
        self.seqs: list[int] = []
        self.row_ids: list[str] = []
        self.buffered = 0
        self._group_bytes: list[int] = []
        self.count = 0
        self.max_seq = 0

    @property
    def is_open(self) -> bool:
        return self._writer is not None

    def write_rows(self) -> int:
        """Write the buffered rows as one row group. Return the number of buffered bytes."""
        if self._writer is None:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._writer = parquet_writer(self.path, self._schema)
        count = len(self.lines)
        internal = {name: pa.repeat(value, count) for name, value in self._constant.items()}
        internal[SEQ], internal[ROW_ID] = pa.array(self.seqs, pa.int64()), pa.array(self.row_ids, pa.string())
        self._writer.write_table(from_json_lines(self._schema, self.lines, internal), row_group_size=count)
        self.count += count
        self.max_seq = max(self.max_seq, max(self.seqs))
        freed, self.buffered = self.buffered, 0
        self._group_bytes.append(freed)
        self.lines, self.seqs, self.row_ids = [], [], []
        return freed

    def close(self, source: str, day: str) -> BuiltFile:
        """Finish the file and fsync it."""
        if self.lines:
            self.write_rows()
        assert self._writer is not None
        self._writer.add_key_value_metadata(row_groups.footer_note(self._group_bytes))
        self._writer.close()
        finish(self.path)
        return BuiltFile(self.path, source, day, self.count, self.path.stat().st_size, self.max_seq)

    def discard(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self.path.unlink(missing_ok=True)


def parquet_writer(path: Path | IO[bytes], schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(path, schema, compression="zstd", compression_level=1, store_schema=False)


def finish(path: Path) -> None:
    path.chmod(0o600)
    durable.fsync_file(path)


def path_name(source: str) -> str:
    """Return a safe folder name for a source, which may contain slashes or dots and have any length."""
    name = quote(source, safe="").replace(".", "%2E")
    if len(os.fsencode(name)) <= _NAME_BYTES_MAX:
        return name
    return f"{name[:80]}~{hashlib.sha256(source.encode()).hexdigest()[:16]}"
