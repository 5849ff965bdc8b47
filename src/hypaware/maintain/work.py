"""The context of a maintenance step: one dataset's table, the options of the run, callbacks for progress and notes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from hypaware.config import Config
from hypaware.home import Home
from hypaware.lake import metadata, secure, turns
from hypaware.lake.committer import Change, Lake, LakeTable
from hypaware.lake.metadata import DataFile, Metadata
from hypaware.lake.partitions import BuiltFile
from hypaware.maintain.foreseen import Foreseen
from hypaware.model.datasets import Dataset
from hypaware.state.store import Store


def _ignore(*_: object) -> None:
    return None


@dataclass(frozen=True)
class Work:
    """What a maintenance step works on. The caller holds `turns.keeping`; `changing` is held only during a commit."""

    home: Home
    config: Config
    store: Store
    lake: Lake
    dataset: Dataset
    now: datetime
    force: bool = False
    """Include work that is not due yet."""
    dry_run: bool = False
    deadline: float | None = None
    """`time.monotonic()` after which no new work starts; started work is finished."""
    progress: Callable[[str, int, int], None] = _ignore
    note: Callable[[str], None] = _ignore
    check_cancelled: Callable[[], None] = _ignore
    id: str = field(default_factory=lambda: f"keep-{secrets.token_hex(8)}")
    """Prefix of the names of files that this run writes."""
    effects: Foreseen = field(default_factory=Foreseen)
    """The effects of a dry run so far."""

    @property
    def out_of_time(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    @property
    def table_metadata(self) -> Metadata:
        """The table's current metadata, read from disk."""
        entry = metadata.entry(self.home, self.dataset.name)
        assert entry is not None
        return metadata.read(entry.metadata)

    def files(self) -> list[DataFile]:
        return list(metadata.remembered_files(self.table_metadata))

    def refuse_damaged(self) -> None:
        """Raise if the table is damaged: no step may touch a table whose contents are unknown."""
        secure.refuse_damaged(self.home, self.dataset.name)

    def table(self) -> LakeTable:
        return self.lake.table(self.dataset)

    @contextmanager
    def lock_table(self) -> Iterator[LakeTable]:
        """Yield the table with exclusive access to change it. The last commit is durable by then."""
        with turns.changing(self.dataset.name, self.check_cancelled):
            secure.secure(self.home, self.dataset.name)
            yield self.table()

    def commit(self, change: Change, on_commit: Callable[[], None] = _ignore) -> None:
        """Commit a change and make it durable; call `on_commit` in between.

        Raise NotCommitted if the commit certainly did not happen. Cancelled, raised while waiting for the lock, means
        the same.
        """
        with self.lock_table() as table:
            table.replace_files(change)
            on_commit()
            secure.secure(self.home, self.dataset.name)


def discard(files: Sequence[BuiltFile]) -> None:
    """Remove files that nothing references."""
    for file in files:
        file.path.unlink(missing_ok=True)
