"""Flush the spool periodically: every `flush.interval` while the engine runs, less often if it would have to start.

A stopped engine is started after `flush.cold_interval`, or when the spool holds as much as one commit takes
(`flush.max_rows`, `flush.max_bytes`). Until then, live rows that may wait for their transcript stay in the spool. The
first check runs at start, for rows that were left while no daemon ran. When the daemon stops, it flushes once more if
the engine is running and answers in time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from hypaware.config import Config
from hypaware.daemon.status_file import StatusFile
from hypaware.engine import client
from hypaware.engine.background import TaskClock, run_cancellable_job, run_in_thread
from hypaware.engine.launcher import Engine
from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.model import datasets
from hypaware.spool import reader

log = logging.getLogger("hypaware.daemon")

FINISH_SECONDS = 10.0


class FlushTask:
    name = "flush"
    retry_on = (HypError,)

    def __init__(self, engine: Engine, config: Callable[[], Config], status: StatusFile, clock: TaskClock) -> None:
        self._engine = engine
        self._home: Home = engine.home
        self._config = config
        self._status = status
        self._clock = clock
        self._pause = 0.0
        self._flushed_at: float | None = None

    async def wait(self, retry_in: float | None) -> None:
        await self._clock.sleep(self._pause if retry_in is None else retry_in)
        self._pause = self._config().flush.interval

    async def check(self) -> None:
        if await run_in_thread(self._is_due, "spool"):
            self._flushed_at = self._clock.monotonic()
            await self._flush()

    def record_failure(self, retry_in: float | None) -> None:
        self._status.update("flush", last_flush=self._clock.now(), last_status="failed")
        if retry_in is not None:
            self._flushed_at = None

    def _is_due(self) -> bool:
        if not self._has_rows():
            return False
        if self._flushed_at is None or self._clock.monotonic() - self._flushed_at >= self._config().flush.cold_interval:
            return True
        return self._is_engine_running() or self._is_spool_full()

    def _has_rows(self) -> bool:
        from hypaware.lake import health

        # Rows of a dataset whose plugin is not installed wait for the plugin, so they do not count.
        return self._home.state.is_file() and health.has_pending_rows(
            self._home, datasets.list_names(), make=False, skip_deferred=True
        )

    def _is_engine_running(self) -> bool:
        return bool(client.engine_status(self._home)["state"] == "running")

    def _is_spool_full(self) -> bool:
        limits = self._config().flush
        spooled = [reader.summarize_spool(self._home, name, skip_deferred=True) for name in datasets.list_names()]
        return any(each.rows >= limits.max_rows or each.bytes >= limits.max_bytes for each in spooled)

    async def finish(self, limit: float = FINISH_SECONDS) -> None:
        """Flush once more after the task was cancelled. Rows not committed in time stay in the spool, durably."""
        with suppress(TimeoutError, HypError, OSError):
            async with asyncio.timeout(limit):
                if await run_in_thread(lambda: self._is_engine_running() and self._has_rows(), "spool"):
                    await self._flush()

    async def _flush(self) -> None:
        report = await run_cancellable_job(self._engine, "flush", {"dataset": None, "patient": True})
        rows = sum(each["rows_written"] for each in report["datasets"])
        if rows:
            log.info("%s rows committed", f"{rows:,}")
        self._status.update("flush", last_flush=self._clock.now(), last_status="ok")
