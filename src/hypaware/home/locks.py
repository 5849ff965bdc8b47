"""File locks (flock).

A lock ends with its descriptor, even if the process is killed, so a leftover file never blocks anything. Each
acquisition opens the file again, so that the lock excludes other threads as well as other processes.

The engine, daemon or server of a home, and the JVM that owns its lake, hold a lock in the home for their whole
lifetime, and the lock moves with the folder. So a process that was started before the home was moved can be detected at
the new path (`find_running`). Such a process notices the move and exits; `wait_until_stopped` waits for that. The
current process is not counted, because an engine that has just acquired the lake may change it.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hypaware.errors import NotReady
from hypaware.home import Home, durable_files

PROCESSES = Path("/proc")
WAIT_SECONDS = 20.0
_POLL_SECONDS = 0.05


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

    The file contains the pid of the holder, for messages, until the lock is released. Without `with_pid`, the file is
    emptied, and the descriptor can be passed to a child, which calls `write_pid`.
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


def signal_holder(path: Path, pid: int, number: signal.Signals) -> bool:
    """Signal the holder of a lock, but never another process that reuses its pid.

    A killed holder leaves its pid in the lock file, and the system may reuse that pid by the time the next holder has
    taken the lock. Return False if the process has not opened the lock file. A process that has ended is not an error.
    """
    with suppress(ProcessLookupError), _pinned_process(pid) as deliver:
        if not has_open(pid, path):
            return False
        deliver(number)
    return True


@contextmanager
def _pinned_process(pid: int) -> Iterator[Callable[[signal.Signals], None]]:
    """Yield a function that signals this very process, safe against pid reuse where the system supports pidfds."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):
        yield lambda number: os.kill(pid, number)
        return
    try:
        yield lambda number: signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


def has_open(pid: int, path: Path) -> bool:
    """Return whether the process has the file open, as a holder has its lock file. True on systems without /proc."""
    if not (PROCESSES / "self" / "fd").is_dir():
        return True
    with suppress(OSError):
        expected = path.stat()
        for each in (PROCESSES / str(pid) / "fd").iterdir():
            with suppress(OSError):
                if os.path.samestat(each.stat(), expected):
                    return True
    return False


def is_locked(path: Path, *, by_jvm: bool = False) -> bool:
    """Return whether the lock is held. Creates no file. A concurrent `try_lock` may fail while this check runs.

    A JVM takes a POSIX lock, which `flock` does not see.
    """
    try:
        fd = os.open(path, (os.O_RDWR if by_jvm else os.O_RDONLY) | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        if by_jvm:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    finally:
        os.close(fd)
    return False


def is_file_at(path: Path, fd: int) -> bool:
    """Return whether the locked file is still the one at the path, and was not removed or replaced."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def _write(fd: int, text: bytes) -> None:
    """Replace the content of the lock file if possible: the lock also holds on a full disk, without a pid."""
    with suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, text, 0)


@dataclass(frozen=True)
class HomeProcess:
    name: str
    pid: int | None
    stop: str
    """The command that stops it."""


def wait_until_stopped(home: Home) -> None:
    """Wait until no other process is running in the home. Raise NotReady, with the stop command, if one remains."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (found := find_running(home)) is not None:
        if time.monotonic() >= deadline:
            process = f" (process {found.pid})" if found.pid else ""
            raise NotReady(
                f"the home {home.root} was moved while {found.name}{process} is still running in it; "
                "nothing was read or written",
                kind="home_in_use",
                repair=found.stop,
            )
        time.sleep(_POLL_SECONDS)


def find_running(home: Home) -> HomeProcess | None:
    """Return a process other than this one that is running in the home, or None."""
    for lock_name, name, stop in (
        ("daemon.lock", "its daemon", "hyp daemon stop"),
        ("server.lock", "its server", "kill {pid}"),
        ("engine.lock", "its engine", "hyp engine stop"),
    ):
        path = home.run / lock_name
        if is_locked(path) and (pid := lock_holder(path)) != os.getpid():
            return HomeProcess(name, pid, stop.format(pid=pid))
    if is_locked(home.lake_lock, by_jvm=True):
        pid = None
        with suppress(OSError, ValueError, KeyError, TypeError):
            pid = int(json.loads(home.lake_owner.read_bytes())["pid"])
        if pid != os.getpid():
            return HomeProcess("a Spark process", pid, "hyp engine stop")
    return None
