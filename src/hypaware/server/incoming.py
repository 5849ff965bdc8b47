"""`spool/<dataset>/incoming/`: durable batches that are not yet in the ledger, or were entered a moment ago.

    incoming/<name>.<rows>.jsonl ──ledger──▶ sealed/<name>.<rows>.jsonl

A file here is a spool segment, but no reader of the spool reads this folder: a batch that is not in the ledger is never
flushed and never counted. A server recovers the folder before it listens: a batch that is in the ledger is moved to
`sealed/`, because it may have been acknowledged; any other file is removed, because it was not acknowledged and its
sender still has it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection

from hypaware import durable, faults
from hypaware.home import Home
from hypaware.spool import segments
from hypaware.spool.segments import SUFFIX, Folder
from hypaware.state import flushes, ledger
from hypaware.state.store import Store

_before_sync = faults.point("server.store.before-fsync", "a batch is written but not durable and not in the ledger")
_after_sync = faults.point("server.store.after-fsync", "a batch is durable but not in the ledger")
_before_move = faults.point("server.recover.before-rename", "a batch of the ledger is still in incoming/")
_after_move = faults.point("server.recover.after-rename", "a batch that a killed server left is in sealed/")
_before_remove = faults.point("server.recover.before-unlink", "a batch that was not acknowledged is in incoming/")


@dataclass(frozen=True)
class Settled:
    """Counts of recovered batches."""

    moved: int = 0
    removed: int = 0


def folder_of(spool: Folder) -> Path:
    return spool.path / "incoming"


def create(home: Home, dataset: str) -> Folder:
    spool = segments.folder(home, dataset)
    spool.create()
    durable.make_dir(folder_of(spool))
    # An earlier server may have been killed before the folder's name was durable.
    durable.fsync_dir(spool.path)
    return spool


def write(spool: Folder, lines: bytes, rows: int) -> Path:
    """Write and sync a file. Its name is durable only after the folder is synced, once for many files."""
    path = folder_of(spool) / segments.sealed_name(segments.new_name(), rows)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            durable.write_all(fd, lines)
            _before_sync()
            durable.fsync_fd(fd)
        finally:
            os.close(fd)
    except BaseException:
        discard([path])
        raise
    _after_sync()
    return path


def segment_of(path: Path) -> str:
    return path.name.removesuffix(SUFFIX)


def sealed_place(path: Path) -> Path:
    return path.parent.parent / "sealed" / path.name


def is_registered(connection: Connection, path: Path) -> bool:
    return bool(ledger.known_segments(connection, path.parent.parent.name, [segment_of(path)]))


def discard(paths: Iterable[Path]) -> None:
    """Remove files that were not acknowledged. A file that cannot be removed is removed at the next start."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def settle(home: Home, store: Store, *, ledger_lost: bool = False) -> Settled:
    """Move or remove the batches that a killed server left. Call it before the server listens.

    Without the ledger it is unknown which batches were acknowledged. Every batch is kept then, and rows that are sent
    again are recognised by their dedupe keys.
    """
    moved = removed = 0
    for dataset in segments.datasets_with_spool(home):
        spool = segments.folder(home, dataset)
        paths = sorted(folder_of(spool).glob(f"*{SUFFIX}")) if folder_of(spool).is_dir() else []
        if not paths:
            continue
        names = [segment_of(path) for path in paths]
        with store.reading() as connection:
            known = set(names) if ledger_lost else ledger.known_segments(connection, dataset, names)
            # If a power cut undid a move, the segment may have been committed before.
            needed = known - flushes.committed_segments(connection, dataset, names)
        for path in paths:
            if segment_of(path) in needed:
                _before_move()
                durable.rename(path, sealed_place(path))
                _after_move()
                moved += 1
            else:
                _before_remove()
                durable.remove(path)
                removed += 1
    return Settled(moved, removed)
