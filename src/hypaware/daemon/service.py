"""The daemon process: the gateway, an export task per sink, one task each for follow, flush, import and maintenance,
the address of the page, and the OTLP receiver.

The daemon follows config changes. An invalid config is logged and the previous one stays in force. A valid one takes
effect immediately: the export tasks of changed sinks are cancelled, which is safe at any moment, and restarted; the
gateway changes its routes without dropping connections. Tasks fail independently of each other. On shutdown the gateway
gives open responses time to finish, and the rows it recorded are flushed if that is quick.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hypaware.config import LiveConfig
from hypaware.daemon.follow_task import FollowTask
from hypaware.daemon.gateway_task import GatewayTask
from hypaware.daemon.otlp_task import OtlpTask
from hypaware.daemon.page_task import PageTask
from hypaware.daemon.status_file import StatusFile
from hypaware.daemon.tasks import ExportTask, FlushTask, ImportTask, IndexTask
from hypaware.engine.background import PeriodicTask, TaskClock, run_periodic_task
from hypaware.engine.launcher import Engine
from hypaware.gateway.server import prioritize_streams
from hypaware.home import Home, daemon_process
from hypaware.maintain.task import MaintenanceTask
from hypaware.spool.writer import Spool
from hypaware.state.home_opener import open_home

log = logging.getLogger("hypaware.daemon")

_POLL_SECONDS = 1.0


def run_daemon(home: Home, engine: Engine | None = None, clock: TaskClock | None = None) -> None:
    """Run in the foreground until SIGTERM or SIGINT. Raise NotReady if the home's daemon is already running."""
    os.umask(0o077)
    # Until the event loop handles SIGTERM, exit cleanly on it as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    config = LiveConfig(home, log)
    open_home(home).store.close()
    prioritize_streams()
    with Spool(home) as spool, daemon_process.hold_daemon_lock(home) as is_ours:
        asyncio.run(DaemonService(engine or Engine(home), spool, config, is_ours, clock or TaskClock()).run())


class DaemonService:
    def __init__(
        self, engine: Engine, spool: Spool, config: LiveConfig, is_ours: Callable[[], bool], clock: TaskClock
    ) -> None:
        self._engine = engine
        self._home = engine.home
        self._live_config = config
        self._config = config()
        self._is_ours = is_ours
        self._clock = clock
        self._status = StatusFile(self._home, clock.now())
        self._gateway = GatewayTask(spool, lambda: self._config, self._status, clock)
        self._page = PageTask(self._home, lambda: self._config, self._status, clock)
        self._otlp = OtlpTask(self._home, lambda: self._config, self._status, clock)
        self._sinks: dict[str, asyncio.Task[None]] = {}
        self._wakeup = asyncio.Event()
        self._stopping = self._reload_requested = False

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        log.info("the daemon of %s is running as process %d", self._home.root, os.getpid())
        context = (self._engine, lambda: self._config, self._status, self._clock)
        follow = FollowTask(self._home, lambda: self._config, self._status)
        gateway, flush = self._gateway, FlushTask(*context, lambda: follow.covers_all)
        # The first write of the status file means "ready" to other processes, so open all addresses first.
        await self._page.begin()
        await self._otlp.begin()
        await gateway.begin()
        imports = ImportTask(*context, lambda: gateway.last_rows_at, lambda: follow.covered)
        maintenance = MaintenanceTask(*context)
        index = IndexTask(self._home, self._clock)
        periodic: tuple[PeriodicTask, ...] = (flush, imports, maintenance, index)
        tasks = [asyncio.create_task(each.run()) for each in (gateway, follow, self._page, self._otlp)]
        tasks += [asyncio.create_task(run_periodic_task(each, log)) for each in periodic]
        try:
            for sink in self._config.sinks:
                self._start_export(sink)
            while not self._stopping:
                await self._check_config()
        finally:
            log.info("the daemon is stopping")
            self._status.announce_stop(self._clock.now())
            await _cancel([*tasks, *self._sinks.values()])
            # Together: clients must not wait until a long transcript is read.
            await asyncio.gather(follow.close(), gateway.close(), self._page.close(), self._otlp.close())
            await flush.finish()
            if self._is_ours():
                self._status.remove()

    def stop(self) -> None:
        self._stopping = True
        self._wakeup.set()

    def reload(self) -> None:
        self._reload_requested = True
        self._wakeup.set()

    async def _check_config(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_POLL_SECONDS):
                await self._wakeup.wait()
        self._wakeup.clear()
        if not self._is_ours():
            log.warning("the home was removed or replaced")
            self._stopping = True
            return
        config = self._live_config()
        is_forced, self._reload_requested = self._reload_requested and self._live_config.is_valid, False
        if not is_forced and config is self._config:
            return
        before, self._config = self._config, config
        self._gateway.reload()
        self._page.reload()
        self._otlp.reload()
        changed = [sink for sink in self._sinks if before.sinks[sink] != config.sinks.get(sink)]
        await _cancel([self._sinks.pop(sink) for sink in changed])
        for sink in changed:
            self._status.remove_sink(sink)
        for sink in config.sinks:
            if sink not in self._sinks:
                self._start_export(sink)
        log.info("the config was reloaded")

    def _start_export(self, sink: str) -> None:
        task = ExportTask(self._engine, self._config, sink, self._status, self._clock)
        self._sinks[sink] = asyncio.create_task(run_periodic_task(task, log))
        log.info("%s: exports on schedule %s (UTC)", sink, self._config.sinks[sink].schedule)


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
