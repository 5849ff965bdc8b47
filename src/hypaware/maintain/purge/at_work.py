"""The sessions that worked in a folder. By them a purge finds the rows without a folder (raw exchanges).

Raw rows of a session share the content that they repeat, and calls outside the conversation name no folder, so all raw
rows of such a session are purged, even if the session also worked in another folder. The sessions are read before any
row is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from hypaware.errors import Retryable
from hypaware.home import Home
from hypaware.lake import metadata
from hypaware.lake.build import BuildFailure, Built
from hypaware.lake.closed import SESSION
from hypaware.maintain.purge.finding import groups
from hypaware.maintain.purge.purging import Purging
from hypaware.maintain.purge.selection import CWD, Selector
from hypaware.model import datasets
from hypaware.model.datasets import Dataset, Row

_TASK_FILES = 24


@dataclass(frozen=True)
class SessionTask:
    """Finds the sessions whose rows in some data files name the folder."""

    paths: tuple[Path, ...]
    selector: Selector

    def run(self) -> Built:
        return Built(reports=[sorted({each for path in self.paths for each in self._search(path)})])

    def _search(self, path: Path) -> Iterator[str]:
        with pq.ParquetFile(path) as file:
            if not {CWD, SESSION} <= set(file.schema_arrow.names):
                return
            for group in groups(file, CWD, self.selector):
                rows = file.read_row_group(group, columns=[CWD, SESSION])
                found = rows.column(SESSION).filter(self.selector.mask(rows.column(CWD))).unique()
                yield from (each for each in found.to_pylist() if each)


def sessions(context: Purging) -> tuple[str, ...]:
    """Return the sessions. Run after the flush of the spool, when the lake holds them all."""
    found: set[str] = set()
    for result in context.lake.run(list(_tasks(context.home, context.selector))):
        if isinstance(result, BuildFailure):
            raise Retryable(f"could not find the sessions of the folder: {result.reason}", kind="purge_failed")
        found.update(*result.reports)
    return tuple(sorted(found))


def told(
    home: Home, selector: Selector, spooled_rows: Callable[[Home, Dataset], Iterable[dict[str, Any]]]
) -> tuple[str, ...]:
    """Return the sessions without Spark, including rows still in the spool."""
    found = {each for task in _tasks(home, selector) for note in task.run().reports for each in note}
    if selector.kind == "cwd":
        for dataset in _tell():
            found |= {session for row in spooled_rows(home, dataset) if (session := _session(selector, dataset, row))}
    return tuple(sorted(found))


def _tasks(home: Home, selector: Selector) -> Iterator[SessionTask]:
    if selector.kind != "cwd":
        return
    for dataset in _tell():
        entry = metadata.entry(home, dataset.name)
        paths = [file.path for file in metadata.remembered_files(metadata.read(entry.metadata))] if entry else []
        for start in range(0, len(paths), _TASK_FILES):
            yield SessionTask(tuple(paths[start : start + _TASK_FILES]), selector)


def _tell() -> list[Dataset]:
    """Return the datasets whose rows have both a folder and a session."""
    return [each for each in datasets.all() if {CWD, SESSION} <= each.coercers.keys()]


def _session(selector: Selector, dataset: Dataset, row: Row) -> str | None:
    found = row.get(SESSION) if selector.matches(dataset, row) else None
    return found if isinstance(found, str) else None
