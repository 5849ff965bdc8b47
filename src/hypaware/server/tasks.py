"""The server's background tasks: flush received batches, and maintain the lake.

A flush runs in the engine when the spool is large or old enough. A failed flush is retried with backoff; its batches
stay in the spool, and the server keeps accepting new ones. When the server ends, a running flush continues in the
engine, and maintenance is cancelled.

Maintenance uses the daemon's task and settings. The server ignores the machine's battery, and waits while a daemon runs
in the same home, which already does the maintenance.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from hypaware.config import Config, MaintainConfig
from hypaware.engine import client
from hypaware.engine.background import Backoff, TaskClock, run_in_thread, run_periodic_task
from hypaware.engine.launcher import Engine
from hypaware.home import Home, daemon_process, locks
from hypaware.maintain.task import MaintenanceTask, quiet_hours_reason
from hypaware.server.health import ServerMetrics, log
from hypaware.spool import reader, segments

_POLL_SECONDS = 1.0
_FIRST_BACKOFF_SECONDS = 5.0
_LONGEST_BACKOFF_SECONDS = 900.0


@dataclass(frozen=True)
class ServerTasks:
    engine: Engine
    config: Callable[[], Config]
    clock: TaskClock

    @asynccontextmanager
    async def running(self, metrics: ServerMetrics) -> AsyncIterator[None]:
        flush = ServerFlushTask(self.engine.home, self.config, metrics, self._flush)
        maintenance = MaintenanceTask(
            self.engine,
            self.config,
            _MaintenanceCounter(metrics),
            self.clock,
            reason_to_wait=partial(server_reason_to_wait, self.engine.home),
            log=log,
        )
        backoff = Backoff(_FIRST_BACKOFF_SECONDS, _LONGEST_BACKOFF_SECONDS)
        tasks = [
            asyncio.create_task(run_periodic_task(flush, log, backoff)),
            asyncio.create_task(run_periodic_task(maintenance, log)),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _flush(self) -> object:
        return client.run_job(self.engine.home, self.config(), "flush", {}, engine=self.engine)


class ServerFlushTask:
    name = "flush"
    retry_on = (Exception,)

    def __init__(
        self,
        home: Home,
        config: Callable[[], Config],
        metrics: ServerMetrics,
        flush: Callable[[], object],
        poll_seconds: float = _POLL_SECONDS,
    ) -> None:
        self._home = home
        self._config = config
        self._metrics = metrics
        self._flush = flush
        self._poll_seconds = poll_seconds

    async def wait(self, retry_in: float | None) -> None:
        await asyncio.sleep(max(self._poll_seconds, retry_in or 0.0))

    async def check(self) -> None:
        if await run_in_thread(self._is_due, "spool"):
            # Not a cancellable job: when the server ends, the engine finishes the flush alone.
            await run_in_thread(self._flush, "flush")
            self._metrics.flushes.labels("ok").inc()

    def record_failure(self, _retry_in: float | None) -> None:
        self._metrics.flushes.labels("failed").inc()

    def _is_due(self) -> bool:
        """Decide from the spool's folders alone, without starting an engine."""
        spooled = [reader.summarize_spool(self._home, name) for name in segments.list_spooled_datasets(self._home)]
        spooled = [each for each in spooled if each.segments]
        if not spooled:
            return False
        limits = self._config().flush
        return (
            time.time() - min(each.oldest_at or 0.0 for each in spooled) >= limits.interval
            or sum(each.rows for each in spooled) >= limits.max_rows
            or sum(each.bytes for each in spooled) >= limits.max_bytes
        )


def server_reason_to_wait(home: Home, settings: MaintainConfig, now: datetime) -> str | None:
    """Return why maintenance has to wait, or None if it may run."""
    if locks.is_locked(daemon_process.daemon_lock_path(home)):
        return "the daemon that runs in this home does the maintenance"
    return quiet_hours_reason(settings, now)


class _MaintenanceCounter:
    """Counts the maintenance runs for `/metrics`."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self._metrics = metrics

    def update(self, part: str, **facts: object) -> None:
        if "last_status" in facts:
            self._metrics.maintenances.labels(facts["last_status"]).inc()
