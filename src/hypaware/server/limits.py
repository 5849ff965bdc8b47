"""The server's limits, and their enforcement: rate and concurrency per key, and memory for all requests.

`/v1/capabilities` publishes the first four limits. They are far above those of our own client (5,000 rows, 4 MiB).

Limits are enforced from the event loop only, and nothing waits: a request over a limit is rejected with Retry-After.
Memory is bounded: the least recently seen keys are dropped, which can only favour them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from hypaware.server.http import HttpProblem, unavailable

MIB = 1 << 20
_MAX_KEYS = 10_000
_RETRY_SECONDS = 1.0


@dataclass(frozen=True)
class ServerLimits:
    max_body_bytes: int = 8 * MIB
    """The size before decompression."""
    max_decompressed_bytes: int = 64 * MIB
    max_rows: int = 10_000
    max_line_bytes: int = 8 * MIB

    requests_at_once: int = 16
    """Concurrent requests of one gateway; further ones get 429."""
    requests_per_second: float = 1_000.0
    """The average rate of one gateway; bursts may be twice as large."""
    enrolments_per_minute: float = 60.0
    """The rate of one address."""
    held_bytes: int = 256 * MIB
    """Request bodies in memory, of all gateways together."""
    keep_free_bytes: int = 256 * MIB
    """Disk space that batches leave free for the flush, which then frees theirs."""

    idle_seconds: float = 30.0
    """The longest pause within a request body."""
    quiet_seconds: float = 75.0
    """How long an idle connection is kept open."""
    body_seconds: float = 300.0
    """The longest time to receive a whole body."""
    drain_seconds: float = 30.0
    """How long requests in progress may take to finish when the server stops."""

    def published(self) -> dict[str, int]:
        names = ("max_body_bytes", "max_decompressed_bytes", "max_rows", "max_line_bytes")
        return {name: getattr(self, name) for name in names}


class RateLimiter:
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
            raise HttpProblem(
                429, "too_many_requests", retry_after=max(_RETRY_SECONDS, (1 - tokens) / self._per_second)
            )


class ConcurrencyLimit:
    """Limits the concurrent requests of each key."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._active: Counter[str] = Counter()

    @contextmanager
    def one(self, key: str) -> Iterator[None]:
        if self._active[key] >= self._limit:
            raise HttpProblem(429, "too_many_at_once", retry_after=_RETRY_SECONDS)
        self._active[key] += 1
        try:
            yield
        finally:
            self._active[key] -= 1
            if not self._active[key]:
                del self._active[key]


class InFlight:
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


class ByteBudget:
    """Limits the bytes of request bodies in memory, over all requests."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reserved = 0

    @contextmanager
    def reserve(self) -> Iterator[Reservation]:
        """Yield an empty reservation; release its bytes at the end of the block."""
        reservation = Reservation(self)
        try:
            yield reservation
        finally:
            self.reserved -= reservation.bytes


@dataclass
class Reservation:
    """The bytes that one request holds."""

    budget: ByteBudget
    bytes: int = 0

    def grow_to(self, count: int) -> None:
        if (added := count - self.bytes) > 0:
            if self.budget.reserved + added > self.budget.limit:
                raise unavailable("busy", _RETRY_SECONDS)
            self.budget.reserved += added
            self.bytes = count
