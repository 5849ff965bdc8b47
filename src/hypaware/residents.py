"""Who is still at work in a home: its engine, daemon or server, and the JVM that owns its lake.

Each holds a lock in the home for its whole life, and the lock goes with the folder. So one that was started before the
home was moved is seen from the new place. It notices the move by itself and ends; that is waited for, for a while. This
process itself does not count: an engine that has just taken the lake is the one who may change it.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from hypaware import lock_file
from hypaware.errors import NotReady
from hypaware.home import Home

PATIENCE_SECONDS = 20.0
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Resident:
    what: str
    pid: int | None
    stop: str
    """The command that ends it."""


def wait_until_gone(home: Home) -> None:
    """Raises NotReady, with the command that helps, where somebody stays."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (found := first(home)) is not None:
        if time.monotonic() >= deadline:
            named = f" (process {found.pid})" if found.pid else ""
            raise NotReady(
                f"the home {home.root} lies elsewhere than it did, and {found.what}{named} is still at work in it: "
                "nothing was read or written",
                kind="home_in_use",
                repair=found.stop,
            )
        time.sleep(_POLL_SECONDS)


def first(home: Home) -> Resident | None:
    """Somebody else than this process; None if there is nobody."""
    for name, what, stop in (
        ("daemon.lock", "its daemon", "hyp daemon stop"),
        ("server.lock", "its server", "kill {pid}"),
        ("engine.lock", "its engine", "hyp engine stop"),
    ):
        path = home.run / name
        if lock_file.is_taken(path) and (pid := lock_file.holder(path)) != os.getpid():
            return Resident(what, pid, stop.format(pid=pid))
    if _is_owned(home.lake_lock) and (pid := _owner(home)) != os.getpid():
        return Resident("a Spark process", pid, "hyp engine stop")
    return None


def _owner(home: Home) -> int | None:
    try:
        return int(json.loads(home.lake_owner.read_bytes())["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_owned(path: Path) -> bool:
    """Whether a JVM holds the lake's lock: a POSIX lock, which `flock` does not see. It is never this very process."""
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
