"""One daemon per home: whoever holds the lock on `run/daemon.lock` is it. Seen, and signalled, by others."""

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

# Somebody who only looks whether a daemon runs has the lock for a moment.
_TAKE_SECONDS = 2.0
_POLL_SECONDS = 0.02
_PROCESSES = Path("/proc")


def lock_path(home: Home) -> Path:
    return home.run / "daemon.lock"


@contextmanager
def only_one(home: Home) -> Iterator[Callable[[], bool]]:
    """Raises NotReady, with the pid of the other, where a daemon of this home runs already.

    Gives a function that tells whether the home is still ours: not after it was removed, or replaced by another.
    """
    path = lock_path(home)
    deadline = time.monotonic() + _TAKE_SECONDS
    while (lock := lock_file.take(path)) is None:
        if time.monotonic() > deadline:
            raise NotReady(
                f"a daemon of {home.root} runs already, as process {lock_file.holder(path)}",
                kind="daemon_running",
                repair="hyp daemon stop",
            )
        time.sleep(_POLL_SECONDS)
    try:
        yield lambda: lock_file.is_at(path, lock)
    finally:
        lock_file.release(lock)


def running(home: Home) -> int | None:
    """The pid of the home's daemon; None when there is none."""
    path = lock_path(home)
    if not lock_file.is_taken(path):
        return None
    # One that began on a full disk could not write its pid down.
    return lock_file.holder(path) or next((pid for pid in _processes() if _has_open(pid, path)), None)


def send(home: Home, pid: int, number: signal.Signals) -> None:
    """Signals the daemon, and nobody who has its number by now: a killed one leaves its pid behind, which another
    process may have when the next daemon has just taken the lock. One that has ended meanwhile is no error.

    Raises NotReady where the process with this number is not the one that has the lock: it runs in another container.
    """
    with suppress(ProcessLookupError), _held(pid) as deliver:
        if _has_open(pid, lock_path(home)):
            deliver(number)
        elif running(home) == pid:
            raise NotReady(
                f"the daemon of {home.root} calls itself process {pid}, which is another one here: it runs in another "
                "container, or on another machine, and must be stopped there",
                kind="daemon_elsewhere",
            )


@contextmanager
def _held(pid: int) -> Iterator[Callable[[signal.Signals], None]]:
    """A way to signal this process and none that comes after it under its number, where the system has one."""
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
    """All others; nobody where that cannot be seen."""
    try:
        return [
            int(each.name) for each in _PROCESSES.iterdir() if each.name.isdecimal() and int(each.name) != os.getpid()
        ]
    except OSError:
        return []


def _has_open(pid: int, path: Path) -> bool:
    """Whether the process has the file open, as its daemon does for life; taken as given where that cannot be seen."""
    files = _PROCESSES / str(pid) / "fd"
    if not (_PROCESSES / "self" / "fd").is_dir():
        return True
    with suppress(OSError):
        wanted = path.stat()
        for each in files.iterdir():
            with suppress(OSError):
                if os.path.samestat(each.stat(), wanted):
                    return True
    return False
