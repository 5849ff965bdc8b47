"""File locks (flock). The lock file contains the pid of the process that holds it.

A lock ends with its descriptor, even if the process is killed, so a leftover file never blocks anything. Each
acquisition opens the file again, so that the lock excludes other threads as well as other processes. The pid is
for messages; it is written when the lock is acquired and cleared when it is released.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hypaware import durable


def take(path: Path) -> int | None:
    """Return the locked descriptor, which `release` frees, or None if the lock is held elsewhere."""
    durable.make_dir(path.parent)
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        if is_at(path, fd):
            _sign(fd, b"%d\n" % os.getpid())
            return fd
        os.close(fd)


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[int]:
    """Hold an exclusive lock on a folder, or on a file, which is created if it does not exist.

    Yield the descriptor. Without `wait`, raise BlockingIOError if the lock is held elsewhere.
    """
    if path.is_dir():
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    else:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield fd
    finally:
        os.close(fd)


def release(fd: int) -> None:
    _sign(fd, b"")
    os.close(fd)


def holder(path: Path) -> int | None:
    """Return the pid in the lock file, which may be that of a killed process. None if there is none."""
    try:
        return int(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def is_taken(path: Path) -> bool:
    """Report whether the lock is held. Creates no file. A concurrent `take` may fail while this check runs."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _sign(fd: int, text: bytes) -> None:
    """Write the pid if possible: the lock also holds on a full disk, without a pid."""
    with suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, text, 0)


def is_at(path: Path, fd: int) -> bool:
    """Report whether the locked file is still the one at the path, and was not removed or replaced."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False
