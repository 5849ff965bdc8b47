"""Where a server keeps the batches that it accepts, until a flush commits them.

A home with a lake of its own keeps files (`FileStorage`), in spool/<dataset>/:

    incoming/<name>.<rows>.jsonl ──ledger──▶ sealed/<name>.<rows>.jsonl

`incoming/` holds durable batches that are not yet in the ledger, or were entered a moment ago. A file there is a spool
segment, but no reader of the spool reads that folder: a batch that is not in the ledger is never flushed and never
counted. A server recovers the folder before it listens: a batch that is in the ledger is moved to `sealed/`, because it
may have been acknowledged; any other file is removed, because it was not acknowledged and its sender still has it.

No transaction begins before every move of the previous group is durable. Transactions also remove old ids from the
ledger, and a file in incoming/ whose id was removed would look like a batch that was never acknowledged.

A server of a shared lake keeps objects (`ObjectStorage`), and nothing on its disk, so that any number of servers share
one ledger and any of them may die. A flush finds the objects in the list that the ledger's transaction extends
(`hypaware.spool.received`). After a failed transaction an object is left where it is: the transaction may be committed
although it reported a failure, even later, and a flush drops the object if it was not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hypaware import faults
from hypaware.errors import HypError
from hypaware.home import Home, durable_files, storage
from hypaware.server.health import log, require_free_space
from hypaware.server.validation import create_batch_file
from hypaware.spool import segments
from hypaware.spool.received import ReceivedObjects
from hypaware.spool.segments import SUFFIX, SpoolFolder
from hypaware.state import flushes, ledger
from hypaware.state.store import StateStore

_before_sync = faults.crash_point(
    "server.store.before-fsync", "a batch is written but not durable and not in the ledger"
)
_after_sync = faults.crash_point("server.store.after-fsync", "a batch is durable but not in the ledger")
_after_move = faults.crash_point(
    "server.move.after-rename", "registered batches can be flushed but are not acknowledged"
)
_before_keep = faults.crash_point("server.recover.before-rename", "a batch of the ledger is still in incoming/")
_after_keep = faults.crash_point("server.recover.after-rename", "a batch that a killed server left is in sealed/")
_before_drop = faults.crash_point("server.recover.before-unlink", "a batch that was not acknowledged is in incoming/")
_before_put = faults.crash_point("server.put.before-create", "a batch is validated and not in the bucket")
_after_put = faults.crash_point("server.put.after-create", "a batch is an object of the bucket and not in the ledger")

_PROBE = b"storage probe of the HypAware server\n"


@dataclass(frozen=True)
class StoredSegment:
    path: Path
    bytes: int
    location: str | None = None
    """The key of an object below the root of the shared lake."""


class BatchStorage(Protocol):
    def folder(self, dataset: str) -> Path:
        """Return where new batches of a dataset are written."""

    def store(self, dataset: str, lines: bytes | Path, rows: int) -> StoredSegment:
        """Make a batch durable: its lines, or what a validation worker has written (`create_batch_file`)."""

    def begin(self, paths: Sequence[Path]) -> None:
        """Prepare the transaction that enters these batches. Raises OSError if it must not begin."""

    def accept(self, paths: Sequence[Path]) -> None:
        """Make batches that are in the ledger visible to flushes."""

    def discard(self, paths: Sequence[Path]) -> None:
        """Remove batches that are certainly not in the ledger."""

    def roll_back(self, paths: Sequence[Path]) -> None:
        """Clean up after a failed transaction, which may be committed all the same."""

    def clean_up(self) -> None:
        """Do the rest of the work before the next transaction. Raises OSError if it fails."""

    def probe(self) -> None:
        """Raise OSError or HypError if a batch could not be stored now."""


def segment_name(path: Path) -> str:
    return path.name.removesuffix(SUFFIX)


class FileStorage:
    def __init__(self, home: Home, store: StateStore, datasets: Iterable[str], min_free: int) -> None:
        self._store = store
        self._min_free = min_free
        self._folders = {name: create_incoming_folder(home, name) for name in datasets}
        self._unmoved: list[Path] = []
        self._unsynced: set[Path] = set()

    def folder(self, dataset: str) -> Path:
        return self._folders[dataset]

    def store(self, dataset: str, lines: bytes | Path, rows: int) -> StoredSegment:
        path = sync_batch(lines if isinstance(lines, Path) else create_batch_file(self._folders[dataset], lines, rows))
        return StoredSegment(path, path.stat().st_size)

    def begin(self, paths: Sequence[Path]) -> None:
        self.clean_up()
        for folder in {path.parent for path in paths}:
            require_free_space(folder, self._min_free)
            durable_files.fsync_dir(folder)

    def accept(self, paths: Sequence[Path]) -> None:
        self._unmoved += paths
        # The batches are stored from here on; a move that fails is repeated before the next group.
        with suppress(OSError):
            self._move()
        _after_move()

    def discard(self, paths: Sequence[Path]) -> None:
        # A file that cannot be removed is removed at the next start.
        for path in paths:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def roll_back(self, paths: Sequence[Path]) -> None:
        """Remove the files that the ledger does not know. If it cannot be read either, the next start decides."""
        try:
            with self._store.reading() as connection:
                for path in paths:
                    dataset, name = path.parent.parent.name, segment_name(path)
                    if ledger.ledger_segments(connection, dataset, [name]):
                        self._unmoved.append(path)
                    else:
                        self.discard([path])
        except HypError as error:
            log.warning("cannot read the ledger; the next start recovers %d batches: %s", len(paths), error)

    def clean_up(self) -> None:
        self._move()
        for folder in list(self._unsynced):
            durable_files.fsync_dir(folder)
            self._unsynced.discard(folder)

    def probe(self) -> None:
        for folder in self._folders.values():
            path = folder / ".probe"
            require_free_space(folder, self._min_free)
            durable_files.write_atomic(path, _PROBE)
            durable_files.remove_durably(path)

    def _move(self) -> None:
        while self._unmoved:
            path = self._unmoved[-1]
            place = _sealed_path(path)
            # A missing file was moved before.
            with suppress(FileNotFoundError):
                path.rename(place)
            self._unsynced |= {path.parent, place.parent}
            self._unmoved.pop()


class ObjectStorage:
    def __init__(self, objects: ReceivedObjects) -> None:
        self._objects = objects
        self._unwanted: list[Path] = []

    def folder(self, dataset: str) -> Path:
        return self._objects.folder(dataset)

    def store(self, dataset: str, lines: bytes | Path, rows: int) -> StoredSegment:
        if isinstance(lines, Path):
            path, size = lines, lines.stat().st_size
        else:
            _before_put()
            path, size = create_batch_file(self.folder(dataset), lines, rows), len(lines)
        _after_put()
        return StoredSegment(path, size, self._objects.location(path))

    def begin(self, paths: Sequence[Path]) -> None:
        pass

    def accept(self, paths: Sequence[Path]) -> None:
        pass

    def discard(self, paths: Sequence[Path]) -> None:
        # Removed after the answers. What cannot be removed then is dropped by a flush.
        self._unwanted += paths

    def roll_back(self, paths: Sequence[Path]) -> None:
        pass

    def clean_up(self) -> None:
        unwanted, self._unwanted = self._unwanted, []
        for path in unwanted:
            with suppress(OSError, HypError):
                path.unlink(missing_ok=True)

    def probe(self) -> None:
        storage.check_bucket(self._objects.root)


def incoming_folder(spool: SpoolFolder) -> Path:
    return spool.path / "incoming"


def create_incoming_folder(home: Home, dataset: str) -> Path:
    spool = segments.spool_folder(home, dataset)
    spool.create()
    folder = incoming_folder(spool)
    durable_files.make_dir(folder)
    # An earlier server may have been killed before the folder's name was durable.
    durable_files.fsync_dir(spool.path)
    return folder


def sync_batch(path: Path) -> Path:
    """Sync the file of a batch. Its name is durable only after the folder is synced, once for many files."""
    try:
        _before_sync()
        durable_files.fsync_file(path)
    except BaseException:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise
    _after_sync()
    return path


def recover_incoming(home: Home, store: StateStore, *, ledger_lost: bool = False) -> tuple[int, int]:
    """Move or remove the batches that a killed server left, and count both. Call it before the server listens.

    Without the ledger it is unknown which batches were acknowledged. Every batch is kept then, and rows that are sent
    again are recognised by their dedupe keys.
    """
    moved = removed = 0
    for dataset in segments.list_spooled_datasets(home):
        spool = segments.spool_folder(home, dataset)
        paths = sorted(incoming_folder(spool).glob(f"*{SUFFIX}")) if incoming_folder(spool).is_dir() else []
        needed = _find_needed(store, dataset, paths, ledger_lost) if paths else ()
        for path in paths:
            if segment_name(path) in needed:
                _before_keep()
                durable_files.rename_durably(path, _sealed_path(path))
                _after_keep()
                moved += 1
            else:
                _before_drop()
                durable_files.remove_durably(path)
                removed += 1
    return moved, removed


def _find_needed(store: StateStore, dataset: str, paths: Sequence[Path], ledger_lost: bool) -> Collection[str]:
    names = [segment_name(path) for path in paths]
    with store.reading() as connection:
        known = set(names) if ledger_lost else ledger.ledger_segments(connection, dataset, names)
        # If a power cut undid a move, the segment may have been committed before.
        return known - flushes.committed_segments(connection, dataset, names)


def _sealed_path(path: Path) -> Path:
    return path.parent.parent / "sealed" / path.name
