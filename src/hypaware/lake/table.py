"""Protocols of a lake and its tables: implemented by Spark and Iceberg, and by a lightweight substitute in tests.

A table has two locks within the one engine that owns the lake. The maintenance lock is held by the one job that
compacts, retains, expires, purges or rebuilds the table; flushes continue while it is held. The commit lock is held by
the one job that commits: a flush, or a maintenance job during its commit. A job that needs both acquires the
maintenance lock first, and stream locks in between.

@ref keeping#turns
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from hypaware.errors import Retryable

if TYPE_CHECKING:
    # The daemon plans maintenance with this module, and must not load Arrow.
    from hypaware.home import Home
    from hypaware.iceberg.metadata import DataFile
    from hypaware.lake.build import BuildFailure, BuildResult, BuildWatcher, BuiltFile, Task
    from hypaware.lake.key_index import KeyIndex
    from hypaware.model.datasets import Dataset
    from hypaware.state.flushes import Flush
    from hypaware.state.store import StateStore

_CANCEL_CHECK_SECONDS = 0.2
_commit_locks: dict[str, threading.Lock] = defaultdict(threading.Lock)
_maintenance_locks: dict[str, threading.Lock] = defaultdict(threading.Lock)


class NotCommitted(Retryable):
    """A commit failed, and the table confirms that it did not happen."""

    kind = "commit_failed"


@dataclass(frozen=True)
class TableChange:
    """A change that adds no new rows: replaces or removes files in one atomic commit."""

    operation: Literal["compact", "retain", "purge", "rebuild"]
    removed: Sequence[DataFile]
    added: Sequence[BuiltFile] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    summary: Mapping[str, str] = field(default_factory=dict)


class LakeTable(Protocol):
    @property
    def uuid(self) -> str: ...

    @property
    def floor(self) -> int:
        """The end of the newest committed range: the table's `hyp.seq-floor`."""

    @property
    def gateway_id(self) -> str | None: ...

    @property
    def rebuilt_from(self) -> str | None:
        """The uuid of the table that this one replaced (`hyp.rebuilt-from`)."""

    @property
    def field_ids(self) -> Mapping[str, int]: ...

    @property
    def data_root(self) -> Path: ...

    def find_flush(self, flush: Flush) -> dict[str, tuple[int, int]]:
        """Return source → (highest sequence, row count) of a flush, found by its unique id, never by range alone."""

    def commit(self, flush: Flush, files: Sequence[BuiltFile]) -> None:
        """Add the files, record flush id, range and segments in the summary, and raise the floor, atomically.

        Raises NotCommitted if the commit certainly did not happen. After any other error the outcome is unknown.
        """

    def replace_files(self, change: TableChange) -> None:
        """Commit a change, with the errors of `commit`. The caller holds the commit lock and fsyncs afterwards."""

    def expire(self, horizon: float, keep: int = 1) -> int:
        """Remove the snapshots that `list_expirable` lists, and files only they reference. Return their number."""


class LakeBackend(Protocol):
    def table(self, dataset: Dataset) -> LakeTable:
        """Return the dataset's table. Create it or add its missing columns if necessary."""

    def run(self, tasks: Sequence[Task]) -> list[BuildResult | BuildFailure]:
        """Run the tasks in parallel. Return their results in the same order."""

    def start(
        self, tasks: Sequence[Task], watch: BuildWatcher | None = None
    ) -> Future[list[BuildResult | BuildFailure]]:
        """Run the tasks in the background, as a part of the same job. `watch` replaces the lake's own watcher."""


@dataclass(frozen=True)
class OpenTable:
    """A table that is open for writing, and its key index, caught up with it. See `commit.open_table`."""

    home: Home
    store: StateStore
    lake: LakeBackend
    dataset: Dataset
    table: LakeTable
    index: KeyIndex


def commit_lock(dataset: str, check_cancelled: Callable[[], None]) -> AbstractContextManager[None]:
    """Hold the commit lock of a dataset's table. Waiting for it can be cancelled."""
    return _acquire(_commit_locks[dataset], check_cancelled)


def maintenance_lock(dataset: str, check_cancelled: Callable[[], None]) -> AbstractContextManager[None]:
    return _acquire(_maintenance_locks[dataset], check_cancelled)


@contextmanager
def _acquire(mutex: threading.Lock, check_cancelled: Callable[[], None]) -> Iterator[None]:
    while not mutex.acquire(timeout=_CANCEL_CHECK_SECONDS):
        check_cancelled()
    try:
        yield
    finally:
        mutex.release()
