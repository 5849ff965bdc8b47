"""Search for rows in data files, in Spark tasks or, for a dry run, in the process itself.

A task reads the deciding column, and the keys only of rows that match. Row groups that cannot hold such a row are
skipped by their footer statistics.

A purge by folder finds the rows without a folder (raw exchanges) by the sessions that worked there. All raw rows of a
session share the content that they repeat, so all are purged, even if the session also worked in another folder. The
sessions are read before any row is removed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from hypaware.errors import Retryable
from hypaware.home import Home
from hypaware.home.storage import arrow_source
from hypaware.iceberg import metadata
from hypaware.iceberg.metadata import DataFile
from hypaware.lake.build import BuildFailure, BuildResult, Task
from hypaware.lake.row_keys import MatchKeys, hash_live_text
from hypaware.lake.tombstones import SESSION_COLUMN
from hypaware.maintain.compact_plan import split_by_weight
from hypaware.maintain.purge.selector import CWD, PurgeSelector, text_columns
from hypaware.model import datasets
from hypaware.model.datasets import GATEWAY, KEY_BYTES, SEQ, Dataset, hash_key, hash_row_key, is_own_row

_TASK_FILES = 24
_TASK_BYTES = 256 << 20
# Ids of at most this many rows per file are reported; they identify the rows in other places.
_MAX_IDS = 200
_TASKS_AT_ONCE = 16
ProgressCallback = Callable[[str, int, int], None]
TaskRunner = Callable[[Sequence[Task]], list[BuildResult | BuildFailure]]


@dataclass
class FileMatches:
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


def search_table(
    dataset: Dataset,
    files: Iterable[DataFile],
    selector: PurgeSelector,
    own_gateway: str | None,
    run: TaskRunner,
    progress: ProgressCallback,
) -> Iterator[list[FileMatches]]:
    """Search the files whose partition may hold such a row; yield the results of each batch of tasks."""
    candidates = [(file.path, file.bytes) for file in files if selector.may_be_in(file)]
    tasks = list(search_tasks(dataset, candidates, selector, own_gateway))
    searched = 0
    for start in range(0, len(tasks), _TASKS_AT_ONCE):
        progress(f"searching {dataset.name}", searched, len(candidates))
        batch: list[FileMatches] = []
        for result in run(tasks[start : start + _TASKS_AT_ONCE]):
            if isinstance(result, BuildFailure):
                raise Retryable(f"{dataset.name}: search failed: {result.reason}", kind="purge_failed")
            batch += result.reports
        searched += len(batch)
        yield batch


def search_tasks(
    dataset: Dataset, files: Iterable[tuple[Path, int]], selector: PurgeSelector, own_gateway: str | None
) -> Iterator[SearchTask]:
    """Group (path, size) of data files into tasks; neighbouring files share a task."""
    for batch in split_by_weight(files, (_TASK_FILES, _TASK_BYTES), lambda file: (1, file[1])):
        yield SearchTask(dataset.name, tuple(path for path, _ in batch), selector, own_gateway)


@dataclass(frozen=True)
class SearchTask:
    dataset: str
    paths: tuple[Path, ...]
    selector: PurgeSelector
    own_gateway: str | None

    def run(self) -> BuildResult:
        return BuildResult(reports=[self._search(path) for path in self.paths])

    def _search(self, path: Path) -> FileMatches:
        dataset = datasets.get(self.dataset)
        column = self.selector.column(dataset)
        assert column is not None
        with pq.ParquetFile(arrow_source(path)) as file:
            found = FileMatches(
                path, total_rows=file.metadata.num_rows, hashes=[bytearray() for _ in self.selector.values]
            )
            if column in file.schema_arrow.names:
                ids = self.selector.mention_ids(dataset)
                if self.selector.may_be_unattributed(dataset):
                    found.unattributed = sum(_count_nulls(file, column, group) for group in range(file.num_row_groups))
                for group in matching_row_groups(file, column, self.selector, nulls=bool(ids)):
                    # Text columns are read only if the group has rows without a session.
                    texts = _text_columns_of(dataset, file) if ids and _count_nulls(file, column, group) else []
                    rows = file.read_row_group(group, columns=list(dict.fromkeys([column, *texts])))
                    mask = self.selector.mask_rows(dataset, rows)
                    if pc.any(mask).as_py():
                        self._collect(dataset, column, file, group, mask, found)
        return found

    def _collect(
        self, dataset: Dataset, column: str, file: pq.ParquetFile, group: int, mask: Any, found: FileMatches
    ) -> None:
        key_columns = dict.fromkeys([GATEWAY, dataset.key_column, *dataset.key_parts])
        match_columns = [dataset.time_column, *dataset.match_rules.columns] if dataset.match_rules else []
        # With several sessions it matters which one a row mentions.
        texts = _text_columns_of(dataset, file) if len(found.hashes) > 1 and self.selector.mention_ids(dataset) else []
        columns = dict.fromkeys([SEQ, *key_columns, column, *match_columns, *texts])
        names = [name for name in columns if name in file.schema_arrow.names]
        rows = file.read_row_group(group, columns=names).filter(mask)
        found.rows += rows.num_rows
        if self.selector.may_be_unattributed(dataset):
            found.unattributed -= rows.column(column).null_count
        if SEQ in names:
            found.seqs.extend(pc.drop_null(rows.column(SEQ)).to_pylist())
        keys = rows.to_pylist()
        for value_hashes, single in zip(found.hashes, self.selector.single_selectors, strict=True):
            matches = single.mask_rows(dataset, rows).to_pylist() if len(found.hashes) > 1 else [True] * len(keys)
            for row, is_match in zip(keys, matches, strict=True):
                if is_match:
                    value_hashes += self._hashes(dataset, row)
        for row in keys[: max(0, _MAX_IDS - len(found.ids))]:
            values = (row.get(name) for name in key_columns if name not in (GATEWAY, column))
            found.ids += [value for value in values if isinstance(value, str) and value]

    def _hashes(self, dataset: Dataset, row: dict[str, Any]) -> bytes:
        """Return the hashes of the row's key, of its previous keys, and of its match keys."""
        found = bytearray(hash_row_key(dataset, row, self.own_gateway) or b"")
        if dataset.match_rules is not None and is_own_row(row, self.own_gateway):
            for previous_key in dataset.match_rules.previous_keys(row):
                found += hash_key(dataset.name, previous_key)
            match_keys = MatchKeys()
            match_keys.record(dataset, row, 0)
            for match_key in match_keys:
                found += match_key.hash
                if match_key.is_live and not match_key.is_exact:
                    found += hash_live_text(match_key.hash)
        return bytes(found)


