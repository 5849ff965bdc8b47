"""`spool/<dataset>/incoming/`: batches that are durable, and not yet, or only just, in the ledger.

    incoming/<name>.<rows>.jsonl ──ledger──▶ sealed/<name>.<rows>.jsonl

A file here is a segment as the spool knows it, but no reader of the spool looks here: an unregistered batch is never
flushed, and never counted. What a killed server left behind is settled before the next one listens: a batch that the
ledger knows is moved on, for its sender may have been told so; any other is removed, for its sender was told nothing
and still has it.
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

_before_sync = faults.point("server.store.before-fsync", "a batch is written, not durable, not in the ledger")
_after_sync = faults.point("server.store.after-fsync", "a batch is durable, not in the ledger")
_before_move = faults.point("server.recover.before-rename", "a batch of the ledger is still in incoming/")
_after_move = faults.point("server.recover.after-rename", "a batch that a killed server left is on its way")
_before_remove = faults.point("server.recover.before-unlink", "a batch that nobody was told of is still in incoming/")


@dataclass(frozen=True)
class Settled:
    """What was found at the start."""

    moved: int = 0
    removed: int = 0


def folder_of(spool: Folder) -> Path:
    return spool.path / "incoming"


def create(home: Home, dataset: str) -> Folder:
    spool = segments.folder(home, dataset)
    spool.create()
    durable.make_dir(folder_of(spool))
    # Whoever made it may have been killed before its name was durable.
    durable.fsync_dir(spool.path)
    return spool


def write(spool: Folder, lines: bytes, rows: int) -> Path:
    """A durable file; its name is durable when the folder is synced, which one sync does for many."""
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
    """Nobody was told of these; what cannot be removed now is removed at the next start."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def settle(home: Home, store: Store, *, ledger_lost: bool = False) -> Settled:
    """Before anybody is listened to. Without the ledger nobody knows who was told what: every batch is then kept, and
    rows that come again are known by their keys."""
    moved = removed = 0
    for dataset in segments.datasets_with_spool(home):
        spool = segments.folder(home, dataset)
        left = sorted(folder_of(spool).glob(f"*{SUFFIX}")) if folder_of(spool).is_dir() else []
        if not left:
            continue
        names = [segment_of(path) for path in left]
        with store.reading() as connection:
            known = set(names) if ledger_lost else ledger.known_segments(connection, dataset, names)
            # A move that a power cut undid: its rows may have been committed before.
            wanted = known - flushes.committed_segments(connection, dataset, names)
        for path in left:
            if segment_of(path) in wanted:
                _before_move()
                durable.rename(path, sealed_place(path))
                _after_move()
                moved += 1
            else:
                _before_remove()
                durable.remove(path)
                removed += 1
    return Settled(moved, removed)
