"""Crash points: named places, on both sides of each durable step, where a test kills the process for real.

`HYP_CRASH_AT=<point>[:n]` makes the process that reaches the point for the n-th time SIGKILL itself, and its
JVM first, so that nothing of it can still commit. A job carries the setting of the command that asked for it,
also into an engine that was already running: `armed()` holds it for the length of that job.

A name that no point has is refused by the commands and the engine (`crash_points.check`); any other program is warned
when it first gets to a point.
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
_doomed: list[int] = []
_lock = threading.Lock()


@dataclass
class _Armed:
    point: str
    left: int


_job: ContextVar[_Armed | None] = ContextVar("armed", default=None)


def point(name: str, about: str) -> Callable[[], None]:
    """Declares a crash point (at import) and returns the function that the code calls when it gets there."""
    if name in _points:
        raise ValueError(f"crash point {name} is declared twice")
    _points[name] = CrashPoint(name, about)

    def reach() -> None:
        _reach(name)

    return reach


def declared() -> list[CrashPoint]:
    return sorted(_points.values(), key=lambda found: found.name)


def is_declared(name: str) -> bool:
    return name in _points


def kill_with_us(pid: int) -> None:
    """The JVM of this process: it dies first at a crash point."""
    with _lock:
        _doomed.append(pid)


def spare(pid: int) -> None:
    """It ended before us; its number may already be somebody else's."""
    with _lock:
        if pid in _doomed:
            _doomed.remove(pid)


def parse(spec: str) -> tuple[str, int]:
    name, _, count = spec.partition(":")
    if count and not (count.isdecimal() and int(count) >= 1):
        raise UsageError(f"HYP_CRASH_AT={spec}: the part after ':' must be a whole number from 1")
    return name, int(count or 1)


@contextmanager
def armed(spec: str | None) -> Iterator[None]:
    """Within it, this job of an engine dies at the given point: this thread, and whatever it runs in its context."""
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
                for pid in _doomed:
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
