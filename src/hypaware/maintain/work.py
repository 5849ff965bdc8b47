"""What every step of maintenance is given: one dataset's table, by whom, how much of it, and whom to tell."""

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


def _quiet(*_: object) -> None:
    return None


@dataclass(frozen=True)
class Work:
    """The caller holds `turns.keeping` of the dataset; `changing` is taken for a commit only, by `commit`."""

    home: Home
    config: Config
    store: Store
    lake: Lake
    dataset: Dataset
    now: datetime
    force: bool = False
    """Also what is not due yet."""
    dry_run: bool = False
    until: float | None = None
    """`time.monotonic()` after which nothing new is begun; what was begun is finished."""
    progress: Callable[[str, int, int], None] = _quiet
    note: Callable[[str], None] = _quiet
    check_cancelled: Callable[[], None] = _quiet
    id: str = field(default_factory=lambda: f"keep-{secrets.token_hex(8)}")
    """First in the names of the files that this run writes."""
    foreseen: Foreseen = field(default_factory=Foreseen)
    """Of a dry run."""

    @property
    def out_of_time(self) -> bool:
        return self.until is not None and time.monotonic() >= self.until

    @property
    def known(self) -> Metadata:
        """The table's newest metadata, from disk."""
        entry = metadata.entry(self.home, self.dataset.name)
        assert entry is not None
        return metadata.read(entry.metadata)

    def files(self) -> list[DataFile]:
        return list(metadata.remembered_files(self.known))

    def refuse_damaged(self) -> None:
        """Before anything else: whoever cannot tell what is in a table must not touch it."""
        secure.refuse_damaged(self.home, self.dataset.name)

    def table(self) -> LakeTable:
        return self.lake.table(self.dataset)

    @contextmanager
    def changing(self) -> Iterator[LakeTable]:
        """The table, for as long as nobody else changes it; what was committed last is durable."""
        with turns.changing(self.dataset.name, self.check_cancelled):
            secure.secure(self.home, self.dataset.name)
            yield self.table()

    def commit(self, change: Change, landed: Callable[[], None] = _quiet) -> None:
        """A change, made durable; `landed` is told in between.

        Raises NotCommitted where it surely did not happen; so says Cancelled, which ends the waiting for the turn.
        """
        with self.changing() as table:
            table.change(change)
            landed()
            secure.secure(self.home, self.dataset.name)


def discard(files: Sequence[BuiltFile]) -> None:
    """Files that nothing names."""
    for file in files:
        file.path.unlink(missing_ok=True)
