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
    def __init__(self, engine: Engine, config: Callable[[], Config], status_file: Condition, clock: Clock) -> None:
        self._engine = engine
        self._home: Home = engine.home
        self._config = config
        self._status_file = status_file
        self._clock = clock
        self._backoff = Backoff()
        self._flushed_at: float | None = None

    async def run(self) -> None:
        while True:
            await self._clock.sleep(await self._check())

    async def _check(self) -> float:
        """Flush if a flush is due, and return the seconds until the next check."""
        try:
            if await on_thread(self._is_due, "spool"):
                self._flushed_at = self._clock.monotonic()
                await self._flush()
            self._backoff.succeeded()
        except HypError as error:
            pause = self._backoff.failed()
            log.warning("flush failed: %s; retrying in %.0f s", error.message, pause)
            self._status_file.record_flush(self._clock.now(), "failed")
            self._flushed_at = None
            return pause
        except Exception:
            log.exception("flush failed")
            self._status_file.record_flush(self._clock.now(), "failed")
        return self._config().flush.interval

    def _is_due(self) -> bool:
        if not self._has_rows():
            return False
        if self._flushed_at is None or self._clock.monotonic() - self._flushed_at >= self._config().flush.cold_interval:
            return True
        return self._is_engine_running() or self._is_spool_full()

    def _has_rows(self) -> bool:
        from hypaware.lake import pending

        # Rows of a dataset whose plugin is not installed wait for the plugin, so they do not count.
        return self._home.state.is_file() and pending.waits(
            self._home, datasets.names(), make=False, skip_deferred=True
        )

    def _is_engine_running(self) -> bool:
        return bool(client.status(self._home)["state"] == "running")

    def _is_spool_full(self) -> bool:
        limits = self._config().flush
        spooled = [reader.waiting(self._home, name, skip_deferred=True) for name in datasets.names()]
        return any(each.rows >= limits.max_rows or each.bytes >= limits.max_bytes for each in spooled)

    async def finish(self, limit: float = FINISH_SECONDS) -> None:
        """Flush once more after `run` was cancelled. Rows not committed in time stay in the spool, durably."""
        with suppress(TimeoutError, HypError, OSError):
            async with asyncio.timeout(limit):
                if await on_thread(lambda: self._is_engine_running() and self._has_rows(), "spool"):
                    await self._flush()

    async def _flush(self) -> None:
        report = await run_job(self._engine, "flush", {"dataset": None, "patient": True})
        rows = sum(each["rows_written"] for each in report["datasets"])
        if rows:
            log.info("%s rows committed", f"{rows:,}")
        self._status_file.record_flush(self._clock.now(), "ok")
