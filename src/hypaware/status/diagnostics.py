"""What the parts of `hyp status` and `hyp doctor` share: their input, diagnostics, check results and a timeout.

A diagnostic is a message about the home with a severity and the commands that help. An `error` means that rows are not
recorded, stored or delivered; a `warning` that this may happen, or that the user has to act; an `info` explains a
normal state. A check of `hyp doctor` is `ok`, a `warning` (it works, but not as it should) or `failed`. `repair` holds
complete commands.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from hypaware.config import Config
from hypaware.home import Home
from hypaware.state.snapshot import StateSnapshot

TIMEOUT_SECONDS = 1.5
"""How long one part of a status waits for another process."""

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
T = TypeVar("T")


@dataclass(frozen=True)
class StatusInput:
    """The input of every part of a status, read once so that the parts cannot contradict each other."""

    home: Home
    config: Config
    """The defaults if the file is invalid."""
    state: StateSnapshot
    daemon: Mapping[str, Any]
    """`{"state": "stopped"}`, or `running` with the contents of the daemon's status file."""
    now: datetime
    environment: Mapping[str, str]
    cache: Path

    @property
    def is_daemon_running(self) -> bool:
        return self.daemon.get("state") == "running"

    def daemon_part(self, part: str) -> dict[str, Any]:
        """Return one part of the daemon's status file, or an empty dict if it is missing or malformed."""
        value = self.daemon.get(part)
        return value if isinstance(value, dict) else {}


@dataclass(frozen=True)
class Diagnostic:
    severity: Severity
    kind: str
    message: str
    repair: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "repair": list(self.repair)}


def error(kind: str, message: str, *repair: str) -> Diagnostic:
    return Diagnostic("error", kind, message, repair)


def warning(kind: str, message: str, *repair: str) -> Diagnostic:
    return Diagnostic("warning", kind, message, repair)


def info(kind: str, message: str, *repair: str) -> Diagnostic:
    return Diagnostic("info", kind, message, repair)


@dataclass(frozen=True)
class PartStatus(Generic[T]):
    """The facts and diagnostics of one part of a status."""

    facts: T
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True)
class CheckResult:
    name: str
    status: Literal["ok", "warning", "failed"]
    detail: str
    repair: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "repair": list(self.repair)}


def check_ok(name: str, detail: str) -> CheckResult:
    return CheckResult(name, "ok", detail)


def check_warning(name: str, detail: str, *repair: str) -> CheckResult:
    return CheckResult(name, "warning", detail, repair)


def check_failed(name: str, detail: str, *repair: str) -> CheckResult:
    return CheckResult(name, "failed", detail, repair)


def file_size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def call_with_timeout(call: Callable[[], T], seconds: float | None = None) -> T:
    """Return the call's result or raise its exception. Raise TimeoutError if it takes longer; its thread continues."""
    seconds = TIMEOUT_SECONDS if seconds is None else seconds
    outcomes: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcomes.put((call(), None))
        except BaseException as exception:
            outcomes.put((None, exception))

    threading.Thread(target=run, name="timeout", daemon=True).start()
    try:
        result, exception = outcomes.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if exception is not None:
        raise exception
    return result  # type: ignore[return-value]
