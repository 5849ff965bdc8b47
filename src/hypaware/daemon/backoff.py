"""Exponential backoff: the wait doubles after each failure, up to a limit."""

from __future__ import annotations

from hypaware.daemon.clock import Clock

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 300.0


class Backoff:
    def __init__(self) -> None:
        self._failures = 0

    def failed(self) -> float:
        """Count a failure and return the seconds to wait."""
        self._failures += 1
        return min(FIRST_SECONDS * 2.0 ** min(self._failures - 1, 20), LONGEST_SECONDS)

    def succeeded(self) -> None:
        self._failures = 0


class Tries:
    """Decides when a failed step may be retried: `if retry.is_due(): with retry: …`"""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._backoff = Backoff()
        self._next = 0.0

    def is_due(self) -> bool:
        return self._clock.monotonic() >= self._next

    def reset(self) -> None:
        """Allow the next attempt immediately."""
        self._next = 0.0

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, _error: object, _trace: object) -> None:
        if kind is None:
            self._backoff.succeeded()
        else:
            self._next = self._clock.monotonic() + self._backoff.failed()
