"""Fair shares: how often and how many at once for each key, and how many bytes for all together. One thread, no waits.

Memory is bounded: keys that were not seen for the longest time are forgotten, which only ever favours them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from hypaware.server.problem import Problem, unavailable

_MAX_KEYS = 10_000
_SOON = 1.0


class Pace:
    """So many per second for each key over some time, `burst` of them at once."""

    def __init__(self, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> None:
        now = self._clock()
        left, at = self._left.pop(key, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_second)
        taken = left >= 1
        self._left[key] = (left - 1 if taken else left, now)
        if len(self._left) > _MAX_KEYS:
            self._left.popitem(last=False)
        if not taken:
            raise Problem(429, "too_many_requests", retry_after=max(_SOON, (1 - left) / self._per_second))


class AtOnce:
    """So many at the same time for each key."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._now: Counter[str] = Counter()

    @contextmanager
    def one(self, key: str) -> Iterator[None]:
        if self._now[key] >= self._most:
            raise Problem(429, "too_many_at_once", retry_after=_SOON)
        self._now[key] += 1
        try:
            yield
        finally:
            self._now[key] -= 1
            if not self._now[key]:
                del self._now[key]


class UnderWay:
    """Requests that were begun and not answered."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    @contextmanager
    def one(self) -> Iterator[None]:
        self._count += 1
        self._none.clear()
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._none.set()

    async def none_left(self, seconds: float) -> None:
        """Waits for them, so long at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._none.wait()


class Room:
    """Bytes that may be held in memory."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.taken = 0

    @contextmanager
    def share(self) -> Iterator[Share]:
        mine = Share(self)
        try:
            yield mine
        finally:
            self.taken -= mine.bytes

    def take(self, count: int) -> None:
        if self.taken + count > self._most:
            raise unavailable("busy", _SOON)
        self.taken += count


class Share:
    def __init__(self, room: Room) -> None:
        self._room = room
        self.bytes = 0

    def grow_to(self, count: int) -> None:
        if count > self.bytes:
            self._room.take(count - self.bytes)
            self.bytes = count
