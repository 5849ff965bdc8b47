"""Stop a home's daemon: ask it to end, and wait while it finishes its work.

A daemon that a supervisor started is stopped through the supervisor, which would otherwise restart it. It is killed
only if the user passes `--force`.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from hypaware.daemon import instance, supervisor
from hypaware.daemon.supervisor import Tell, unheard
from hypaware.engine import client
from hypaware.errors import HypError, Retryable
from hypaware.home import Home

STOP_SECONDS = 60.0
_KILLED_SECONDS = 10.0
_POLL_SECONDS = 0.02
_NOTIFY_SECONDS = 5.0


def stop(home: Home, wait: float = STOP_SECONDS, *, force: bool = False, notify: Tell = unheard) -> bool:
    """Stop the daemon. Return False if none was running. Raise Retryable if it does not end in time."""
    pid, supervised = instance.running(home), None
    if (service := supervisor.in_charge(home, notify)) is not None:
        supervised = service.pid()
        service.stop()  # even if no daemon runs: the supervisor may be restarting one that fails
    if (pid := pid or supervised) is None:
        return False
    if pid != supervised:
        instance.send(home, pid, signal.SIGTERM)

    def is_alive() -> bool:
        return instance.running(home) == pid or (
            service is not None and supervised is not None and service.pid() == supervised
        )

    if _wait_until_ended(home, pid, is_alive, wait, notify):
        return True
    if not force:
        raise Retryable(
            f"the daemon (process {pid}) did not end within {wait:.0f} s{_busy(home)}",
            kind="daemon_not_ending",
            repair=["hyp daemon stop --timeout 600", "hyp daemon stop --force"],
        )
    notify(f"killing the daemon (process {pid}){_busy(home)}")
    instance.send(home, pid, signal.SIGKILL)
    if not _wait_until_ended(home, pid, is_alive, _KILLED_SECONDS, unheard):
        raise Retryable(f"the daemon (process {pid}) did not end although it was killed", kind="daemon_not_ending")
    return True


def _wait_until_ended(home: Home, pid: int, is_alive: Callable[[], bool], wait: float, notify: Tell) -> bool:
    started_at = time.monotonic()
    notify_at = started_at + 1.0
    while is_alive():
        now = time.monotonic()
        if now - started_at > wait:
            return False
        if now > notify_at:
            notify(f"waiting for the daemon (process {pid}) to end{_busy(home)}")
            notify_at = now + _NOTIFY_SECONDS
        time.sleep(_POLL_SECONDS)
    return True


def _busy(home: Home) -> str:
    """Return the engine's running jobs as a suffix for a message."""
    try:
        jobs = client.status(home).get("jobs", ())
    except (HypError, OSError):
        return ""
    names = ", ".join(str(job["job"]) for job in jobs)
    return f"; the engine is running {names}" if names else ""
