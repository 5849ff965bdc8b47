"""Start a home's daemon in the background, and wait until it is ready.

A daemon is ready when it holds its lock and has written its status file (`run/daemon.json`). The lock on
`run/daemon-start.lock` serialises concurrent starts: the second one finds the daemon of the first.
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
# For an installation: the machine may be busy, and a moved home takes longer to open.
PATIENT_SECONDS = 60.0
_POLL_SECONDS = 0.02
_SUPERVISOR_SECONDS = 0.5
_MIN_FREE_BYTES = 64 << 10


def start(home: Home, wait: float = READY_SECONDS, notify: Tell = unheard) -> int:
    """Start the daemon if necessary, and return its pid once it is ready.

    Raises NotReady if the daemon ends first or is not ready in time. A broken config or an unusable home raises its own
    error before anything is started. `notify` receives messages for the user.
    """
    deadline = time.monotonic() + wait
    check(home)
    with _one_at_a_time(home, deadline):
        if (pid := ready(home)) is not None:
            return pid
        if instance.running(home) is not None:
            return _until_ready(home, deadline)
        if (service := supervisor.in_charge(home, notify)) is not None:
            return _start_supervised(home, service, deadline)
        return _start_detached(home, deadline)


def check(home: Home) -> None:
    """Raise the errors that would keep a daemon from starting, as far as they can be detected beforehand."""
    identify(home)
    configuration.load(home)
    if shutil.disk_usage(home.root).free < _MIN_FREE_BYTES:
        # The daemon could not even log why it ends.
        raise NotReady(f"the disk of {home.root} is full", kind="disk_full", repair="hyp status")


def ready(home: Home) -> int | None:
    """Return the pid of a daemon that is ready, or None."""
    pid = instance.running(home)
    return pid if pid is not None and condition.read(home).get("pid") == pid else None


def _start_detached(home: Home, deadline: float) -> int:
    process = Detached(home)
    while (pid := ready(home)) is None:
        if (reason := process.exit_reason()) is not None:
            if instance.running(home) is not None:
                return _until_ready(home, deadline)  # a daemon was started by hand at the same moment
            raise _failed(home, f"{reason}\n{process.output() or log_files.last_lines(home)}", _log_command(home))
        _pause(home, deadline)
    return pid


def _start_supervised(home: Home, service: Supervisor, deadline: float) -> int:
    service.start()
    checked_at = time.monotonic()
    while (pid := ready(home)) is None:
        if time.monotonic() - checked_at > _SUPERVISOR_SECONDS:
            if (failure := service.failure()) is not None:
                raise _failed(home, failure, service.log_command)
            checked_at = time.monotonic()
        _pause(home, deadline)
    return pid


def _failed(home: Home, reason: str, log_command: str) -> NotReady:
    return NotReady(
        f"the daemon of {home.root} ended while starting: {reason}", kind="daemon_failed", repair=log_command
    )


def _until_ready(home: Home, deadline: float) -> int:
    while (pid := ready(home)) is None:
        _pause(home, deadline)
    return pid


def _pause(home: Home, deadline: float) -> None:
    if time.monotonic() > deadline:
        raise NotReady(
            f"the daemon of {home.root} is starting but not ready yet",
            kind="daemon_not_ready",
            repair=["hyp daemon status", _log_command(home)],
        )
    time.sleep(_POLL_SECONDS)


def _log_command(home: Home) -> str:
    """Return the command that shows the daemon's logs."""
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
