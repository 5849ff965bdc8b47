"""The daemon process: the gateway, an export task per sink, and one task each for flush, import and maintenance.

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
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hypaware import config as configuration
from hypaware.capture.gateway import streams_come_first
from hypaware.config import Config
from hypaware.daemon import instance
from hypaware.daemon.catching_up import CatchingUp
from hypaware.daemon.clock import Clock
from hypaware.daemon.condition import Condition
from hypaware.daemon.flushing import Flushing
from hypaware.daemon.listening import Listening
from hypaware.daemon.rounds import Rounds
from hypaware.daemon.upkeep import Upkeep
from hypaware.engine.launch import Engine
from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.opening import open_home
from hypaware.spool.writer import Spool

log = logging.getLogger("hypaware.daemon")

_POLL_SECONDS = 1.0

Seen = tuple[int, int, int] | None


def run(home: Home, engine: Engine | None = None, clock: Clock | None = None) -> None:
    """Run in the foreground until SIGTERM or SIGINT. Raise NotReady if the home's daemon is already running."""
    os.umask(0o077)
    # Until the event loop handles SIGTERM, exit cleanly on it as well.
    signal.signal(signal.SIGTERM, _leave)
    signature = _seen(home)
    config = configuration.load(home)
    open_home(home).store.close()
    streams_come_first()
    with Spool(home) as spool, instance.only_one(home) as is_ours:
        asyncio.run(Service(engine or Engine(home), spool, config, signature, is_ours, clock or Clock()).run())


def _leave(_number: int, _frame: object) -> None:
    raise SystemExit(0)


class Service:
    def __init__(
        self, engine: Engine, spool: Spool, config: Config, signature: Seen, is_ours: Callable[[], bool], clock: Clock
    ) -> None:
        self._engine = engine
        self._home = engine.home
        self._config = config
        self._signature = signature
        self._is_ours = is_ours
        self._clock = clock
        self._status_file = Condition(self._home, clock.now())
        self._gateway = Listening(spool, lambda: self._config, self._status_file, clock)
        self._sinks: dict[str, asyncio.Task[None]] = {}
        self._wakeup = asyncio.Event()
        self._stopping = self._reload_requested = False

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        log.info("the daemon of %s is running as process %d", self._home.root, os.getpid())
        context = (self._engine, lambda: self._config, self._status_file, self._clock)
        gateway, flush = self._gateway, Flushing(*context)
        # The first write of the status file means "ready" to other processes, so open the gateway first.
        await gateway.begin()
        imports = CatchingUp(*context, lambda: gateway.last_rows_at)
        tasks = [asyncio.create_task(each.run()) for each in (gateway, flush, imports, Upkeep(*context))]
        try:
            for sink in self._config.sinks:
                self._start_export(sink)
            while not self._stopping:
                await self._check_config()
        finally:
            log.info("the daemon is stopping")
            await _cancel([*tasks, *self._sinks.values()])
            await gateway.close()
            await flush.finish()
            if self._is_ours():
                self._status_file.remove()

    def stop(self) -> None:
        self._stopping = True
        self._wakeup.set()

    def reload(self) -> None:
        self._reload_requested = True
        self._wakeup.set()

    async def _check_config(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wakeup.wait(), _POLL_SECONDS)
        self._wakeup.clear()
        if not self._is_ours():
            log.warning("the home was removed or replaced")
            self._stopping = True
        elif self._reload_requested or _seen(self._home) != self._signature:
            self._reload_requested = False
            await self._reload()

    async def _reload(self) -> None:
        self._signature = _seen(self._home)
        try:
            config = configuration.load(self._home)
        except HypError as error:
            log.error("the config is invalid; the previous one stays in force: %s", error.message)
            return
        before, self._config = self._config, config
        self._gateway.reload()
        changed = [sink for sink in self._sinks if before.sinks[sink] != config.sinks.get(sink)]
        await _cancel([self._sinks.pop(sink) for sink in changed])
        for sink in changed:
            self._status_file.remove_sink(sink)
        for sink in config.sinks:
            if sink not in self._sinks:
                self._start_export(sink)
        log.info("the config was reloaded")

    def _start_export(self, sink: str) -> None:
        task = Rounds(self._engine, self._config, sink, self._status_file, self._clock)
        self._sinks[sink] = asyncio.create_task(task.run())
        log.info("%s: exports on schedule %s (UTC)", sink, self._config.sinks[sink].schedule)


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _seen(home: Home) -> Seen:
    """Return a value that changes when the config file is replaced or edited."""
    try:
        stat = home.config.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
