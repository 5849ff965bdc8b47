"""File locks (flock).

A lock ends with its descriptor, even if the process is killed, so a leftover file never blocks anything. Each
acquisition opens the file again, so that the lock excludes other threads as well as other processes.

`locked` waits for a lock and holds it for the duration of a context. `try_lock` does not wait; its lock file contains
the pid of the holder, for messages, which is cleared when the lock is released.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hypaware.home import durable_files


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
        lock_fd(fd, wait=wait)
        yield fd
    finally:
        os.close(fd)


def lock_fd(fd: int, *, wait: bool = True) -> None:
    """Lock an open file or folder until the descriptor is closed.

    Without `wait`, raise BlockingIOError if the lock is held elsewhere.
    """
    fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def try_lock(path: Path, *, with_pid: bool = True) -> int | None:
    """Return the locked descriptor, which `unlock` frees, or None if the lock is held elsewhere.

    Without `with_pid`, the file is emptied, and the descriptor can be passed to a child, which calls `write_pid`.
    """
    durable_files.make_dir(path.parent)
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            lock_fd(fd, wait=False)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        if is_file_at(path, fd):
            _write(fd, b"")
            if with_pid:
                write_pid(fd)
            return fd
        os.close(fd)


def write_pid(fd: int) -> None:
    """Write the pid of this process to a lock file that it holds."""
    _write(fd, b"%d\n" % os.getpid())


def unlock(fd: int) -> None:
    _write(fd, b"")
    os.close(fd)


def lock_holder(path: Path) -> int | None:
    """Return the pid in the lock file, which may be that of a killed process. None if there is none."""
    try:
        return int(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def is_locked(path: Path) -> bool:
    """Report whether the lock is held. Creates no file. A concurrent `try_lock` may fail while this check runs."""
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


def is_file_at(path: Path, fd: int) -> bool:
    """Report whether the locked file is still the one at the path, and was not removed or replaced."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def _write(fd: int, text: bytes) -> None:
    """Replace the content of the lock file if possible: the lock also holds on a full disk, without a pid."""
    with suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, text, 0)
