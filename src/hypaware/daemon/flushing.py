"""Commits what waits in the spool now and then: often while the engine is warm, seldom where it must be started.

The first look is at once: what a daemon that was not running has left does not wait any longer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

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

log = logging.getLogger("hypaware.daemon")


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
        from hypaware.lake import pending

        # Rows of a dataset whose plugin is gone wait for that, not for us.
        if not self._home.state.is_file() or not pending.waits(self._home, datasets.names(), make=False):
            return False
        if self._last is None or self._clock.monotonic() - self._last >= self._config().flush.cold_interval:
            return True
        return bool(client.status(self._home)["state"] == "running")

    async def _flush(self) -> None:
        report = await run_job(self._engine, "flush", {"dataset": None})
        rows = sum(each["rows_written"] for each in report["datasets"])
        if rows:
            log.info("%s rows committed", f"{rows:,}")
        self._condition.flushed(self._clock.now(), "ok")
