"""Retry policy: how long to wait before the next attempt, and how much waiting a round may do.

A positive Retry-After is obeyed. A destination that only reports "busy" is retried after 30, 60, 120, 300 s; one that
does not respond after 1, 2, 4 … 300 s. `hyp export` itself waits up to `--max-wait`; a longer delay is stored with the
stream, and the daemon retries then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from hypaware.export.sink import Busy, Unreachable

T = TypeVar("T")

_BUSY_DELAYS = (30.0, 60.0, 120.0, 300.0)
_LONGEST_BACKOFF = 300.0
# A destination that asks for a delay of years is wrong: retry it the next day.
_LONGEST_RETRY_AFTER = 86_400.0
# Attempts per round at a destination that does not respond; the next round tries again.
_ATTEMPTS_PER_ROUND = 3


class GaveUp(Exception):
    """Ends the round of one stream. `retry_after` says in how many seconds another attempt makes sense."""

    def __init__(self, kind: str, message: str, retry_after: float | None = None, repair: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after = retry_after
        self.repair = repair


def after_busy(requested: float | None, failures: int) -> float:
    if requested is not None and requested > 0:
        return min(requested, _LONGEST_RETRY_AFTER)
    return _BUSY_DELAYS[min(failures, len(_BUSY_DELAYS) - 1)]


def after_silence(failures: int) -> float:
    return min(2.0 ** min(failures, 10), _LONGEST_BACKOFF)


def time_after(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


@dataclass
class Patience:
    """The waiting time that a round has left for one stream."""

    seconds: float
    failures: int = 0
    """Consecutive failures, those of earlier rounds included."""

    async def retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call until the destination responds. Raises GaveUp if the next delay exceeds the time left."""
        silences = 0
        while True:
            try:
                result = await call()
            except Busy as busy:
                delay = after_busy(busy.after, self.failures)
                self.failures += 1
                if delay > self.seconds:
                    raise GaveUp("destination_busy", f"the destination asks to wait: {busy}", delay) from None
            except Unreachable as silence:
                delay, silences = after_silence(self.failures), silences + 1
                self.failures += 1
                if silences >= _ATTEMPTS_PER_ROUND or delay > self.seconds:
                    raise GaveUp("destination_unreachable", str(silence), delay) from None
            else:
                self.failures = 0
                return result
            self.seconds -= delay
            await asyncio.sleep(delay)
