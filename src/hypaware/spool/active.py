"""The segment that one process is writing: append, acknowledge, seal.

Invariants
- A file is visible in `active/` only while its producer holds its flock, so an unlocked one is an orphan.
- Bytes up to `_acknowledged` were fsynced and hold whole lines; no row is acknowledged before that.
- After an error or an interrupt the file is cut back to its last whole line before anything follows, or given up:
  half a line can never be glued to a later one, and an fsync is never tried twice over the same bytes.
- A forked child holds none of its parent's files: it closes its copies, which leaves the parent's locks alone.

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

# Held while a file is created, and by a fork: a child never inherits a descriptor that it does not know of.
_creating = threading.Lock()
_alive: weakref.WeakSet[ActiveSegment] = weakref.WeakSet()


class Closed(Exception):
    """The segment was sealed or given up before it took these rows: they belong into a new one."""


class GivenUp(OSError):
    """The rows were written and not made durable; the file was cut back to what it had acknowledged."""


class ActiveSegment:
    def __init__(self, folder: Folder, *, waits: bool = False) -> None:
        self._folder = folder
        self.name = segments.new_name(waits=waits)
        self.path = folder.active / f"{self.name}{segments.SUFFIX}"
        self._write = threading.RLock()
        self._sync = threading.Lock()
        # Bytes and rows of whole lines: one value, so that an interrupt cannot leave them out of step.
        self._written = (0, 0)
        self._acknowledged = 0
        self._torn = False
        self._closed = False
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
    def usable(self) -> bool:
        return not self._closed

    def append(self, rows: Sequence[Row]) -> None:
        """Returns when the rows are durable. Threads that append at the same time share an fsync."""
        with self._write:
            if self._closed:
                raise Closed(self.name)
            self._mend()
            lines = envelope.write_lines(rows, self.rows)
            end = self.bytes + len(lines)
            self._torn = True
            try:
                durable.write_all(self._fd, lines)
                self._written = (end, self.rows + len(rows))
                self._torn = False
            except BaseException:
                with contextlib.suppress(OSError):
                    self._mend()
                raise
        self._acknowledge(end)

    def seal(self) -> Path | None:
        """Makes the segment immutable; None if it never took a row."""
        with self._sync, self._write:
            try:
                if self._closed:
                    return None
                self._closed = True
                if self.rows == 0:
                    durable.remove(self.path)
                    return None
                self._mend()
                self._make_durable()
                _before_seal()
                sealed = self._folder.sealed / segments.sealed_name(self.name, self.rows)
                durable.rename(self.path, sealed)
                _after_seal()
                return sealed
            finally:
                self._release()

    def abandon(self) -> None:
        """Lets go of a file that an error closed: free, it is an orphan, and the next flush takes it from there."""
        with self._sync, self._write:
            if self._closed:
                self._release()

    def forget_after_fork(self) -> None:
        """In a child: the file belongs to the parent. Closing this copy does not free the parent's lock."""
        self._closed = True
        self._release()

    def _acknowledge(self, end: int) -> None:
        with self._sync:
            if self._acknowledged >= end:
                return
            if self._closed:
                raise GivenUp(f"segment {self.name} was given up before its rows were durable")
            self._make_durable()

    def _make_durable(self) -> None:
        """Under `_sync`: everything written so far, by whichever thread."""
        target = self.bytes
        if self._acknowledged == target:
            return
        _before_sync()
        try:
            durable.fsync_fd(self._fd)
        except OSError:
            with self._write:
                self._closed = True
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self._acknowledged)
                self._release()
            raise
        _after_sync()
        self._acknowledged = target

    def _mend(self) -> None:
        """Takes half-written lines away again. If even that fails, no further line may follow them."""
        if not self._torn:
            return
        try:
            os.ftruncate(self._fd, self.bytes)
        except OSError:
            self._closed = True
            raise
        self._torn = False

    def _release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _create(path: Path) -> int:
    """Creates the file locked, then makes it visible: a repairer finds no moment at which it is there and free."""
    temporary = path.with_name(f"{segments.NEW_PREFIX}{path.name}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        _before_visible()
        durable.rename(temporary, path)
        if not same_file(fd, path):
            raise GivenUp(f"{path} was replaced while it was created")
        _after_visible()
    except BaseException:
        os.close(fd)
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return fd


def same_file(fd: int, path: Path) -> bool:
    """Whether the descriptor is still what the path names; a repairer may have been quicker."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    held = os.fstat(fd)
    return (held.st_ino, held.st_dev) == (there.st_ino, there.st_dev)


def _forget_in_child() -> None:
    for segment in list(_alive):
        segment.forget_after_fork()
    _creating.release()


os.register_at_fork(before=_creating.acquire, after_in_parent=_creating.release, after_in_child=_forget_in_child)
