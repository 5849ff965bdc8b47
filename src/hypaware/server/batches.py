"""A batch on its way through the server, its outcome, and its file in `spool/<dataset>/incoming/`.

    incoming/<name>.<rows>.jsonl ──ledger──▶ sealed/<name>.<rows>.jsonl

`incoming/` holds durable batches that are not yet in the ledger, or were entered a moment ago. A file there is a spool
segment, but no reader of the spool reads that folder: a batch that is not in the ledger is never flushed and never
counted. A server recovers the folder before it listens: a batch that is in the ledger is moved to `sealed/`, because it
may have been acknowledged; any other file is removed, because it was not acknowledged and its sender still has it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from hypaware import faults
from hypaware.home import Home, durable_files
from hypaware.model.datasets import Dataset
from hypaware.server.auth import Caller
from hypaware.server.http import BatchHeaders, HttpProblem
from hypaware.spool import segments
from hypaware.spool.segments import SUFFIX, SpoolFolder
from hypaware.state import flushes, ledger
from hypaware.state.ledger import BatchSender, Coverage, ReceivedBatch
from hypaware.state.store import StateStore

_before_sync = faults.crash_point(
    "server.store.before-fsync", "a batch is written but not durable and not in the ledger"
)
_after_sync = faults.crash_point("server.store.after-fsync", "a batch is durable but not in the ledger")
_before_move = faults.crash_point("server.recover.before-rename", "a batch of the ledger is still in incoming/")
_after_move = faults.crash_point("server.recover.after-rename", "a batch that a killed server left is in sealed/")
_before_remove = faults.crash_point("server.recover.before-unlink", "a batch that was not acknowledged is in incoming/")


@dataclass(frozen=True)
class StoredBatch:
    rows: int


@dataclass(frozen=True)
class AlreadyStored:
    """A batch with the same id was stored before; nothing was stored now."""


@dataclass(frozen=True)
class OverlappingBatch:
    """The batch has a new id but covers rows that are already stored; nothing was stored now."""

    covered: Coverage


BatchOutcome = StoredBatch | AlreadyStored | OverlappingBatch | HttpProblem
AnswerBatch = Callable[[BatchOutcome], None]
"""Reports the outcome of a batch; called once, from any thread."""


@dataclass(frozen=True)
class IncomingBatch:
    """A batch described by its headers, and its sender."""

    caller: Caller
    dataset: Dataset
    headers: BatchHeaders

    def sender(self, gateway_id: str) -> BatchSender:
        return BatchSender(self.caller.tenant, gateway_id, self.headers.incarnation, self.dataset.name)


@dataclass(frozen=True)
class DurableBatch:
    """A validated batch; its file, if it has rows, is written and synced."""

    incoming: IncomingBatch
    batch: ReceivedBatch
    path: Path | None
    answer: AnswerBatch


def incoming_folder(spool: SpoolFolder) -> Path:
    return spool.path / "incoming"


def create_incoming_folder(home: Home, dataset: str) -> SpoolFolder:
    spool = segments.spool_folder(home, dataset)
    spool.create()
    durable_files.make_dir(incoming_folder(spool))
    # An earlier server may have been killed before the folder's name was durable.
    durable_files.fsync_dir(spool.path)
    return spool


def write_batch_file(spool: SpoolFolder, lines: bytes, rows: int) -> Path:
    """Write and sync a file. Its name is durable only after the folder is synced, once for many files."""
    path = incoming_folder(spool) / segments.sealed_file_name(segments.new_segment_name(), rows)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            durable_files.write_all(fd, lines)
            _before_sync()
            durable_files.fsync_fd(fd)
        finally:
            os.close(fd)
    except BaseException:
        discard_files([path])
        raise
    _after_sync()
    return path


def segment_name(path: Path) -> str:
    return path.name.removesuffix(SUFFIX)


def sealed_path(path: Path) -> Path:
    return path.parent.parent / "sealed" / path.name


def discard_files(paths: Iterable[Path]) -> None:
    """Remove files that were not acknowledged. A file that cannot be removed is removed at the next start."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def recover_incoming(home: Home, store: StateStore, *, ledger_lost: bool = False) -> tuple[int, int]:
    """Move or remove the batches that a killed server left, and count both. Call it before the server listens.

    Without the ledger it is unknown which batches were acknowledged. Every batch is kept then, and rows that are sent
    again are recognised by their dedupe keys.
    """
    moved = removed = 0
    for dataset in segments.list_spooled_datasets(home):
        spool = segments.spool_folder(home, dataset)
        paths = sorted(incoming_folder(spool).glob(f"*{SUFFIX}")) if incoming_folder(spool).is_dir() else []
        if not paths:
            continue
        names = [segment_name(path) for path in paths]
        with store.reading() as connection:
            known = set(names) if ledger_lost else ledger.ledger_segments(connection, dataset, names)
            # If a power cut undid a move, the segment may have been committed before.
            needed = known - flushes.committed_segments(connection, dataset, names)
        for path in paths:
            if segment_name(path) in needed:
                _before_move()
                durable_files.rename_durably(path, sealed_path(path))
                _after_move()
                moved += 1
            else:
                _before_remove()
                durable_files.remove_durably(path)
                removed += 1
    return moved, removed
