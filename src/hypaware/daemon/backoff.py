"""How long to wait before the engine is tried again: twice as long after each failure, up to a limit."""

from __future__ import annotations

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 300.0


class Backoff:
    def __init__(self) -> None:
        self._failures = 0

    def failed(self) -> float:
        """The seconds to wait now."""
        self._failures += 1
        return min(FIRST_SECONDS * 2.0 ** min(self._failures - 1, 20), LONGEST_SECONDS)

    def succeeded(self) -> None:
        self._failures = 0
