"""Crash points: named places, before and after each durable step, where a test kills the process.

`HYP_CRASH_AT=<point>[:n]` makes the process that reaches the point for the n-th time send itself SIGKILL. It kills
its JVM first, so that the JVM cannot commit afterwards. A job carries the setting of the command that requested it,
even into an engine that is already running: `armed()` applies it for the duration of that job.

Commands and the engine reject an unknown name (`crash_points.check`). Any other program prints a warning when it first
reaches a crash point.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from hypaware.errors import UsageError


@dataclass(frozen=True)
class CrashPoint:
    name: str
    about: str

    @property
    def package(self) -> str:
        return self.name.split(".", 1)[0]


_points: dict[str, CrashPoint] = {}
_child_pids: list[int] = []
_lock = threading.Lock()


@dataclass
class _Armed:
    point: str
    left: int


_job: ContextVar[_Armed | None] = ContextVar("armed", default=None)


def point(name: str, about: str) -> Callable[[], None]:
    """Declare a crash point, at import time, and return the function to call where the process may be killed."""
    if name in _points:
        raise ValueError(f"crash point {name} is declared twice")
    _points[name] = CrashPoint(name, about)

    def reach() -> None:
        _reach(name)

    return reach


def declared() -> list[CrashPoint]:
    return sorted(_points.values(), key=lambda declared_point: declared_point.name)


def is_declared(name: str) -> bool:
    return name in _points


def kill_with_us(pid: int) -> None:
    """Register a child process, such as the JVM, to be killed first at a crash point."""
    with _lock:
        _child_pids.append(pid)


def spare(pid: int) -> None:
    """Unregister a child process that has ended, because its pid may already belong to another process."""
    with _lock:
        if pid in _child_pids:
            _child_pids.remove(pid)


def parse(spec: str) -> tuple[str, int]:
    name, _, count = spec.partition(":")
    if count and not (count.isdecimal() and int(count) >= 1):
        raise UsageError(f"HYP_CRASH_AT={spec}: the part after ':' must be an integer of at least 1")
    return name, int(count or 1)


@contextmanager
def armed(spec: str | None) -> Iterator[None]:
    """Arm a crash point for one job of an engine: for this thread, and for code that runs in its context."""
    token = _job.set(_Armed(*parse(spec)) if spec else None)
    try:
        yield
    finally:
        _job.reset(token)


def _from_environment() -> _Armed | None:
    spec = os.environ.get("HYP_CRASH_AT")
    return _Armed(*parse(spec)) if spec else None


_process = _from_environment()
_unchecked = _process is not None


def _reach(name: str) -> None:
    if _unchecked:
        _warn_if_unknown()
    for setting in (_job.get(), _process):
        if setting is None or setting.point != name:
            continue
        with _lock:
            setting.left -= 1
            if setting.left == 0:
                for pid in _child_pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)


def _warn_if_unknown() -> None:
    global _unchecked
    from hypaware import crash_points

    _unchecked = False
    try:
        if _process is not None:
            crash_points.check(_process.point)
    except UsageError as error:
        sys.stderr.write(f"warning: {error.message}\n")
