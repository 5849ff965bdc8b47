"""The errors that are reported to the user.

`kind` is the stable snake_case name in JSON, the message says what happened to which thing, and `repair` is the
command that fixes it. `Retryable` marks a problem of the environment (a full disk, a held lock, a dead engine):
the same call may succeed later. Every other error is permanent for the input that caused it.
"""

from __future__ import annotations

from collections.abc import Sequence


class HypError(Exception):
    """The command failed: exit code 1."""

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
    """The command line or the call was invalid: exit code 2."""

    exit_code = 2
    kind = "usage"


class NotReady(HypError):
    """A requirement is not running or not installed: exit code 3. `repair` holds the command that fixes it."""

    exit_code = 3
    kind = "not_ready"


class Cancelled(HypError):
    """The user interrupted the command: exit code 130."""

    exit_code = 130
    kind = "cancelled"

    def __init__(self, message: str = "cancelled") -> None:
        super().__init__(message)


class Retryable(HypError):
    """The environment failed, not the data. Nothing was lost, and the same call may succeed later."""

    kind = "retryable"


class ConfigError(HypError):
    kind = "config"


class StateError(HypError):
    kind = "state"


class StateCorrupt(StateError):
    """The state exists but is not an intact database."""

    kind = "state_corrupt"


class LakeError(HypError):
    kind = "lake"


class QueryRefused(HypError):
    """The SQL is not one read-only SELECT over the datasets."""

    kind = "query_refused"
