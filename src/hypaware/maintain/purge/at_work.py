"""Which sessions worked in a folder: by them a purge knows the rows that say no folder themselves (raw exchanges).

A session's raw rows share what they repeat, and a call beside the conversation names no folder at all, so all of them
go, also where the session worked in another folder before. Read before anything is removed.
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
    """The sessions of some data files whose rows name the folder."""

    paths: tuple[Path, ...]
    selector: Selector

    def run(self) -> Built:
        return Built(notes=[sorted({each for path in self.paths for each in self._look(path)})])

    def _look(self, path: Path) -> Iterator[str]:
        with pq.ParquetFile(path) as held:
            if not {CWD, SESSION} <= set(held.schema_arrow.names):
                return
            for group in groups(held, CWD, self.selector):
                rows = held.read_row_group(group, columns=[CWD, SESSION])
                found = rows.column(SESSION).filter(self.selector.mask(rows.column(CWD))).unique()
                yield from (each for each in found.to_pylist() if each)


def sessions(purging: Purging) -> tuple[str, ...]:
    """When the spool is flushed, so the lake knows them all."""
    found: set[str] = set()
    for result in purging.lake.run(list(_tasks(purging.home, purging.selector))):
        if isinstance(result, BuildFailure):
            raise Retryable(f"looking for the sessions of the folder failed: {result.reason}", kind="purge_failed")
        found.update(*result.notes)
    return tuple(sorted(found))


def told(
    home: Home, selector: Selector, waiting: Callable[[Home, Dataset], Iterable[dict[str, Any]]]
) -> tuple[str, ...]:
    """The same without Spark, and of what waits in the spool too."""
    found = {each for task in _tasks(home, selector) for note in task.run().notes for each in note}
    if selector.kind == "cwd":
        for dataset in _tell():
            found |= {session for row in waiting(home, dataset) if (session := _session(selector, dataset, row))}
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
    """Datasets whose rows name both, a folder and a session."""
    return [each for each in datasets.all() if {CWD, SESSION} <= each.coercers.keys()]


def _session(selector: Selector, dataset: Dataset, row: Row) -> str | None:
    found = row.get(SESSION) if selector.matches(dataset, row) else None
    return found if isinstance(found, str) else None
