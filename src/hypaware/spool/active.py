"""Active segments: append, acknowledge, seal; and the repair of those whose producer has died.

Invariants
- A file is visible in `active/` only while its producer holds its flock, so an unlocked file is an orphan.
- Bytes up to `_acknowledged` are fsynced and contain whole lines; no row is acknowledged before that.
- After an error or an interrupt the file is truncated to its last whole line before anything is appended, or
  abandoned: half a line is never joined with a later one, and fsync is never retried for the same bytes.
- A forked child keeps none of its parent's files open. It closes its copies, which does not release the parent's locks.
- A repair truncates an orphan to its last whole line and seals it. Truncated bytes were never acknowledged, because an
  acknowledged row ends with a newline that was fsynced with it.

@ref spool#acknowledge @ref spool#active @ref spool#orphans
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hypaware import faults
from hypaware.errors import Retryable
from hypaware.home import durable_files
from hypaware.home.locks import is_file_at, lock_fd
from hypaware.model.datasets import Row
from hypaware.spool import segments
from hypaware.spool.segments import SpoolFolder

_before_visible = faults.crash_point("spool.create.before-rename", "the new active file exists under a temporary name")
_after_visible = faults.crash_point("spool.create.after-rename", "the active file is visible and holds nothing")
_before_sync = faults.crash_point("spool.append.before-fsync", "rows are written, not durable, not acknowledged")
_after_sync = faults.crash_point("spool.append.after-fsync", "rows are durable, not acknowledged")
_before_seal = faults.crash_point("spool.seal.before-rename", "the segment is durable and still active")
_after_seal = faults.crash_point("spool.seal.after-rename", "the segment is sealed")
# Held while a file is created, and during a fork, so that a child never inherits an unregistered descriptor.
_create_lock = threading.Lock()
_open_segments: weakref.WeakSet[ActiveSegment] = weakref.WeakSet()
_before_rename = faults.crash_point(
    "spool.repair.before-rename", "an orphan is truncated to its last whole line and durable"
)
_after_rename = faults.crash_point("spool.repair.after-rename", "a repaired orphan is sealed")
_POLL_SECONDS = 0.05
_UNBORN_SECONDS = 60


class SegmentClosed(Exception):
    """The segment was sealed or abandoned before it accepted the rows; append them to a new one."""


class SegmentAbandoned(OSError):
    """The rows were written but not made durable; the file was truncated to the acknowledged rows."""


class ActiveSegment:
    def __init__(self, folder: SpoolFolder, *, deferrable: bool = False) -> None:
        self._folder = folder
        self.name = segments.new_segment_name(deferrable=deferrable)
        self.path = folder.active / f"{self.name}{segments.SUFFIX}"
        self._write = threading.RLock()
        self._sync = threading.Lock()
        # Bytes and rows of whole lines, as one value, so that an interrupt cannot make them inconsistent.
        self._written = (0, 0)
        self._acknowledged = 0
        self._is_torn = False
        self._is_closed = False
        with _create_lock:
            self._fd = _create_locked(self.path)
            _open_segments.add(self)
        self.opened_at = time.monotonic()

    @property
    def bytes(self) -> int:
        return self._written[0]

    @property
    def rows(self) -> int:
        return self._written[1]

    @property
    def is_usable(self) -> bool:
        return not self._is_closed

    def append(self, rows: Sequence[Row]) -> None:
        """Append rows. Return when they are durable. Concurrent threads share an fsync."""
        with self._write:
            if self._is_closed:
                raise SegmentClosed(self.name)
            self._truncate_torn()
            lines = segments.encode_lines(rows, self.rows)
            end = self.bytes + len(lines)
            self._is_torn = True
            try:
                durable_files.write_all(self._fd, lines)
                self._written = (end, self.rows + len(rows))
                self._is_torn = False
            except BaseException:
                with contextlib.suppress(OSError):
                    self._truncate_torn()
                raise
        with self._sync:
            if self._acknowledged >= end:
                return
            if self._is_closed:
                raise SegmentAbandoned(f"segment {self.name} was abandoned before its rows were durable")
            self._make_durable()

    def seal(self) -> Path | None:
        """Seal the segment. Return its path, or None if it has no rows."""
        with self._sync, self._write:
            try:
                if self._is_closed:
                    return None
                self._is_closed = True
                if self.rows == 0:
                    durable_files.remove_durably(self.path)
                    return None
                self._truncate_torn()
                self._make_durable()
                _before_seal()
                sealed = self._folder.sealed / segments.sealed_file_name(self.name, self.rows)
                durable_files.rename_durably(self.path, sealed)
                _after_seal()
                return sealed
            finally:
                self._release()

    def abandon(self) -> None:
        """Release a file that an error closed. It becomes an orphan, which the next flush repairs."""
        with self._sync, self._write:
            if self._is_closed:
                self._release()

    def forget_after_fork(self) -> None:
        """Close the parent's file in a forked child. This does not release the parent's lock."""
        self._is_closed = True
        self._release()

    def _make_durable(self) -> None:
        """Fsync everything that any thread has written so far. The caller holds `_sync`."""
        target = self.bytes
        if self._acknowledged == target:
            return
        _before_sync()
        try:
            durable_files.fsync_fd(self._fd)
        except OSError:
            with self._write:
                self._is_closed = True
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self._acknowledged)
                self._release()
            raise
        _after_sync()
        self._acknowledged = target

    def _truncate_torn(self) -> None:
        """Truncate half-written lines. If that fails, close the segment, so that no line follows them."""
        if not self._is_torn:
            return
        try:
            os.ftruncate(self._fd, self.bytes)
        except OSError:
            self._is_closed = True
            raise
        self._is_torn = False

    def _release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _create_locked(path: Path) -> int:
    """Create the file, lock it, then make it visible, so that repair never finds it unlocked."""
    temporary = path.with_name(f"{segments.NEW_PREFIX}{path.name}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        lock_fd(fd)
        _before_visible()
        durable_files.rename_durably(temporary, path)
        if not is_file_at(path, fd):
            raise SegmentAbandoned(f"{path} was replaced while it was being created")
        _after_visible()
    except BaseException:
        os.close(fd)
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return fd


def _forget_segments_in_child() -> None:
    for segment in list(_open_segments):
        segment.forget_after_fork()
    _create_lock.release()


@dataclass(frozen=True)
class RepairedSegment:
    name: str
    rows: int
    bytes_cut: int


def wait_until_sealed(folder: SpoolFolder, seconds: float) -> list[Path]:
    """Wait until producers seal the files that are active now, which they soon do. Repair orphans.

    Return the files that a live but stuck process still holds.
    """
    unsealed = set(segments.list_active_files(folder))
    deadline = time.monotonic() + seconds
    while unsealed:
        repair_orphans(folder)
        unsealed &= set(segments.list_active_files(folder))
        unsealed = {path for path in unsealed if _holds_rows(path)}
        if not unsealed or time.monotonic() >= deadline:
            break
        time.sleep(_POLL_SECONDS)
    return sorted(unsealed)


def _holds_rows(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False


def repair_orphans(folder: SpoolFolder) -> list[RepairedSegment]:
    """Seal every active file that is not locked."""
    _remove_unborn(folder)
    repaired = []
    for path in segments.list_active_files(folder):
        try:
            done = _repair_orphan(folder, path)
        except OSError as error:
            raise Retryable(
                f"could not seal {path}, which a stopped process has left: {error}", kind="spool_repair_failed"
            ) from error
        if done:
            repaired.append(done)
    return repaired


def _repair_orphan(folder: SpoolFolder, path: Path) -> RepairedSegment | None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        try:
            lock_fd(fd, wait=False)
        except BlockingIOError:
            return None
        # Its producer or another repair may have sealed it before we had the lock.
        if not is_file_at(path, fd):
            return None
        size = os.fstat(fd).st_size
        rows, whole = _whole_lines(fd)
        if rows == 0:
            durable_files.remove_durably(path)
            return RepairedSegment(path.stem, 0, size)
        if whole < size:
            os.ftruncate(fd, whole)
        durable_files.fsync_fd(fd)
        _before_rename()
        durable_files.rename_durably(path, folder.sealed / segments.sealed_file_name(path.stem, rows))
        _after_rename()
        return RepairedSegment(path.stem, rows, size - whole)
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


def _remove_unborn(folder: SpoolFolder) -> None:
    """Remove empty files whose producer died before making them visible."""
    for path in folder.active.glob(f"{segments.NEW_PREFIX}*"):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            # Do not touch or lock a recent file: its producer is about to lock it.
            if time.time() - os.fstat(fd).st_mtime > _UNBORN_SECONDS:
                lock_fd(fd, wait=False)
                if is_file_at(path, fd):
                    path.unlink(missing_ok=True)
        except BlockingIOError:
            pass
        finally:
            os.close(fd)


os.register_at_fork(
    before=_create_lock.acquire, after_in_parent=_create_lock.release, after_in_child=_forget_segments_in_child
)
