"""What a look has found: facts, and what to say of them.

A diagnostic is an `error` where rows are not recorded, kept or delivered; a `warning` where that is to be feared, or
waits for the user; an `info` where all is well and somebody may wonder. `repair` holds commands as they are typed.
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
    """What one part of the snapshot is."""

    facts: T
    diagnostics: tuple[Diagnostic, ...] = ()


def error(kind: str, message: str, *repair: str) -> Diagnostic:
    return Diagnostic("error", kind, message, repair)


def warning(kind: str, message: str, *repair: str) -> Diagnostic:
    return Diagnostic("warning", kind, message, repair)


def info(kind: str, message: str, *repair: str) -> Diagnostic:
    return Diagnostic("info", kind, message, repair)


def reason_of(trouble: BaseException) -> str:
    """In one line: what others wrote into a file may be long."""
    text = getattr(trouble, "message", None) or str(trouble) or type(trouble).__name__
    first = str(text).strip().partition("\n")[0]
    return first if len(first) <= _LONGEST_REASON else f"{first[:_LONGEST_REASON]}…"
