"""Protocols of a lake and its tables: implemented by Spark and Iceberg, and by a lightweight substitute in tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from hypaware.errors import Retryable
from hypaware.home import Home
from hypaware.iceberg.metadata import DataFile
from hypaware.lake.build import BuildFailure, BuildResult, Task
from hypaware.lake.key_index import KeyIndex
from hypaware.lake.parquet import BuiltFile
from hypaware.model.datasets import Dataset
from hypaware.state.flushes import Flush
from hypaware.state.store import StateStore


class NotCommitted(Retryable):
    """A commit failed, and the table confirms that it did not happen."""

    kind = "commit_failed"


@dataclass(frozen=True)
class FlushContents:
    """The rows of a flush that the lake holds: per source the highest sequence and the row count."""

    by_source: Mapping[str, tuple[int, int]]

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.by_source.values())

    @property
    def high_water(self) -> dict[str, int]:
        return {source: seq for source, (seq, _) in self.by_source.items()}


@dataclass(frozen=True)
class TableChange:
    """A change that adds no new rows: replaces or removes files in one atomic commit."""

    operation: Literal["compact", "retain", "purge", "rebuild"]
    removed: Sequence[DataFile]
    added: Sequence[BuiltFile] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    """Table properties to set in the same commit."""
    summary: Mapping[str, str] = field(default_factory=dict)


class LakeTable(Protocol):
    """The table of one dataset."""

    @property
    def uuid(self) -> str: ...

    @property
    def floor(self) -> int:
        """The end of the newest committed range: the table's `hyp.seq-floor`."""

    @property
    def gateway_id(self) -> str | None:
        """The gateway id of the home (`hyp.gateway-id`)."""

    @property
    def rebuilt_from(self) -> str | None:
        """The uuid of the table that this one replaced (`hyp.rebuilt-from`)."""

    @property
    def field_ids(self) -> Mapping[str, int]: ...

    @property
    def data_root(self) -> Path: ...

    def find_flush(self, flush: Flush) -> FlushContents | None:
        """Return the rows of a flush, or None. Finds them by the unique flush id, never by range alone."""

    def commit(self, flush: Flush, files: Sequence[BuiltFile]) -> None:
        """Add the files, record flush id, range and segments in the summary, and raise the floor, atomically.

        Raises NotCommitted if the commit certainly did not happen. After any other error the outcome is unknown.
        """

    def replace_files(self, change: TableChange) -> None:
        """Commit a change. The caller holds the commit lock of the table and calls `fsync_commit` afterwards.

        Raises NotCommitted if the commit certainly did not happen, for instance because a file to remove is no longer
        part of the table. After any other error the outcome is unknown, and the next job reads the live files.
        """

    def expire(self, horizon: float, keep: int = 1) -> int:
        """Remove the snapshots that `list_expirable` lists, and files only they reference. Return their number."""


class LakeBackend(Protocol):
    def table(self, dataset: Dataset) -> LakeTable:
        """Return the dataset's table. Create it or add its missing columns if necessary."""

    def run(self, tasks: Sequence[Task]) -> list[BuildResult | BuildFailure]:
        """Run the tasks in parallel. Return their results in the same order."""


@dataclass(frozen=True)
class OpenTable:
    """A table that is open for writing, and its key index, caught up with it. See `commit.open_table`."""

    home: Home
    store: StateStore
    lake: LakeBackend
    dataset: Dataset
    table: LakeTable
    index: KeyIndex
