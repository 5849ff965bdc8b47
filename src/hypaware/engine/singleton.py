"""The engine lock, which ensures one engine per home: a flock on `run/engine.lock`.

The engine, or a process that is about to start it, holds the lock. Acquiring the lock empties the file, and the engine
writes its pid to it. So, unlike a pid file, it never names another process while the lock is held.

A caller that acquires the lock passes the locked descriptor to the engine that it starts. So two engines can never
start at the same time, a waiting caller notices the end of an engine as a free lock, and no leftover file (socket, pid
file, lock file) blocks anything.
"""

from __future__ import annotations

import fcntl
import os

from hypaware import durable
from hypaware.home import Home


def take(home: Home) -> int | None:
    """Return the locked descriptor, or None if the lock is held elsewhere."""
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
    """Write the pid of this process, the engine, to the lock file."""
    os.pwrite(lock, b"%d\n" % os.getpid(), 0)


def holder(home: Home) -> int | None:
    """Return the pid of the engine that holds the lock, or None if it is only about to start."""
    try:
        return int(home.engine_lock.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def holds(home: Home, fd: int) -> bool:
    """Report whether the locked file is still the one at the path, and the home was not removed or replaced."""
    try:
        status = home.engine_lock.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(status, os.fstat(fd))


def is_free(home: Home) -> bool:
    fd = take(home)
    if fd is None:
        return False
    os.close(fd)
    return True
