"""Commits what waits in the spool now and then: often while the engine is warm, seldom where it must be started.

A cold engine is not started for a handful of rows: it is after `flush.cold_interval`, or when so much waits as one
commit takes (`flush.max_rows`, `flush.max_bytes`). Live rows that may wait for their transcript are left alone until
then. The first look is at once: what a daemon that was not running has left does not wait any longer. At its end a
daemon has what waits committed once more, if the engine is warm and quick.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from hypaware.config import Config
from hypaware.daemon.backoff import Backoff
from hypaware.daemon.clock import Clock
from hypaware.daemon.condition import Condition
from hypaware.daemon.engine_job import run_job
from hypaware.daemon.offload import on_thread
from hypaware.engine import client
from hypaware.engine.launch import Engine
from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.model import datasets
from hypaware.spool import reader

log = logging.getLogger("hypaware.daemon")

FINISH_SECONDS = 10.0


class Flushing:
    def __init__(self, engine: Engine, config: Callable[[], Config], condition: Condition, clock: Clock) -> None:
        self._engine = engine
        self._home: Home = engine.home
        self._config = config
        self._condition = condition
        self._clock = clock
        self._backoff = Backoff()
        self._last: float | None = None

    async def run(self) -> None:
        while True:
            await self._clock.sleep(await self._turn())

    async def _turn(self) -> float:
        """Seconds until the next look."""
        try:
            if await on_thread(self._is_due, "spool"):
                self._last = self._clock.monotonic()
                await self._flush()
            self._backoff.succeeded()
        except HypError as trouble:
            pause = self._backoff.failed()
            log.warning("the spool was not committed: %s; again in %.0f s", trouble.message, pause)
            self._condition.flushed(self._clock.now(), "failed")
            self._last = None
            return pause
        except Exception:
            log.exception("the spool was not committed")
            self._condition.flushed(self._clock.now(), "failed")
        return self._config().flush.interval

    def _is_due(self) -> bool:
        if not self._waits():
            return False
        if self._last is None or self._clock.monotonic() - self._last >= self._config().flush.cold_interval:
            return True
        return self._is_warm() or self._is_enough()

    def _waits(self) -> bool:
        from hypaware.lake import pending

        # Rows of a dataset whose plugin is gone wait for that, not for us.
        return self._home.state.is_file() and pending.waits(self._home, datasets.names(), make=False, patient=True)

    def _is_warm(self) -> bool:
        return bool(client.status(self._home)["state"] == "running")

    def _is_enough(self) -> bool:
        limits = self._config().flush
        found = [reader.waiting(self._home, name, patient=True) for name in datasets.names()]
        return any(each.rows >= limits.max_rows or each.bytes >= limits.max_bytes for each in found)

    async def finish(self, limit: float = FINISH_SECONDS) -> None:
        """After `run` was cancelled. What is not committed within the limit is durable and waits for the next one."""
        with suppress(TimeoutError, HypError, OSError):
            async with asyncio.timeout(limit):
                if await on_thread(lambda: self._is_warm() and self._waits(), "spool"):
                    await self._flush()

    async def _flush(self) -> None:
        report = await run_job(self._engine, "flush", {"dataset": None, "patient": True})
        rows = sum(each["rows_written"] for each in report["datasets"])
        if rows:
            log.info("%s rows committed", f"{rows:,}")
        self._condition.flushed(self._clock.now(), "ok")
