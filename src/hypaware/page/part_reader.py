"""Reads something slow in a thread of its own, for views that must not wait long.

While it is being read it is not read a second time, however many people ask, and until then the last result is known.
So a disk that does not answer delays neither other views nor the end of the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Generic, TypeVar

from hypaware.engine.background import run_in_thread
from hypaware.text import summarize_error

T = TypeVar("T")


@dataclass(frozen=True)
class Reading(Generic[T]):
    """The last value."""

    value: T | None = None
    at: datetime | None = None
    error: str | None = None
    """Why the last attempt failed; the value is that of an earlier one."""
    is_late: bool = False
    """Whether a newer value is still being read."""


class PartReader(Generic[T]):
    def __init__(self, name: str) -> None:
        self._name = name
        self._running: asyncio.Future[T] | None = None
        self._last: Reading[T] = Reading()

    async def get(self, read: Callable[[], T], seconds: float) -> Reading[T]:
        """Return the new value if it is read within this time, or else the last one. Joins a read that is running."""
        if self._running is None:
            self._running = run_in_thread(read, f"page: {self._name}")
            self._running.add_done_callback(self._note)
        await asyncio.wait([self._running], timeout=seconds)
        # The callback runs after the waiting tasks are woken, so check the future itself.
        return replace(self._last, is_late=True) if self._running and not self._running.done() else self._settle()

    def _settle(self) -> Reading[T]:
        if self._running is not None:
            self._note(self._running)
        return self._last

    def _note(self, done: asyncio.Future[T]) -> None:
        if done is not self._running:
            return
        self._running = None
        if problem := done.exception():
            self._last = replace(self._last, error=summarize_error(problem), is_late=False)
        else:
            self._last = Reading(done.result(), datetime.now(UTC))
