"""The daemon's time: the wall clock for schedules, one that never jumps for intervals, and sleeping."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime


class Clock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))
