"""The flush loop: commit received batches to the lake through an engine, when the spool is large or old enough.

A failed flush is retried with backoff. Its batches stay in the spool, and the server keeps accepting new ones.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from hypaware.config import Config
from hypaware.engine import client
from hypaware.engine.launch import Engine
from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.server.meters import Meters
from hypaware.server.trouble import log
from hypaware.spool import reader, segments

_POLL_SECONDS = 1.0
_FIRST_PAUSE = 5.0
_LONGEST_PAUSE = 900.0


class Flushing:
    def __init__(self, home: Home, config: Callable[[], Config], metrics: Meters, run: Callable[[], object]) -> None:
        self._home = home
        self._config = config
        self._metrics = metrics
        self._run = run
        self._stop = threading.Event()
        # A daemon thread: a busy engine must not delay the end of the server. The engine finishes the flush alone.
        self._thread = threading.Thread(target=self._loop, name="flush", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _loop(self) -> None:
        pause = 0.0
        while not self._stop.wait(max(_POLL_SECONDS, pause)):
            try:
                if self._is_due():
                    self._run()
                    self._metrics.flushed("ok")
                pause = 0.0
            except Exception as error:
                pause = min(_LONGEST_PAUSE, 2 * pause or _FIRST_PAUSE)
                log.warning("flush failed, retrying in %.0f s: %s", pause, error, exc_info=_is_unexpected(error))
                self._metrics.flushed("failed")

    def _is_due(self) -> bool:
        """Decide from the spool's folders alone, without starting an engine."""
        spooled = [reader.waiting(self._home, name) for name in segments.datasets_with_spool(self._home)]
        spooled = [each for each in spooled if each.segments]
        if not spooled:
            return False
        limits = self._config().flush
        return (
            time.time() - min(each.oldest_at or 0.0 for each in spooled) >= limits.interval
            or sum(each.rows for each in spooled) >= limits.max_rows
            or sum(each.bytes for each in spooled) >= limits.max_bytes
        )


def by_engine(engine: Engine, config: Callable[[], Config]) -> Callable[[], object]:
    """Return a function that runs a flush job in the engine."""

    def run() -> object:
        return client.run_job(engine.home, config(), "flush", {}, engine=engine)

    return run


def _is_unexpected(error: Exception) -> bool:
    return not isinstance(error, HypError | OSError)
