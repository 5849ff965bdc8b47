"""The server's limits, and their enforcement: rate, concurrency and work per key, and memory for all requests.

`/v1/capabilities` publishes the first four limits. They are far above those of our own client (5,000 rows, 4 MiB).

They are enforced from the event loop, and nothing waits: a request over a limit is rejected with Retry-After. Only work
waits: `FairQueue` lets no key use so many threads that the work of another key has to wait for its own.
Memory is bounded: the least recently seen keys are dropped, which can only favour them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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

    connections: int = 512
    """Open connections; a further one replaces an idle one."""
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


class FairQueue:
    """Runs functions in threads, at most `share` of each key at once. Keys whose work waits take turns."""

    def __init__(self, threads: int, share: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="batch")
        self._free = threads
        self._share = share
        self._running: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[Callable[[], None]]] = OrderedDict()
        self._changed = threading.Condition()

    def submit(self, key: str, work: Callable[[], None]) -> None:
        with self._changed:
            self._waiting.setdefault(key, deque()).append(work)
            self._start()

    def close(self) -> None:
        """Return when all work is done. No more may be submitted."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._running)
        self._pool.shutdown()

    def _start(self) -> None:
        """Start one function, if one may run. Every call follows a change that lets at most one more run."""
        if not self._free:
            return
        for key, waiting in self._waiting.items():
            if self._running[key] < self._share:
                self._free -= 1
                self._running[key] += 1
                self._pool.submit(self._run, key, waiting.popleft())
                self._waiting.move_to_end(key)
                if not waiting:
                    del self._waiting[key]
                return

    def _run(self, key: str, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            with self._changed:
                self._free += 1
                self._running[key] -= 1
                if not self._running[key]:
                    del self._running[key]
                self._start()
                self._changed.notify_all()


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
