"""The flush loop: what was received is committed to the lake, by an engine, when enough of it waits or for long enough.

A flush that fails is tried again, ever less often; the batches wait in the spool, and new ones are taken meanwhile.
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

_LOOK_EVERY = 1.0
_FIRST_WAIT = 5.0
_LONGEST_WAIT = 900.0


class Flushing:
    def __init__(self, home: Home, config: Callable[[], Config], meters: Meters, run: Callable[[], object]) -> None:
        self._home = home
        self._config = config
        self._meters = meters
        self._run = run
        self._stop = threading.Event()
        # A daemon: an engine that is busy must not keep the server from ending. What it does, it does without us.
        self._thread = threading.Thread(target=self._loop, name="flushing", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _loop(self) -> None:
        wait = 0.0
        while not self._stop.wait(max(_LOOK_EVERY, wait)):
            try:
                if self._is_due():
                    self._run()
                    self._meters.flushed("ok")
                wait = 0.0
            except Exception as error:
                wait = min(_LONGEST_WAIT, 2 * wait or _FIRST_WAIT)
                log.warning("a flush failed, the next try is in %.0f s: %s", wait, error, exc_info=_unexpected(error))
                self._meters.flushed("failed")

    def _is_due(self) -> bool:
        """From the spool's folders alone: no engine is started to learn that nothing waits."""
        waiting = [reader.waiting(self._home, name) for name in segments.datasets_with_spool(self._home)]
        waiting = [each for each in waiting if each.segments]
        if not waiting:
            return False
        enough = self._config().flush
        return (
            time.time() - min(each.oldest_at or 0.0 for each in waiting) >= enough.interval
            or sum(each.rows for each in waiting) >= enough.max_rows
            or sum(each.bytes for each in waiting) >= enough.max_bytes
        )


def by_engine(engine: Engine, config: Callable[[], Config]) -> Callable[[], object]:
    def run() -> object:
        return client.run_job(engine.home, config(), "flush", {}, engine=engine)

    return run


def _unexpected(error: Exception) -> bool:
    return not isinstance(error, HypError | OSError)
