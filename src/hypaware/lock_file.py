"""A file that one holder at a time has locked (flock), with the holder's pid in it.

The lock ends with its descriptor, whatever becomes of the process, so nothing that is left on disk can block anybody.
Each taking opens the file anew: flock then excludes threads of one process as well as processes. The pid is for
messages; it is there while the lock is held and gone when it was given back.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from hypaware import durable


def take(path: Path) -> int | None:
    """The locked descriptor, to be given to `release`; None while somebody else has it."""
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


def release(fd: int) -> None:
    _sign(fd, b"")
    os.close(fd)


def holder(path: Path) -> int | None:
    """The pid of whoever has the lock, as far as the file tells; it may name one that was killed."""
    try:
        return int(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def is_taken(path: Path) -> bool:
    """Makes nothing that was not there. Whoever wants the lock in this very moment may be told that it is taken."""
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
    """The lock holds on a full disk too; then nobody is named."""
    with suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, text, 0)


def is_at(path: Path, fd: int) -> bool:
    """Whether the locked file is still the one at the path: the folder may have been removed meanwhile."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False
