"""Finding the rows in data files: a task reads the column that decides, and the keys only of rows that match.

Runs in Spark's tasks, and in the process itself for a dry run. Footers say which row groups cannot hold such a row.
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
# Ids of so many rows of a file are told, by which the rows are known in other places.
_TOLD = 200


@dataclass
class FileFound:
    """What a data file holds of the rows that are meant."""

    path: Path
    rows: int = 0
    of: int = 0
    """All rows of the file."""
    seqs: array[int] = field(default_factory=lambda: array("q"))
    hashes: list[bytearray] = field(default_factory=list)
    """For each value of the selector, the key hashes of its rows."""
    ids: list[str] = field(default_factory=list)
    unsaid: int = 0
    """Rows that do not say what is looked for, and are not meant as far as anybody can tell."""

    @property
    def whole(self) -> bool:
        return self.rows == self.of


@dataclass(frozen=True)
class FindTask:
    dataset: str
    paths: tuple[Path, ...]
    selector: Selector
    own_gateway: str | None

    def run(self) -> Built:
        return Built(notes=[self._look(path) for path in self.paths])

    def _look(self, path: Path) -> FileFound:
        dataset = datasets.get(self.dataset)
        column = self.selector.column(dataset)
        assert column is not None
        with pq.ParquetFile(path) as held:
            found = FileFound(path, of=held.metadata.num_rows, hashes=[bytearray() for _ in self.selector.values])
            if column in held.schema_arrow.names:
                ids = self.selector.mentioned(dataset)
                if self.selector.may_be_unsaid(dataset):
                    found.unsaid = sum(_nulls(held, column, group) for group in range(held.num_row_groups))
                for group in groups(held, column, self.selector, nulls=bool(ids)):
                    mask = self._mask(dataset, column, held, group)
                    if pc.any(mask).as_py():
                        self._take(dataset, column, held, group, mask, found)
        return found

    def _mask(self, dataset: Dataset, column: str, held: pq.ParquetFile, group: int) -> Any:
        """Texts are read only where a row says no session."""
        texts = _texts(dataset, held) if self.selector.mentioned(dataset) and _nulls(held, column, group) else []
        rows = held.read_row_group(group, columns=list(dict.fromkeys([column, *texts])))
        return self.selector.mask_of(dataset, rows)

    def _take(
        self, dataset: Dataset, column: str, held: pq.ParquetFile, group: int, mask: Any, found: FileFound
    ) -> None:
        keyed = dict.fromkeys([GATEWAY, dataset.key_column, *dataset.key_parts])
        met = [dataset.time_column, *dataset.settling.columns] if dataset.settling else []
        # Of several sessions it matters which one a row names.
        texts = _texts(dataset, held) if len(found.hashes) > 1 and self.selector.mentioned(dataset) else []
        wanted = dict.fromkeys([SEQ, *keyed, column, *met, *texts])
        names = [name for name in wanted if name in held.schema_arrow.names]
        rows = held.read_row_group(group, columns=names).filter(mask)
        found.rows += rows.num_rows
        if self.selector.may_be_unsaid(dataset):
            found.unsaid -= rows.column(column).null_count
        if SEQ in names:
            found.seqs.extend(pc.drop_null(rows.column(SEQ)).to_pylist())
        keys = rows.to_pylist()
        for of_value, each in zip(found.hashes, self.selector.each, strict=True):
            meant = each.mask_of(dataset, rows).to_pylist() if len(found.hashes) > 1 else [True] * len(keys)
            for row, is_meant in zip(keys, meant, strict=True):
                if is_meant:
                    of_value += self._hashes(dataset, row)
        for row in keys[: max(0, _TOLD - len(found.ids))]:
            told = (row.get(name) for name in keyed if name not in (GATEWAY, column))
            found.ids += [value for value in told if isinstance(value, str) and value]

    def _hashes(self, dataset: Dataset, row: dict[str, Any]) -> bytes:
        """Of its key, of those that it had before, and of what another record of the same could be known by."""
        found = bytearray(row_key(dataset, row, self.own_gateway) or b"")
        if dataset.settling is not None and self.own_gateway in (None, row.get(GATEWAY)):
            for before in dataset.settling.former_keys(row):
                found += key_hash(dataset.name, before)
            meetings = Meetings()
            meetings.note(dataset, row, 0)
            for met in meetings:
                found += met.hash
                if met.is_fallback and not met.exact:
                    found += said_live(met.hash)
        return bytes(found)


def tasks(
    dataset: Dataset, files: Iterable[tuple[Path, int]], selector: Selector, own_gateway: str | None
) -> Iterator[FindTask]:
    """For (path, size) of data files; neighbours share a task."""
    some: list[Path] = []
    size = 0
    for path, more in files:
        if some and (len(some) >= _TASK_FILES or size + more > _TASK_BYTES):
            yield FindTask(dataset.name, tuple(some), selector, own_gateway)
            some, size = [], 0
        some.append(path)
        size += more
    if some:
        yield FindTask(dataset.name, tuple(some), selector, own_gateway)


def candidates(files: Sequence[DataFile], selector: Selector) -> list[tuple[Path, int]]:
    """Those whose partition may hold such a row."""
    return [(file.path, file.bytes) for file in files if selector.may_hold(file)]


def groups(held: pq.ParquetFile, column: str, selector: Selector, *, nulls: bool = False) -> Iterator[int]:
    """Those that may hold such a row; with `nulls` also one that does not say it."""
    place = held.schema_arrow.get_field_index(column)
    for number in range(held.num_row_groups):
        told = held.metadata.row_group(number).column(place).statistics
        bounds = (told.min, told.max) if told is not None and told.has_min_max else (None, None)
        if selector.may_match(*bounds) or (nulls and _nulls(held, column, number)):
            yield number


def _nulls(held: pq.ParquetFile, column: str, group: int) -> int:
    """Rows of the group without a value, from the footer; counted where that does not say."""
    told = held.metadata.row_group(group).column(held.schema_arrow.get_field_index(column)).statistics
    if told is not None and told.has_null_count:
        return int(told.null_count)
    return int(held.read_row_group(group, columns=[column]).column(column).null_count)


def _texts(dataset: Dataset, held: pq.ParquetFile) -> list[str]:
    return [name for name in mention.texts_of(dataset) if name in held.schema_arrow.names]
