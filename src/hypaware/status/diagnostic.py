"""Diagnostics: a message about the home, with a severity and the commands that help.

An `error` means that rows are not recorded, stored or delivered; a `warning` that this may happen, or that the user has
to act; an `info` explains a normal state. `repair` holds complete commands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
_LONGEST_REASON = 300

T = TypeVar("T")


@dataclass(frozen=True)
class Diagnostic:
    severity: Severity
    kind: str
    message: str
    repair: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "severity": self.severity,
            "kind": self.kind,
            "message": self.message,
            "repair": list(self.repair),
        }


@dataclass(frozen=True)
class Found(Generic[T]):
    """The facts and diagnostics of one part of the snapshot."""

    facts: T
    diagnostics: tuple[Diagnostic, ...] = ()


def error(kind: str, message: str, *repair: str) -> Diagnostic:
    return Diagnostic("error", kind, message, repair)


def warning(kind: str, message: str, *repair: str) -> Diagnostic:
    return Diagnostic("warning", kind, message, repair)


def info(kind: str, message: str, *repair: str) -> Diagnostic:
    return Diagnostic("info", kind, message, repair)


def reason_of(exception: BaseException) -> str:
    """Return the exception's message in one line, shortened: it may quote a file's contents."""
    text = getattr(exception, "message", None) or str(exception) or type(exception).__name__
    first = str(text).strip().partition("\n")[0]
    return first if len(first) <= _LONGEST_REASON else f"{first[:_LONGEST_REASON]}…"
