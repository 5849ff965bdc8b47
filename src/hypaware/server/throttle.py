"""Rate and concurrency limits per key, and a memory limit for all requests. Used from the event loop only.

Nothing waits: a request over a limit is rejected with Retry-After. Memory is bounded: the least recently seen keys are
dropped, which can only favour them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from hypaware.server.problem import Problem, unavailable

_MAX_KEYS = 10_000
_RETRY_SECONDS = 1.0


class Pace:
    """A token bucket per key: `per_second` requests on average, `burst` at once."""

    def __init__(self, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> None:
        now = self._clock()
        tokens, at = self._buckets.pop(key, (self._burst, now))
        tokens = min(self._burst, tokens + (now - at) * self._per_second)
        is_allowed = tokens >= 1
        self._buckets[key] = (tokens - 1 if is_allowed else tokens, now)
        if len(self._buckets) > _MAX_KEYS:
            self._buckets.popitem(last=False)
        if not is_allowed:
            raise Problem(429, "too_many_requests", retry_after=max(_RETRY_SECONDS, (1 - tokens) / self._per_second))


class AtOnce:
    """Limits the concurrent requests of each key."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._active: Counter[str] = Counter()

    @contextmanager
    def one(self, key: str) -> Iterator[None]:
        if self._active[key] >= self._limit:
            raise Problem(429, "too_many_at_once", retry_after=_RETRY_SECONDS)
        self._active[key] += 1
        try:
            yield
        finally:
            self._active[key] -= 1
            if not self._active[key]:
                del self._active[key]


class UnderWay:
    """Counts the requests in progress, so that a shutdown can wait for them."""

    def __init__(self) -> None:
        self._count = 0
        self._done = asyncio.Event()
        self._done.set()

    @contextmanager
    def one(self) -> Iterator[None]:
        self._count += 1
        self._done.clear()
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._done.set()

    async def wait_until_done(self, seconds: float) -> None:
        """Wait until no request is in progress, at most `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._done.wait()


class Room:
    """Limits the bytes of request bodies in memory, over all requests."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.reserved = 0

    @contextmanager
    def reserve(self) -> Iterator[Share]:
        """Yield an empty reservation; release its bytes at the end of the block."""
        reservation = Share(self)
        try:
            yield reservation
        finally:
            self.reserved -= reservation.bytes

    def take(self, count: int) -> None:
        if self.reserved + count > self._limit:
            raise unavailable("busy", _RETRY_SECONDS)
        self.reserved += count


class Share:
    """The bytes that one request holds."""

    def __init__(self, budget: Room) -> None:
        self._budget = budget
        self.bytes = 0

    def grow_to(self, count: int) -> None:
        if count > self.bytes:
            self._budget.take(count - self.bytes)
            self.bytes = count
