"""Follow the transcripts of the chosen clients: one thread, whose state goes to the daemon's status file.

The thread ends with the daemon. If it fails as a whole, because the home cannot be opened, it is started again with
growing pauses; a client that fails does not affect the others.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from hypaware import plugins
from hypaware.clients.client import Client
from hypaware.config import Config
from hypaware.daemon.status_file import StatusFile
from hypaware.daemon.tasks import is_client_chosen
from hypaware.engine.background import Backoff, run_in_thread
from hypaware.follow.follower import Follower
from hypaware.home import Home
from hypaware.text import summarize_error

log = logging.getLogger("hypaware.daemon")

_STATUS_SECONDS = 1.0
_STOP_SECONDS = 10.0


class FollowTask:
    def __init__(self, home: Home, config: Callable[[], Config], status: StatusFile) -> None:
        self._home = home
        self._status = status
        self._names: tuple[str, ...] | None = None
        self._follower = Follower(home, config, self._choose)
        self._stop = threading.Event()
        self._running: asyncio.Future[None] | None = None

    @property
    def covered(self) -> frozenset[str]:
        """Clients whose transcripts need no import now."""
        return self._follower.covered

    @property
    def covers_all(self) -> bool:
        """Whether no client needs an import now."""
        return self._follower.covers_all

    async def run(self) -> None:
        """Follow until the task is cancelled."""
        backoff = Backoff()
        while True:
            self._running = run_in_thread(lambda: self._follower.run(self._stop), "follow")
            while not self._running.done():
                await asyncio.wait([self._running], timeout=_STATUS_SECONDS)
                self._status.update("follow", clients=self._follower.status, error=None)
            error = self._running.exception()
            message = summarize_error(error) if error else "the thread has ended"
            log.warning("cannot follow transcripts: %s", message, exc_info=error)
            self._status.update("follow", clients={}, error=message)
            await asyncio.sleep(backoff.failed())

    async def close(self) -> None:
        """Stop after `run` was cancelled. Returns when the source that is being read is recorded, or soon after."""
        self._stop.set()
        if self._running is not None:
            await asyncio.wait([self._running], timeout=_STOP_SECONDS)
            if self._running.done():
                self._running.exception()

    def _choose(self, config: Config) -> tuple[str, ...]:
        if self._names is None:
            loaded = plugins.load_plugins(plugins.CLIENTS, Client)
            self._names = tuple(client.name for client in loaded if client.backfill is not None)
        return tuple(name for name in self._names if is_client_chosen(self._home, config, name))
