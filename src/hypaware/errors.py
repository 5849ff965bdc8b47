"""Every error that a user can meet.

`kind` is the stable snake_case name in JSON, the message says what happened to which thing, `repair` is the
command that mends it. `Retryable` marks trouble of the surroundings (a full disk, a lock, a dead engine):
the same call may succeed later. Everything else is terminal for the input that caused it.
"""

from __future__ import annotations

from collections.abc import Sequence


class HypError(Exception):
    """It failed: exit code 1."""

    exit_code = 1
    kind = "failed"

    def __init__(self, message: str, *, kind: str | None = None, repair: str | Sequence[str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        if kind is not None:
            self.kind = kind
        self.repair: tuple[str, ...] = (repair,) if isinstance(repair, str) else tuple(repair or ())

    def as_json(self) -> dict[str, object]:
        body: dict[str, object] = {"kind": self.kind, "message": self.message}
        if self.repair:
            body["repair"] = list(self.repair)
        return body


class UsageError(HypError):
    """The call was wrong: exit code 2."""

    exit_code = 2
    kind = "usage"


class NotReady(HypError):
    """Something needed is not running or not installed: exit code 3, with the command that fixes it."""

    exit_code = 3
    kind = "not_ready"


class Cancelled(HypError):
    """The user stopped it: exit code 130."""

    exit_code = 130
    kind = "cancelled"

    def __init__(self, message: str = "cancelled") -> None:
        super().__init__(message)


class Retryable(HypError):
    """The surroundings failed, not the data: nothing was lost, the same call may succeed later."""

    kind = "retryable"


class ConfigError(HypError):
    kind = "config"


class StateError(HypError):
    kind = "state"


class LakeError(HypError):
    kind = "lake"


class QueryRefused(HypError):
    """The SQL is not one read-only SELECT over the datasets."""

    kind = "query_refused"
