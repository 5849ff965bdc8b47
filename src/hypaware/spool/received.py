"""The batches that receivers of a shared lake have accepted: objects in the bucket, listed in the state.

    <root>/_hypaware/received/<dataset>/<segment>.jsonl

An object is a sealed segment that no machine has on its disk. A receiver creates it, then enters it into the ledger and
the list (`hypaware.state.received`) in one transaction. A flush commits what the list has, removes the object, and then
its entry. The name is new for each attempt to store a batch, never derived from its id: a slow receiver could otherwise
create an object again after its rows were committed.

An object without an entry was never acknowledged: its receiver was killed, or its sender repeats the batch. After
ORPHAN_SECONDS a flush drops it: first its name in the state, so that its receiver cannot enter it any more, then the
object.

@ref spool#received
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from hypaware import faults
from hypaware.config.shared_lake import find_shared_lake
from hypaware.home import Home
from hypaware.home.storage import ObjectPath
from hypaware.spool.reader import SpoolContents
from hypaware.spool.segments import SUFFIX, Segment
from hypaware.state import received
from hypaware.state.store import StateStore

FOLDER = "_hypaware/received"
ORPHAN_SECONDS = 3600.0
_after_mark = faults.crash_point(
    "spool.drop.after-commit", "a batch that was never acknowledged is recorded as dropped, its object still exists"
)
_after_drop = faults.crash_point("spool.drop.after-delete", "the objects of dropped batches are removed")


@dataclass(frozen=True)
class ReceivedObjects:
    """The received batches of a shared lake."""

    root: ObjectPath
    store: StateStore

    def folder(self, dataset: str) -> ObjectPath:
        return self.root / FOLDER / dataset

    def location(self, path: Path) -> str:
        """Return the key of an object below the root of the lake."""
        return "/".join(path.parts[len(self.root.parts) :])

    def list_datasets(self) -> list[str]:
        with self.store.reading() as connection:
            return received.list_datasets(connection)

    def list_segments(self, dataset: str) -> list[Segment]:
        """Return the segments that are not in the lake yet, oldest first."""
        with self.store.reading() as connection:
            found = received.list_objects(connection, dataset, committed=False)
        return [Segment(dataset, each.name, self.root / str(each.location), each.rows, each.bytes) for each in found]

    def remove_committed(self, dataset: str) -> None:
        """Remove the objects whose rows are in the lake, and then their entries."""
        with self.store.reading() as connection:
            found = received.list_objects(connection, dataset, committed=True)
        if not found:
            return
        for each in found:
            (self.root / str(each.location)).unlink(missing_ok=True)
        with self.store.transaction() as connection:
            received.forget_objects(connection, dataset, [each.name for each in found])

    def find_missing(self, dataset: str, *, now: float, orphan_seconds: float = ORPHAN_SECONDS) -> list[Path]:
        """Compare the bucket with the list: return the segments whose object is missing, and drop orphans."""
        # Listed first: an object that is entered after this is in the list below, and is not missing.
        present = {path for path, _ in self.folder(dataset).list_objects()}
        listed = {segment.path for segment in self.list_segments(dataset)}
        orphans = [path for path in present - listed if _is_older(path, now - orphan_seconds)]
        if orphans:
            self._drop(dataset, orphans)
        # An object that was created after the listing has an entry, but cannot be in it.
        return [path for path in sorted(listed - present) if not _exists(path)]

    def drop_orphans(self, dataset: str, is_unwanted: Callable[[Path], bool]) -> None:
        """Drop objects without an entry now, if a purge must not leave them."""
        present = {path for path, _ in self.folder(dataset).list_objects()}
        orphans = present - {segment.path for segment in self.list_segments(dataset)}
        if unwanted := [path for path in orphans if _exists(path) and is_unwanted(path)]:
            self._drop(dataset, unwanted)

    def _drop(self, dataset: str, orphans: Collection[ObjectPath]) -> None:
        paths = {path.name.removesuffix(SUFFIX): path for path in orphans}
        with self.store.transaction() as connection:
            dropped = received.drop_names(connection, dataset, sorted(paths))
        _after_mark()
        for name in dropped:
            paths[name].unlink(missing_ok=True)
        _after_drop()

    def summarize(self) -> list[SpoolContents]:
        return [_summarize(name, self.list_segments(name)) for name in self.list_datasets()]


def open_received(home: Home, store: StateStore) -> ReceivedObjects | None:
    """Return the received batches of a shared lake, or None if the lake is embedded and they are files."""
    shared = find_shared_lake(home)
    return None if shared is None else ReceivedObjects(shared.root, store)


def _summarize(dataset: str, found: list[Segment]) -> SpoolContents:
    return SpoolContents(
        dataset,
        segments=len(found),
        rows=sum(each.rows for each in found),
        bytes=sum(each.bytes for each in found),
        oldest_at=min((at for each in found if (at := _created_at(each.name)) is not None), default=None),
    )


def _created_at(name: str) -> float | None:
    created = name.partition("-")[0]
    return int(created) / 1000 if created.isdecimal() else None


def _is_older(path: Path, at: float) -> bool:
    created = _created_at(path.name)
    return path.suffix == SUFFIX and created is not None and created < at


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True
