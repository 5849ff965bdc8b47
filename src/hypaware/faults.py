"""Crash points: named places, before and after each durable step, where a test kills the process.

`HYP_CRASH_AT=<point>[:n]` makes the process that reaches the point for the n-th time send itself SIGKILL. It kills
its JVM first, so that the JVM cannot commit afterwards. A job carries the setting of the command that requested it,
even into an engine that is already running: `arm` applies it for the duration of that job.

A module declares its crash points with `crash_point`. Their names are read from the source text, without importing
anything. Commands and the engine reject an unknown name (`check_spec`). Any other program prints a warning when it
first reaches a crash point.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hypaware.errors import UsageError

_DECLARED = re.compile(rb'\bfaults\.crash_point\(\s*"([^"]+)"')


@dataclass(frozen=True)
class CrashPoint:
    name: str
    about: str

    @property
    def package(self) -> str:
        return self.name.split(".", 1)[0]


@dataclass
class _Armed:
    point: str
    left: int


_points: dict[str, CrashPoint] = {}
_child_pids: list[int] = []
_lock = threading.Lock()
_job_setting: ContextVar[_Armed | None] = ContextVar("armed", default=None)


def crash_point(name: str, about: str) -> Callable[[], None]:
    """Declare a crash point, at import time, and return the function to call where the process may be killed."""
    if name in _points:
        raise ValueError(f"crash point {name} is declared twice")
    _points[name] = CrashPoint(name, about)

    def reach() -> None:
        _reach(name)

    return reach


def declared_points() -> list[CrashPoint]:
    return sorted(_points.values(), key=lambda declared_point: declared_point.name)


def list_crash_points() -> list[CrashPoint]:
    for module in sorted(set(crash_point_modules().values())):
        importlib.import_module(module)
    return [point for point in declared_points() if point.name in crash_point_modules()]


@cache
def crash_point_modules() -> dict[str, str]:
    """Return the module of each crash point by name, read from the source text: importing them takes seconds."""
    root = Path(__file__).parent
    return {
        name.decode(): ".".join(("hypaware", *path.relative_to(root).with_suffix("").parts))
        for path in root.rglob("*.py")
        for name in _DECLARED.findall(path.read_bytes())
    }


def check_spec(spec: str) -> None:
    """Raise UsageError if a value of HYP_CRASH_AT names no crash point. Points declared in this process count too."""
    name, _ = parse_spec(spec)
    if name in crash_point_modules() or name in _points:
        return
    from hypaware.text import did_you_mean

    hint = did_you_mean(name, sorted(crash_point_modules()), or_all=False)
    raise UsageError(f"HYP_CRASH_AT={spec}: unknown crash point.{hint}", repair="hyp dev crash-points")


def parse_spec(spec: str) -> tuple[str, int]:
    name, _, count = spec.partition(":")
    if count and not (count.isdecimal() and int(count) >= 1):
        raise UsageError(f"HYP_CRASH_AT={spec}: the part after ':' must be an integer of at least 1")
    return name, int(count or 1)


@contextmanager
def arm(spec: str | None) -> Iterator[None]:
    """Arm a crash point for one job of an engine: for this thread, and for code that runs in its context."""
    token = _job_setting.set(_Armed(*parse_spec(spec)) if spec else None)
    try:
        yield
    finally:
        _job_setting.reset(token)


def also_kill(pid: int) -> None:
    """Register a child process, such as the JVM, to be killed first at a crash point."""
    with _lock:
        _child_pids.append(pid)


def forget_child(pid: int) -> None:
    """Unregister a child process that has ended, because its pid may already belong to another process."""
    with _lock:
        if pid in _child_pids:
            _child_pids.remove(pid)


def _reach(name: str) -> None:
    global _unchecked
    if _unchecked and _process_setting is not None:
        _unchecked = False
        try:
            check_spec(_process_setting.point)
        except UsageError as error:
            sys.stderr.write(f"warning: {error.message}\n")
    for setting in (_job_setting.get(), _process_setting):
        if setting is None or setting.point != name:
            continue
        with _lock:
            setting.left -= 1
            if setting.left == 0:
                for pid in _child_pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)


_spec = os.environ.get("HYP_CRASH_AT")
_process_setting = _Armed(*parse_spec(_spec)) if _spec else None
_unchecked = _process_setting is not None
