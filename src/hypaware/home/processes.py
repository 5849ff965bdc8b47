"""The processes that are running in a home: its engine, daemon or server, and the JVM that owns its lake.

Each of them holds a lock in the home for its whole lifetime, and the lock moves with the folder. So a process that was
started before the home was moved can be detected at the new path. Such a process notices the move and exits;
`wait_until_gone` waits for that. The current process is not counted, because an engine that has just acquired the lake
may change it.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from hypaware.errors import NotReady
from hypaware.home import Home, locks

WAIT_SECONDS = 20.0
_POLL_SECONDS = 0.05


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
        if locks.is_locked(path) and (pid := locks.lock_holder(path)) != os.getpid():
            return HomeProcess(name, pid, stop.format(pid=pid))
    if _is_lake_locked(home.lake_lock) and (pid := _lake_owner_pid(home)) != os.getpid():
        return HomeProcess("a Spark process", pid, "hyp engine stop")
    return None


def _lake_owner_pid(home: Home) -> int | None:
    try:
        return int(json.loads(home.lake_owner.read_bytes())["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_lake_locked(path: Path) -> bool:
    """Report whether a JVM holds the lake's lock. It is a POSIX lock, which `flock` does not see."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    finally:
        os.close(fd)
    return False
