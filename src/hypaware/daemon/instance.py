"""The running daemon of a home, as other processes see it: the process that holds the lock on `run/daemon.lock`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hypaware import lock_file
from hypaware.errors import NotReady
from hypaware.home import Home

# A process that only checks whether a daemon runs holds the lock for a moment.
_TAKE_SECONDS = 2.0
_POLL_SECONDS = 0.02
_PROCESSES = Path("/proc")


def lock_path(home: Home) -> Path:
    return home.run / "daemon.lock"


@contextmanager
def only_one(home: Home) -> Iterator[Callable[[], bool]]:
    """Hold the daemon's lock. Raise NotReady, with the other daemon's pid, if one is already running.

    Yields a function that returns whether the lock is still at its path: it is not after the home was removed or
    replaced.
    """
    path = lock_path(home)
    deadline = time.monotonic() + _TAKE_SECONDS
    while (lock := lock_file.take(path)) is None:
        if time.monotonic() > deadline:
            raise NotReady(
                f"a daemon of {home.root} is already running (process {lock_file.holder(path)})",
                kind="daemon_running",
                repair="hyp daemon stop",
            )
        time.sleep(_POLL_SECONDS)
    try:
        yield lambda: lock_file.is_at(path, lock)
    finally:
        lock_file.release(lock)


def running(home: Home) -> int | None:
    """Return the pid of the home's daemon, or None if none is running."""
    path = lock_path(home)
    if not lock_file.is_taken(path):
        return None
    # A daemon that started on a full disk could not write its pid into the lock file.
    return lock_file.holder(path) or next((pid for pid in _processes() if _has_open(pid, path)), None)


def send(home: Home, pid: int, number: signal.Signals) -> None:
    """Signal the daemon, but never another process that reuses its pid. A daemon that has ended is not an error.

    A killed daemon leaves its pid in the lock file; the system may reuse that pid by the time the next daemon has
    taken the lock. Raises NotReady if the process with this pid does not hold the lock: the daemon then runs in another
    container.
    """
    with suppress(ProcessLookupError), _pinned_process(pid) as deliver:
        if _has_open(pid, lock_path(home)):
            deliver(number)
        elif running(home) == pid:
            raise NotReady(
                f"the daemon of {home.root} reports process id {pid}, which belongs to another process here: it runs "
                "in another container or on another machine; stop it there",
                kind="daemon_elsewhere",
            )


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


def _processes() -> list[int]:
    """Return the pids of all other processes; empty on systems without /proc."""
    try:
        return [
            int(each.name) for each in _PROCESSES.iterdir() if each.name.isdecimal() and int(each.name) != os.getpid()
        ]
    except OSError:
        return []


def _has_open(pid: int, path: Path) -> bool:
    """Return whether the process has the file open, as a daemon has its lock file. True on systems without /proc."""
    files = _PROCESSES / str(pid) / "fd"
    if not (_PROCESSES / "self" / "fd").is_dir():
        return True
    with suppress(OSError):
        expected = path.stat()
        for each in files.iterdir():
            with suppress(OSError):
                if os.path.samestat(each.stat(), expected):
                    return True
    return False
