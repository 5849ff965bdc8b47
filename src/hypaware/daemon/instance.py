"""One daemon per home: whoever holds the lock on `run/daemon.lock` is it. Seen, and stopped, by others."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hypaware import lock_file
from hypaware.errors import NotReady, Retryable
from hypaware.home import Home

# Somebody who only looks whether a daemon runs has the lock for a moment.
_TAKE_SECONDS = 2.0
STOP_SECONDS = 30.0
_POLL_SECONDS = 0.02


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
    return lock_file.holder(path) if lock_file.is_taken(path) else None


def stop(home: Home, wait: float = STOP_SECONDS) -> bool:
    """Asks it to end and waits until it has. False when there was none."""
    pid = running(home)
    if pid is None:
        return False
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + wait
    while running(home) == pid:
        if time.monotonic() > deadline:
            raise Retryable(
                f"the daemon, process {pid}, has not ended within {wait:.0f} s",
                kind="daemon_not_ending",
                repair=f"kill -KILL {pid}",
            )
        time.sleep(_POLL_SECONDS)
    return True