def matching_row_groups(
    file: pq.ParquetFile, column: str, selector: PurgeSelector, *, nulls: bool = False
) -> Iterator[int]:
    """Yield the row groups that may hold such a row; with `nulls`, also those with a null in the column."""
    index = file.schema_arrow.get_field_index(column)
    for group in range(file.num_row_groups):
        statistics = file.metadata.row_group(group).column(index).statistics
        bounds = (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else (None, None)
        if selector.may_match(*bounds) or (nulls and _count_nulls(file, column, group)):
            yield group


def _count_nulls(file: pq.ParquetFile, column: str, group: int) -> int:
    """Return the number of nulls in the group, from the footer or else by reading the column."""
    statistics = file.metadata.row_group(group).column(file.schema_arrow.get_field_index(column)).statistics
    if statistics is not None and statistics.has_null_count:
        return int(statistics.null_count)
    return int(file.read_row_group(group, columns=[column]).column(column).null_count)


def _text_columns_of(dataset: Dataset, file: pq.ParquetFile) -> list[str]:
    return [name for name in text_columns(dataset) if name in file.schema_arrow.names]


def split_hashes(packed: bytes | bytearray) -> list[bytes]:
    whole = bytes(packed)
    return [whole[start : start + KEY_BYTES] for start in range(0, len(whole), KEY_BYTES)]


def find_sessions(
    home: Home, selector: PurgeSelector, run: TaskRunner, damaged: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the sessions that worked in the folders. Rows in the spool must be flushed before.

    Of `damaged` tables, every data file on disk is read.
    """
    if selector.kind != "cwd":
        return ()
    tasks = []
    for dataset in _session_datasets():
        entry = metadata.find_table(home, dataset.name)
        if dataset.name in damaged:
            paths = metadata.list_files_on_disk(home, dataset.name)
        else:
            files = metadata.iter_cached_files(metadata.read_metadata(entry.metadata)) if entry else ()
            paths = [file.path for file in files]
        for start in range(0, len(paths), _TASK_FILES):
            tasks.append(SessionSearchTask(tuple(paths[start : start + _TASK_FILES]), selector))
    found: set[str] = set()
    for result in run(tasks):
        if isinstance(result, BuildFailure):
            raise Retryable(f"could not find the sessions of the folder: {result.reason}", kind="purge_failed")
        found.update(*result.reports)
    return tuple(sorted(found))


def _session_datasets() -> list[Dataset]:
    """Return the datasets whose rows have both a folder and a session."""
    return [each for each in datasets.list_all() if {CWD, SESSION_COLUMN} <= each.coercers.keys()]


@dataclass(frozen=True)
class SessionSearchTask:
    """Finds the sessions whose rows in some data files name the folder."""

    paths: tuple[Path, ...]
    selector: PurgeSelector

    def run(self) -> BuildResult:
        return BuildResult(reports=[sorted({each for path in self.paths for each in self._search(path)})])

    def _search(self, path: Path) -> Iterator[str]:
        with pq.ParquetFile(arrow_source(path)) as file:
            if not {CWD, SESSION_COLUMN} <= set(file.schema_arrow.names):
                return
            for group in matching_row_groups(file, CWD, self.selector):
                rows = file.read_row_group(group, columns=[CWD, SESSION_COLUMN])
                found = rows.column(SESSION_COLUMN).filter(self.selector.mask(rows.column(CWD))).unique()
                yield from (each for each in found.to_pylist() if each)


def sessions_of_rows(selector: PurgeSelector, spooled_rows: Callable[[Dataset], Iterable[dict[str, Any]]]) -> set[str]:
    """Return the sessions of spooled rows that name the folders."""
    if selector.kind != "cwd":
        return set()
    return {
        session
        for dataset in _session_datasets()
        for row in spooled_rows(dataset)
        if selector.matches(dataset, row) and isinstance(session := row.get(SESSION_COLUMN), str)
    }
