"""One engine per home: whoever holds the flock on `run/engine.lock` is it, or is about to start it.

The file holds the pid of the engine as soon as that knows it is the one, and nothing before: whoever takes
the lock empties it. So, unlike a pid file, it never names a stranger while the lock is held.

A caller that finds the lock free takes it and hands the locked descriptor down to the engine that it
starts. So there is never a moment in which two engines could start, a waiting caller sees an engine's end
as a free lock, and nothing that is left on disk (socket, pid file, the lock file itself) can block
anything.
"""

from __future__ import annotations

import fcntl
import os

from hypaware import durable
from hypaware.home import Home


def take(home: Home) -> int | None:
    """The locked descriptor, or None while somebody else has it."""
    durable.make_dir(home.run)
    while True:
        fd = os.open(home.engine_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        if holds(home, fd):
            os.ftruncate(fd, 0)
            return fd
        os.close(fd)


def sign(lock: int) -> None:
    """Says that this process is the engine."""
    os.pwrite(lock, b"%d\n" % os.getpid(), 0)


def holder(home: Home) -> int | None:
    """The engine's process, while the lock is held; None while it is only about to start."""
    try:
        return int(home.engine_lock.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def holds(home: Home, fd: int) -> bool:
    """Whether the locked file is still the one at the path: not after the home was removed or replaced."""
    try:
        there = home.engine_lock.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(fd))


def is_free(home: Home) -> bool:
    fd = take(home)
    if fd is None:
        return False
    os.close(fd)
    return True
