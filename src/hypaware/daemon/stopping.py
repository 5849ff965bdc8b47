"""Stops the daemon of a home, in peace: it is asked, and waited for while it brings to an end what it must.

Through its supervisor where that has started it, which would otherwise start it again. Killed only if the user says so.
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
_TELL_SECONDS = 5.0


def stop(home: Home, wait: float = STOP_SECONDS, *, force: bool = False, tell: Tell = unheard) -> bool:
    """False when there was none. Raises Retryable where it has not ended in time, with what it is still at."""
    pid, theirs = instance.running(home), None
    if (through := supervisor.in_charge(home, tell)) is not None:
        theirs = through.pid()
        through.stop()  # also where it only tries again and again
    if (pid := pid or theirs) is None:
        return False
    if pid != theirs:
        instance.send(home, pid, signal.SIGTERM)

    def lives() -> bool:
        return instance.running(home) == pid or (through is not None and theirs is not None and through.pid() == theirs)

    if _ends(home, pid, lives, wait, tell):
        return True
    if not force:
        raise Retryable(
            f"the daemon, process {pid}, was asked to end and has not within {wait:.0f} s{_busy(home)}",
            kind="daemon_not_ending",
            repair=["hyp daemon stop --timeout 600", "hyp daemon stop --force"],
        )
    tell(f"the daemon, process {pid}, is killed{_busy(home)}")
    instance.send(home, pid, signal.SIGKILL)
    if not _ends(home, pid, lives, _KILLED_SECONDS, unheard):
        raise Retryable(f"the daemon, process {pid}, does not even end when it is killed", kind="daemon_not_ending")
    return True


def _ends(home: Home, pid: int, lives: Callable[[], bool], wait: float, tell: Tell) -> bool:
    began = time.monotonic()
    told = began + 1.0
    while lives():
        now = time.monotonic()
        if now - began > wait:
            return False
        if now > told:
            tell(f"waiting for the daemon, process {pid}, to end{_busy(home)}")
            told = now + _TELL_SECONDS
        time.sleep(_POLL_SECONDS)
    return True


def _busy(home: Home) -> str:
    """What is still going on, as far as others can see it."""
    try:
        jobs = client.status(home).get("jobs", ())
    except (HypError, OSError):
        return ""
    names = ", ".join(str(job["job"]) for job in jobs)
    return f"; the engine is at work: {names}" if names else ""
