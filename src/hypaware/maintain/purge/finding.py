"""Search for rows in data files. A task reads the deciding column, and the keys only of rows that match.

Runs in Spark tasks, and in the process itself for a dry run. Row groups that cannot hold such a row are skipped by
their footer statistics.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from hypaware.lake.build import Built, key_hash, row_key
from hypaware.lake.meetings import Meetings, said_live
from hypaware.lake.metadata import DataFile
from hypaware.maintain.purge import mention
from hypaware.maintain.purge.selection import Selector
from hypaware.model import datasets
from hypaware.model.datasets import GATEWAY, SEQ, Dataset

_TASK_FILES = 24
_TASK_BYTES = 256 << 20
# Ids of at most this many rows per file are reported; they identify the rows in other places.
_MAX_IDS = 200


@dataclass
class FileFound:
    """The matching rows of one data file."""

    path: Path
    rows: int = 0
    total_rows: int = 0
    """All rows of the file."""
    seqs: array[int] = field(default_factory=lambda: array("q"))
    hashes: list[bytearray] = field(default_factory=list)
    """For each value of the selector, the key hashes of its rows."""
    ids: list[str] = field(default_factory=list)
    unattributed: int = 0
    """Rows without the deciding value that do not match as far as can be determined."""

    @property
    def is_whole_file(self) -> bool:
        return self.rows == self.total_rows


@dataclass(frozen=True)
class FindTask:
    dataset: str
    paths: tuple[Path, ...]
    selector: Selector
    own_gateway: str | None

    def run(self) -> Built:
        return Built(reports=[self._search(path) for path in self.paths])

    def _search(self, path: Path) -> FileFound:
        dataset = datasets.get(self.dataset)
        column = self.selector.column(dataset)
        assert column is not None
        with pq.ParquetFile(path) as file:
            found = FileFound(
                path, total_rows=file.metadata.num_rows, hashes=[bytearray() for _ in self.selector.values]
            )
            if column in file.schema_arrow.names:
                ids = self.selector.mention_ids(dataset)
                if self.selector.may_be_unattributed(dataset):
                    found.unattributed = sum(_nulls(file, column, group) for group in range(file.num_row_groups))
                for group in groups(file, column, self.selector, nulls=bool(ids)):
                    mask = self._mask(dataset, column, file, group)
                    if pc.any(mask).as_py():
                        self._collect(dataset, column, file, group, mask, found)
        return found

    def _mask(self, dataset: Dataset, column: str, file: pq.ParquetFile, group: int) -> Any:
        """Mask the matching rows. Text columns are read only if the group has rows without a session."""
        texts = _texts(dataset, file) if self.selector.mention_ids(dataset) and _nulls(file, column, group) else []
        rows = file.read_row_group(group, columns=list(dict.fromkeys([column, *texts])))
        return self.selector.mask_rows(dataset, rows)

    def _collect(
        self, dataset: Dataset, column: str, file: pq.ParquetFile, group: int, mask: Any, found: FileFound
    ) -> None:
        key_columns = dict.fromkeys([GATEWAY, dataset.key_column, *dataset.key_parts])
        match_columns = [dataset.time_column, *dataset.match_rules.columns] if dataset.match_rules else []
        # With several sessions it matters which one a row mentions.
        texts = _texts(dataset, file) if len(found.hashes) > 1 and self.selector.mention_ids(dataset) else []
        columns = dict.fromkeys([SEQ, *key_columns, column, *match_columns, *texts])
        names = [name for name in columns if name in file.schema_arrow.names]
        rows = file.read_row_group(group, columns=names).filter(mask)
        found.rows += rows.num_rows
        if self.selector.may_be_unattributed(dataset):
            found.unattributed -= rows.column(column).null_count
        if SEQ in names:
            found.seqs.extend(pc.drop_null(rows.column(SEQ)).to_pylist())
        keys = rows.to_pylist()
        for value_hashes, selector in zip(found.hashes, self.selector.single_selectors, strict=True):
            matches = selector.mask_rows(dataset, rows).to_pylist() if len(found.hashes) > 1 else [True] * len(keys)
            for row, is_match in zip(keys, matches, strict=True):
                if is_match:
                    value_hashes += self._hashes(dataset, row)
        for row in keys[: max(0, _MAX_IDS - len(found.ids))]:
            values = (row.get(name) for name in key_columns if name not in (GATEWAY, column))
            found.ids += [value for value in values if isinstance(value, str) and value]

    def _hashes(self, dataset: Dataset, row: dict[str, Any]) -> bytes:
        """Return the hashes of the row's key, of its previous keys, and of its match keys."""
        found = bytearray(row_key(dataset, row, self.own_gateway) or b"")
        if dataset.match_rules is not None and self.own_gateway in (None, row.get(GATEWAY)):
            for previous_key in dataset.match_rules.previous_keys(row):
                found += key_hash(dataset.name, previous_key)
            meetings = Meetings()
            meetings.record(dataset, row, 0)
            for met in meetings:
                found += met.hash
                if met.is_live and not met.is_exact:
                    found += said_live(met.hash)
        return bytes(found)


def tasks(
    dataset: Dataset, files: Iterable[tuple[Path, int]], selector: Selector, own_gateway: str | None
) -> Iterator[FindTask]:
    """Group (path, size) of data files into tasks; neighbouring files share a task."""
    batch: list[Path] = []
    size = 0
    for path, bytes_ in files:
        if batch and (len(batch) >= _TASK_FILES or size + bytes_ > _TASK_BYTES):
            yield FindTask(dataset.name, tuple(batch), selector, own_gateway)
            batch, size = [], 0
        batch.append(path)
        size += bytes_
    if batch:
        yield FindTask(dataset.name, tuple(batch), selector, own_gateway)


def candidates(files: Sequence[DataFile], selector: Selector) -> list[tuple[Path, int]]:
    """Return path and size of the files whose partition may hold such a row."""
    return [(file.path, file.bytes) for file in files if selector.may_be_in(file)]


def groups(file: pq.ParquetFile, column: str, selector: Selector, *, nulls: bool = False) -> Iterator[int]:
    """Yield the row groups that may hold such a row; with `nulls`, also those with a null in the column."""
    index = file.schema_arrow.get_field_index(column)
    for group in range(file.num_row_groups):
        statistics = file.metadata.row_group(group).column(index).statistics
        bounds = (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else (None, None)
        if selector.may_match(*bounds) or (nulls and _nulls(file, column, group)):
            yield group


def _nulls(file: pq.ParquetFile, column: str, group: int) -> int:
    """Return the number of nulls in the group, from the footer or else by reading the column."""
    statistics = file.metadata.row_group(group).column(file.schema_arrow.get_field_index(column)).statistics
    if statistics is not None and statistics.has_null_count:
        return int(statistics.null_count)
    return int(file.read_row_group(group, columns=[column]).column(column).null_count)


def _texts(dataset: Dataset, file: pq.ParquetFile) -> list[str]:
    return [name for name in mention.texts_of(dataset) if name in file.schema_arrow.names]
