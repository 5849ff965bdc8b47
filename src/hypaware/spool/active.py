"""The active segment, which one process writes: append, acknowledge, seal.

Invariants
- A file is visible in `active/` only while its producer holds its flock, so an unlocked file is an orphan.
- Bytes up to `_acknowledged` are fsynced and contain whole lines; no row is acknowledged before that.
- After an error or an interrupt the file is truncated to its last whole line before anything is appended, or
  abandoned: half a line is never joined with a later one, and fsync is never retried for the same bytes.
- A forked child keeps none of its parent's files open. It closes its copies, which does not release the parent's locks.

@ref spool#acknowledge @ref spool#active
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

from hypaware import durable, faults
from hypaware.model.datasets import Row
from hypaware.spool import envelope, segments
from hypaware.spool.segments import Folder

_before_visible = faults.point("spool.create.before-rename", "the new active file exists under a temporary name")
_after_visible = faults.point("spool.create.after-rename", "the active file is visible and holds nothing")
_before_sync = faults.point("spool.append.before-fsync", "rows are written, not durable, not acknowledged")
_after_sync = faults.point("spool.append.after-fsync", "rows are durable, not acknowledged")
_before_seal = faults.point("spool.seal.before-rename", "the segment is durable and still active")
_after_seal = faults.point("spool.seal.after-rename", "the segment is sealed")

# Held while a file is created, and during a fork, so that a child never inherits an unregistered descriptor.
_creating = threading.Lock()
_alive: weakref.WeakSet[ActiveSegment] = weakref.WeakSet()


class Closed(Exception):
    """The segment was sealed or abandoned before it accepted the rows; append them to a new one."""


class GivenUp(OSError):
    """The rows were written but not made durable; the file was truncated to the acknowledged rows."""


class ActiveSegment:
    def __init__(self, folder: Folder, *, deferrable: bool = False) -> None:
        self._folder = folder
        self.name = segments.new_name(deferrable=deferrable)
        self.path = folder.active / f"{self.name}{segments.SUFFIX}"
        self._write = threading.RLock()
        self._sync = threading.Lock()
        # Bytes and rows of whole lines, as one value, so that an interrupt cannot make them inconsistent.
        self._written = (0, 0)
        self._acknowledged = 0
        self._is_torn = False
        self._is_closed = False
        with _creating:
            self._fd = _create(self.path)
            _alive.add(self)
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
                raise Closed(self.name)
            self._truncate_torn()
            lines = envelope.write_lines(rows, self.rows)
            end = self.bytes + len(lines)
            self._is_torn = True
            try:
                durable.write_all(self._fd, lines)
                self._written = (end, self.rows + len(rows))
                self._is_torn = False
            except BaseException:
                with contextlib.suppress(OSError):
                    self._truncate_torn()
                raise
        self._acknowledge(end)

    def seal(self) -> Path | None:
        """Seal the segment. Return its path, or None if it has no rows."""
        with self._sync, self._write:
            try:
                if self._is_closed:
                    return None
                self._is_closed = True
                if self.rows == 0:
                    durable.remove(self.path)
                    return None
                self._truncate_torn()
                self._make_durable()
                _before_seal()
                sealed = self._folder.sealed / segments.sealed_name(self.name, self.rows)
                durable.rename(self.path, sealed)
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

    def _acknowledge(self, end: int) -> None:
        with self._sync:
            if self._acknowledged >= end:
                return
            if self._is_closed:
                raise GivenUp(f"segment {self.name} was abandoned before its rows were durable")
            self._make_durable()

    def _make_durable(self) -> None:
        """Fsync everything that any thread has written so far. The caller holds `_sync`."""
        target = self.bytes
        if self._acknowledged == target:
            return
        _before_sync()
        try:
            durable.fsync_fd(self._fd)
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


def _create(path: Path) -> int:
    """Create the file, lock it, then make it visible, so that repair never finds it unlocked."""
    temporary = path.with_name(f"{segments.NEW_PREFIX}{path.name}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        _before_visible()
        durable.rename(temporary, path)
        if not same_file(fd, path):
            raise GivenUp(f"{path} was replaced while it was being created")
        _after_visible()
    except BaseException:
        os.close(fd)
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return fd


def same_file(fd: int, path: Path) -> bool:
    """Tell whether the path still refers to the open file; repair may have moved it."""
    try:
        current = path.stat()
    except FileNotFoundError:
        return False
    opened = os.fstat(fd)
    return (opened.st_ino, opened.st_dev) == (current.st_ino, current.st_dev)


def _forget_in_child() -> None:
    for segment in list(_alive):
        segment.forget_after_fork()
    _creating.release()


os.register_at_fork(before=_creating.acquire, after_in_parent=_creating.release, after_in_child=_forget_in_child)
