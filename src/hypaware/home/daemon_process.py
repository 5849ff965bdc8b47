"""The running daemon of a home, as other processes see it: the process that holds the lock on `run/daemon.lock`.

Its status file is `run/daemon.json`, see `daemon.status_file`.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hypaware.errors import NotReady
from hypaware.home import Home, locks

# A process that only checks whether a daemon runs holds the lock for a moment.
_LOCK_SECONDS = 2.0
_POLL_SECONDS = 0.02


def daemon_lock_path(home: Home) -> Path:
    return home.run / "daemon.lock"


@contextmanager
def hold_daemon_lock(home: Home) -> Iterator[Callable[[], bool]]:
    """Hold the daemon's lock. Raise NotReady, with the other daemon's pid, if one is already running.

    Yields a function that returns whether the lock is still at its path: it is not after the home was removed or
    replaced.
    """
    path = daemon_lock_path(home)
    deadline = time.monotonic() + _LOCK_SECONDS
    while (lock := locks.try_lock(path)) is None:
        if time.monotonic() > deadline:
            raise NotReady(
                f"a daemon of {home.root} is already running (process {locks.lock_holder(path)})",
                kind="daemon_running",
                repair="hyp daemon stop",
            )
        time.sleep(_POLL_SECONDS)
    try:
        yield lambda: locks.is_file_at(path, lock)
    finally:
        locks.unlock(lock)


def running_daemon(home: Home) -> int | None:
    """Return the pid of the home's daemon, or None if none is running."""
    path = daemon_lock_path(home)
    if not locks.is_locked(path):
        return None
    if pid := locks.lock_holder(path):
        return pid
    # A daemon that started on a full disk could not write its pid into the lock file.
    with suppress(OSError):  # the system has no /proc
        for each in locks.PROCESSES.iterdir():
            if each.name.isdecimal() and int(each.name) != os.getpid() and locks.has_open(int(each.name), path):
                return int(each.name)
    return None


def daemon_status_path(home: Home) -> Path:
    return home.run / "daemon.json"


def read_daemon_status(home: Home) -> dict[str, Any]:
    """Return the contents of the status file, or an empty dict if the daemon has not written it yet."""
    try:
        found = json.loads(daemon_status_path(home).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def signal_daemon(home: Home, pid: int, number: signal.Signals) -> None:
    """Signal the daemon, but never another process that reuses its pid. A daemon that has ended is not an error.

    Raises NotReady if the process with this pid does not hold the lock: the daemon then runs in another container.
    """
    if not locks.signal_holder(daemon_lock_path(home), pid, number) and running_daemon(home) == pid:
        raise NotReady(
            f"the daemon of {home.root} reports process id {pid}, which belongs to another process here: it runs "
            "in another container or on another machine; stop it there",
            kind="daemon_elsewhere",
        )
