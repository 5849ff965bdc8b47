"""Starts the daemon of a home in the background, and waits until it is ready.

Ready is a daemon that holds the home's lock and has written how it is (`run/daemon.json`). Two starts at once are one
after the other, by the lock on `run/daemon-start.lock`: the second finds the daemon of the first.
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hypaware import config as configuration
from hypaware import lock_file
from hypaware.daemon import condition, detached, instance, log_files, supervisor
from hypaware.daemon.detached import Detached
from hypaware.daemon.supervisor import Supervisor, Tell, unheard
from hypaware.errors import NotReady
from hypaware.home import Home
from hypaware.opening import identify

READY_SECONDS = 15.0
# Where nothing else is to be done: a machine may be busy, and a home that was moved takes its time.
PATIENT_SECONDS = 60.0
_POLL_SECONDS = 0.02
_ASK_SECONDS = 0.5
_LEAST_ROOM = 64 << 10


def start(home: Home, wait: float = READY_SECONDS, tell: Tell = unheard) -> int:
    """The pid of the home's daemon, which is ready. Raises NotReady where it dies first, or is not ready in time.

    What would end it at once, a broken config or a home that cannot be used, is raised as what it is. `tell` hears what
    the user should know of the way that was taken.
    """
    deadline = time.monotonic() + wait
    check(home)
    with _one_at_a_time(home, deadline):
        if (pid := ready(home)) is not None:
            return pid
        if instance.running(home) is not None:
            return _until_ready(home, deadline)
        if (through := supervisor.in_charge(home, tell)) is not None:
            return _supervised(home, through, deadline)
        return _detached(home, deadline)


def check(home: Home) -> None:
    """Raises what would keep a daemon from starting, as far as it can be known before."""
    identify(home)
    configuration.load(home)
    if shutil.disk_usage(home.root).free < _LEAST_ROOM:
        # It could not even write down why it ends.
        raise NotReady(f"there is no room left on the disk of {home.root}", kind="disk_full", repair="hyp status")


def ready(home: Home) -> int | None:
    """The pid of a daemon that is up."""
    pid = instance.running(home)
    return pid if pid is not None and condition.read(home).get("pid") == pid else None


def _detached(home: Home, deadline: float) -> int:
    process = Detached(home)
    while (pid := ready(home)) is None:
        if (end := process.end()) is not None:
            if instance.running(home) is not None:
                return _until_ready(home, deadline)  # somebody ran one by hand in this moment
            raise _failed(home, f"{end}\n{process.last_words() or log_files.last_lines(home)}", _look(home))
        _pause(home, deadline)
    return pid


def _supervised(home: Home, through: Supervisor, deadline: float) -> int:
    through.start()
    asked = time.monotonic()
    while (pid := ready(home)) is None:
        if time.monotonic() - asked > _ASK_SECONDS:
            if (trouble := through.trouble()) is not None:
                raise _failed(home, trouble, through.look)
            asked = time.monotonic()
        _pause(home, deadline)
    return pid


def _failed(home: Home, what: str, look: str) -> NotReady:
    return NotReady(f"the daemon of {home.root} ended while starting: {what}", kind="daemon_failed", repair=look)


def _until_ready(home: Home, deadline: float) -> int:
    while (pid := ready(home)) is None:
        _pause(home, deadline)
    return pid


def _pause(home: Home, deadline: float) -> None:
    if time.monotonic() > deadline:
        raise NotReady(
            f"the daemon of {home.root} is still starting, and not ready yet",
            kind="daemon_not_ready",
            repair=["hyp daemon status", _look(home)],
        )
    time.sleep(_POLL_SECONDS)


def _look(home: Home) -> str:
    """The command that shows more."""
    return shlex.join(["tail", "-n", "50", str(detached.start_log(home)), str(log_files.log_file(home))])


@contextmanager
def _one_at_a_time(home: Home, deadline: float) -> Iterator[None]:
    path = home.run / "daemon-start.lock"
    while (lock := lock_file.take(path)) is None:
        _pause(home, deadline)
    try:
        yield
    finally:
        lock_file.release(lock)
