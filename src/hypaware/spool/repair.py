"""Repair orphans, active files whose producer has died: truncate to the last whole line, count the rows, seal.

An orphan is an active file that is not locked. Truncated bytes were never acknowledged, because an acknowledged row
ends with a newline that was fsynced with it.

@ref spool#orphans
"""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path

from hypaware import durable, faults
from hypaware.errors import Retryable
from hypaware.spool import segments
from hypaware.spool.active import same_file
from hypaware.spool.segments import Folder

_before_rename = faults.point("spool.repair.before-rename", "an orphan is truncated to its last whole line and durable")
_after_rename = faults.point("spool.repair.after-rename", "a repaired orphan is sealed")

_POLL_SECONDS = 0.05
_UNBORN_SECONDS = 60


@dataclass(frozen=True)
class Repaired:
    name: str
    rows: int
    bytes_cut: int


def repair_orphans(folder: Folder) -> list[Repaired]:
    """Seal every active file that is not locked."""
    _sweep_unborn(folder)
    repaired = []
    for path in segments.active_files(folder):
        try:
            done = _repair(folder, path)
        except OSError as error:
            raise Retryable(
                f"could not seal {path}, which a stopped process has left: {error}", kind="spool_repair_failed"
            ) from error
        if done:
            repaired.append(done)
    return repaired


def wait_until_sealed(folder: Folder, seconds: float) -> list[Path]:
    """Wait until producers seal the files that are active now, which they soon do. Repair orphans.

    Return the files that a live but stuck process still holds.
    """
    unsealed = set(segments.active_files(folder))
    deadline = time.monotonic() + seconds
    while unsealed:
        repair_orphans(folder)
        unsealed &= set(segments.active_files(folder))
        unsealed = {path for path in unsealed if _holds_rows(path)}
        if not unsealed or time.monotonic() >= deadline:
            break
        time.sleep(_POLL_SECONDS)
    return sorted(unsealed)


def _repair(folder: Folder, path: Path) -> Repaired | None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        # Its producer or another repair may have sealed it before we had the lock.
        if not same_file(fd, path):
            return None
        size = os.fstat(fd).st_size
        rows, whole = _whole_lines(fd)
        if rows == 0:
            durable.remove(path)
            return Repaired(path.stem, 0, size)
        if whole < size:
            os.ftruncate(fd, whole)
        durable.fsync_fd(fd)
        _before_rename()
        durable.rename(path, folder.sealed / segments.sealed_name(path.stem, rows))
        _after_rename()
        return Repaired(path.stem, rows, size - whole)
    finally:
        os.close(fd)


def _whole_lines(fd: int) -> tuple[int, int]:
    """Count the whole lines of the file. Return the count and the end of the last one."""
    rows = end = offset = 0
    while block := os.pread(fd, 1 << 20, offset):
        rows += block.count(b"\n")
        if (last := block.rfind(b"\n")) >= 0:
            end = offset + last + 1
        offset += len(block)
    return rows, end


def _sweep_unborn(folder: Folder) -> None:
    """Remove empty files whose producer died before making them visible."""
    for path in folder.active.glob(f"{segments.NEW_PREFIX}*"):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            # Do not touch or lock a recent file: its producer is about to lock it.
            if time.time() - os.fstat(fd).st_mtime > _UNBORN_SECONDS:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if same_file(fd, path):
                    path.unlink(missing_ok=True)
        except BlockingIOError:
            pass
        finally:
            os.close(fd)


def _holds_rows(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False
