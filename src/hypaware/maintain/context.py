"""The context and the report of a maintenance step on one dataset."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hypaware.config import Config
from hypaware.home import Home
from hypaware.iceberg import fsync, metadata
from hypaware.iceberg.metadata import DataFile, TableMetadata
from hypaware.lake.table import LakeBackend, LakeTable, commit_lock
from hypaware.model.datasets import Dataset
from hypaware.state.store import StateStore

if TYPE_CHECKING:
    from hypaware.lake.build import BuiltFile


def ignore(*_: object) -> None:
    return None


@dataclass
class DryRunEffects:
    """The effects of a dry run so far. The next step starts from them, as it would in a real run.

    The removed files are exact. The number of added files is estimated from their sizes, as in the plan. Rewritten
    files count with their old size, because the new size is known only after writing.
    """

    removed: set[DataFile] = field(default_factory=set)
    files_added: int = 0
    bytes_added: int = 0
    snapshots: int = 0
    """Snapshots that the commits would create."""

    def remaining(self, files: Iterable[DataFile]) -> list[DataFile]:
        return [file for file in files if file not in self.removed] if self.removed else list(files)


@dataclass(frozen=True)
class MaintenanceContext:
    """What a step works on. The caller holds `maintenance_lock`; the commit lock is held only to commit."""

    home: Home
    config: Config
    store: StateStore
    lake: LakeBackend
    dataset: Dataset
    now: datetime
    force: bool = False
    """Include work that is not due yet."""
    dry_run: bool = False
    deadline: float | None = None
    """`time.monotonic()` after which no new work starts; started work is finished."""
    progress: Callable[[str, int, int], None] = ignore
    note: Callable[[str], None] = ignore
    check_cancelled: Callable[[], None] = ignore
    id: str = field(default_factory=lambda: f"keep-{secrets.token_hex(8)}")
    """Prefix of the names of files that this run writes."""
    effects: DryRunEffects = field(default_factory=DryRunEffects)

    @property
    def out_of_time(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    @property
    def table_metadata(self) -> TableMetadata:
        entry = metadata.find_table(self.home, self.dataset.name)
        assert entry is not None
        return metadata.read_metadata(entry.metadata)

    def files(self) -> list[DataFile]:
        return list(metadata.iter_cached_files(self.table_metadata))

    @contextmanager
    def lock_table(self) -> Iterator[LakeTable]:
        """Yield the table with exclusive access to change it. The last commit is durable by then."""
        with commit_lock(self.dataset.name, self.check_cancelled):
            fsync.fsync_commit(self.home, self.dataset.name)
            yield self.lake.table(self.dataset)


def discard_files(files: Sequence[BuiltFile]) -> None:
    """Remove files that nothing references."""
    for file in files:
        file.path.unlink(missing_ok=True)


@dataclass
class MaintenanceReport:
    """The result of maintenance of one dataset, with the documented JSON keys."""

    dataset: str
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    rows_expired: int = 0
    rows_held: int = 0
    snapshots_expired: int = 0
    reasons: list[str] = field(default_factory=list)
    """What was done, or would be, or why not: a sentence each."""
    dropped: list[dict[str, Any]] = field(default_factory=list)
    """`{source, day, files, rows, bytes}`: days that retention dropped, or would drop."""
    rewritten: list[dict[str, Any]] = field(default_factory=list)
    """`{source, day, files, bytes}`: partitions that compaction rewrote, or would; counted before the rewrite."""
    partitions_compacted: int = 0
    partitions_left: int = 0
    """Due but not done, because the time was up."""
    twins_removed: int = 0
    rows_without_time: int = 0
    held: list[dict[str, Any]] = field(default_factory=list)
    """`{source, day, rows, sinks, since, until}`: rows that are due but held for a sink."""
    orphans_removed: int = 0
    orphan_bytes: int = 0
    set_aside: list[str] = field(default_factory=list)
    """Files that a rebuild could not read."""
    errors: list[str] = field(default_factory=list)
    """Steps that failed; the other steps were run."""

    def as_json(self) -> dict[str, Any]:
        document = asdict(self)
        reasons = document.pop("reasons")
        return {**document, "reason": "; ".join(reasons) or "nothing to do"}


def count_by_partition(counted: list[dict[str, Any]], files: Iterable[DataFile], *sums: str) -> None:
    """Add the files to the entry of their partition, with the sums of some attributes."""
    entries = {(each["source"], each["day"]): each for each in counted}
    for file in files:
        empty = {"source": file.source, "day": str(file.day), "files": 0, **dict.fromkeys(sums, 0)}
        entry = entries.setdefault((file.source, str(file.day)), empty)
        entry["files"] += 1
        for name in sums:
            entry[name] += getattr(file, name)
    counted[:] = [entries[key] for key in sorted(entries)]
