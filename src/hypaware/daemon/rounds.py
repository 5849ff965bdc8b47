"""Export to one sink on its schedule, one round after the other; each sink has its own task.

A round reads the state first and calls the engine only if something is due. If the destination asked for a delay, the
next round runs at the time it named; if the engine failed, it runs after a short backoff. Neither waits for the
schedule. No error ends the task, and no sink waits for another.
"""

from __future__ import annotations

import logging
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any

from hypaware.config import Config
from hypaware.daemon.backoff import Backoff
from hypaware.daemon.clock import Clock
from hypaware.daemon.condition import Condition
from hypaware.daemon.engine_job import run_job
from hypaware.daemon.offload import on_thread
from hypaware.daemon.timer import Timer
from hypaware.engine.jobs import Event
from hypaware.engine.launch import Engine
from hypaware.errors import HypError, NotReady, Retryable
from hypaware.home import Home

log = logging.getLogger("hypaware.daemon")

# A sleep of the machine or a jump of the clock is noticed within this time.
_POLL_SECONDS = 15.0
# Longer waits do not block the engine: the state records the time, and a later round continues.
_MAX_WAIT_SECONDS = 2.0
# Intents per stream in one job. A changed config takes effect between two jobs.
_BUDGET = 20


class Rounds:
    def __init__(self, engine: Engine, config: Config, sink: str, status_file: Condition, clock: Clock) -> None:
        self._engine = engine
        self._home: Home = engine.home
        self._config = config
        self._sink = sink
        self._status_file = status_file
        self._clock = clock
        self._backoff = Backoff()
        self._first_check = True
        self._last_error: str | None = None

    async def run(self) -> None:
        timer = Timer(self._config.sinks[self._sink].schedule, self._clock.now())
        retry_at: datetime | None = None
        while True:
            self._status_file.set_next_round(self._sink, timer.next if retry_at is None else min(timer.next, retry_at))
            await self._wait_for(timer, retry_at)
            retry_at = await self._run_round()

    async def _wait_for(self, timer: Timer, retry_at: datetime | None) -> None:
        while True:
            now = self._clock.now()
            if timer.is_due(now) or (retry_at is not None and now >= retry_at):
                return
            following = timer.next if retry_at is None else min(timer.next, retry_at)
            await self._clock.sleep(min(_POLL_SECONDS, (following - now).total_seconds()))

    async def _run_round(self) -> datetime | None:
        """Run a round, log its errors, and return when to retry ahead of the schedule."""
        try:
            retry_at = await self._export()
            self._backoff.succeeded()
            self._last_error = None
            return retry_at
        except (Retryable, NotReady) as error:
            pause = self._backoff.failed()
            self._log_error(error, f"; retrying in {pause:.0f} s")
            self._status_file.record_round(self._sink, self._clock.now(), "failed")
            return self._clock.now() + timedelta(seconds=pause)
        except HypError as error:
            self._log_error(error)
        except Exception:
            log.exception("%s: the round failed; the next one follows the schedule", self._sink)
        self._status_file.record_round(self._sink, self._clock.now(), "failed")
        return None

    async def _export(self) -> datetime | None:
        is_progressing = True
        while True:
            due = await on_thread(self._due_at, f"state {self._sink}")
            self._first_check = False
            if due is None or due > self._clock.now():
                return due
            if not is_progressing:
                return None
            report = await run_job(self._engine, "export", self._args(), self._on_event)
            (done,) = report["sinks"]
            self._report(done)
            # A job may end because its budget is used up. Continue immediately, unless it delivered nothing.
            is_progressing = any(stream["chunks"] for stream in done["streams"])

    def _args(self) -> dict[str, Any]:
        return {"sinks": [self._sink], "max_wait": _MAX_WAIT_SECONDS, "budget": _BUDGET, "patient": True}

    def _due_at(self) -> datetime | None:
        from hypaware.export.status import due_at
        from hypaware.opening import open_home

        if not self._home.state.is_file():
            return None  # opening it would create a state in a home that may just have been removed
        with closing(open_home(self._home, make=False).store) as store:
            return due_at(self._home, self._config, store, self._sink, self._clock.now(), config_changed=self._first_check)

    def _on_event(self, event: Event) -> None:
        if not isinstance(event, bytes) and event["event"] == "note":
            log.info("%s: %s", self._sink, event["message"])

    def _report(self, done: dict[str, Any]) -> None:
        rows = sum(stream["rows"] for stream in done["streams"])
        size = sum(stream["bytes"] for stream in done["streams"])
        log.info("%s: %s, %s rows delivered (%.1f MB)", self._sink, done["status"], f"{rows:,}", size / 1e6)
        if error := done.get("error"):
            log.warning("%s: %s", self._sink, error["message"])
        for stream in done["streams"]:
            if (error := stream.get("error")) and error != done.get("error"):
                log.warning("%s: %s of %s: %s", self._sink, stream["dataset"], stream["source"], error["message"])
        self._status_file.record_round(self._sink, self._clock.now(), done["status"])

    def _log_error(self, error: HypError, retry: str = "") -> None:
        """Log an error, unless it repeats the previous one."""
        repair = f" (try: {error.repair[0]})" if error.repair else ""
        message = f"{error.message}{retry}{repair}"
        if message != self._last_error:
            log.warning("%s: %s", self._sink, message)
        self._last_error = message
