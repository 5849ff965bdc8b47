"""The daemon itself: the gateway, a task for each sink, and one each for spool, history and lake.

It follows the config until its end. A config that is broken when it changes leaves the old one in force, and says so. A
new one takes effect at once: the rounds of sinks that it changes are cancelled, which is safe at any moment, and begun
anew; the gateway changes without a break. One part's trouble is its own. At the end the gateway has its grace, so that
answers under way arrive whole, and what it recorded is committed if that is quick.
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

_LOOK_SECONDS = 1.0

Seen = tuple[int, int, int] | None


def run(home: Home, engine: Engine | None = None, clock: Clock | None = None) -> None:
    """In the foreground, until SIGTERM or SIGINT; raises NotReady where a daemon of the home runs already."""
    os.umask(0o077)
    # The loop takes this over; until then a stop ends in peace as well.
    signal.signal(signal.SIGTERM, _leave)
    seen = _seen(home)
    config = configuration.load(home)
    open_home(home).store.close()
    streams_come_first()
    with Spool(home) as spool, instance.only_one(home) as is_ours:
        asyncio.run(Service(engine or Engine(home), spool, config, seen, is_ours, clock or Clock()).run())


def _leave(_number: int, _frame: object) -> None:
    raise SystemExit(0)


class Service:
    def __init__(
        self, engine: Engine, spool: Spool, config: Config, seen: Seen, is_ours: Callable[[], bool], clock: Clock
    ) -> None:
        self._engine = engine
        self._home = engine.home
        self._config = config
        self._seen = seen
        self._is_ours = is_ours
        self._clock = clock
        self._condition = Condition(self._home, clock.now())
        self._listening = Listening(spool, lambda: self._config, self._condition, clock)
        self._sinks: dict[str, asyncio.Task[None]] = {}
        self._woken = asyncio.Event()
        self._stopping = self._reload_wanted = False

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        log.info("the daemon of %s runs as process %d", self._home.root, os.getpid())
        parts = (self._engine, lambda: self._config, self._condition, self._clock)
        listening, flushing = self._listening, Flushing(*parts)
        # Whoever waits for a daemon takes the first word of its condition for "ready": so the gateway comes first.
        await listening.begin()
        catching_up = CatchingUp(*parts, lambda: listening.rows_came_at)
        own = (listening.run(), flushing.run(), catching_up.run(), Upkeep(*parts).run())
        tasks = [asyncio.create_task(each) for each in own]
        try:
            for sink in self._config.sinks:
                self._begin_rounds(sink)
            while not self._stopping:
                await self._look_around()
        finally:
            log.info("the daemon ends")
            await _end([*tasks, *self._sinks.values()])
            await listening.end()
            await flushing.finish()
            if self._is_ours():
                self._condition.remove()

    def stop(self) -> None:
        self._stopping = True
        self._woken.set()

    def reload(self) -> None:
        self._reload_wanted = True
        self._woken.set()

    async def _look_around(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), _LOOK_SECONDS)
        self._woken.clear()
        if not self._is_ours():
            log.warning("the home is gone, or another one took its place")
            self._stopping = True
        elif self._reload_wanted or _seen(self._home) != self._seen:
            self._reload_wanted = False
            await self._reload()

    async def _reload(self) -> None:
        self._seen = _seen(self._home)
        try:
            config = configuration.load(self._home)
        except HypError as error:
            log.error("the config is broken, so the old one stays in force: %s", error.message)
            return
        before, self._config = self._config, config
        self._listening.reload()
        changed = [sink for sink in self._sinks if before.sinks[sink] != config.sinks.get(sink)]
        await _end([self._sinks.pop(sink) for sink in changed])
        for sink in changed:
            self._condition.forget(sink)
        for sink in config.sinks:
            if sink not in self._sinks:
                self._begin_rounds(sink)
        log.info("the config was read anew")

    def _begin_rounds(self, sink: str) -> None:
        rounds = Rounds(self._engine, self._config, sink, self._condition, self._clock)
        self._sinks[sink] = asyncio.create_task(rounds.run())
        log.info("%s: delivers by schedule %s (UTC)", sink, self._config.sinks[sink].schedule)


async def _end(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _seen(home: Home) -> Seen:
    """What tells one config file from another without reading it."""
    try:
        found = home.config.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
