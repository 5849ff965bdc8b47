"""Export to one sink on its schedule, one round after the other; each sink has its own task.

A round reads the state first and calls the engine only if something is due. If the destination asked for a delay, the
next round runs at the time it named; if the engine failed, it runs after a short backoff. Neither waits for the
schedule. No sink waits for another.

The wall clock may jump or skip a sleep of the machine. Scheduled times that were missed are due once, however many have
passed. If the clock is set back, the next time follows the schedule from the new present.
"""

from __future__ import annotations

import logging
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any

from hypaware.config import Config
from hypaware.daemon.status_file import StatusFile
from hypaware.engine.background import TaskClock, run_cancellable_job, run_in_thread
from hypaware.engine.jobs import Event
from hypaware.engine.launcher import Engine
from hypaware.errors import NotReady, Retryable
from hypaware.export.sink_registry import next_round_at
from hypaware.home import Home

log = logging.getLogger("hypaware.daemon")

# A sleep of the machine or a jump of the clock is noticed within this time.
_POLL_SECONDS = 15.0
# Longer waits do not block the engine: the state records the time, and a later round continues.
_MAX_WAIT_SECONDS = 2.0
# Intents per stream in one job. A changed config takes effect between two jobs.
_BUDGET = 20


class ScheduleTimer:
    def __init__(self, schedule: str, now: datetime) -> None:
        self._schedule = schedule
        self.next = next_round_at(schedule, now)

    def is_due(self, now: datetime) -> bool:
        """Return whether a scheduled time has passed, and advance to the next one."""
        due = now >= self.next
        following = next_round_at(self._schedule, now)
        if due or following < self.next:
            self.next = following
        return due


class ExportTask:
    retry_on = (Retryable, NotReady)

    def __init__(self, engine: Engine, config: Config, sink: str, status: StatusFile, clock: TaskClock) -> None:
        self.name = f"{sink}: export"
        self._engine = engine
        self._home: Home = engine.home
        self._config = config
        self._sink = sink
        self._status = status
        self._clock = clock
        self._timer = ScheduleTimer(config.sinks[sink].schedule, clock.now())
        self._retry_at: datetime | None = None
        self._is_first_check = True

    async def wait(self, retry_in: float | None) -> None:
        if retry_in is not None:
            self._retry_at = self._clock.now() + timedelta(seconds=retry_in)
        self._status.update_sink(self._sink, next_round=self._next_round())
        while True:
            now = self._clock.now()
            if self._timer.is_due(now) or (self._retry_at is not None and now >= self._retry_at):
                return
            await self._clock.sleep(min(_POLL_SECONDS, (self._next_round() - now).total_seconds()))

    def _next_round(self) -> datetime:
        return self._timer.next if self._retry_at is None else min(self._timer.next, self._retry_at)

    async def check(self) -> None:
        self._retry_at = None
        is_progressing = True
        while True:
            due = await run_in_thread(self._due_at, f"state {self._sink}")
            self._is_first_check = False
            if due is None or due > self._clock.now():
                self._retry_at = due
                return
            if not is_progressing:
                return
            report = await run_cancellable_job(self._engine, "export", self._args(), self._on_event)
            (done,) = report["sinks"]
            self._report(done)
            # A job may end because its budget is used up. Continue immediately, unless it delivered nothing.
            is_progressing = any(stream["chunks"] for stream in done["streams"])

    def record_failure(self, _retry_in: float | None) -> None:
        self._status.update_sink(self._sink, last_round=self._clock.now(), last_status="failed")

    def _args(self) -> dict[str, Any]:
        return {"sinks": [self._sink], "max_wait": _MAX_WAIT_SECONDS, "budget": _BUDGET, "patient": True}

    def _due_at(self) -> datetime | None:
        from hypaware.export.status import next_due_time
        from hypaware.state.home_opener import open_home

        if not self._home.state.is_file():
            return None  # opening it would create a state in a home that may just have been removed
        with closing(open_home(self._home, make=False).store) as store:
            return next_due_time(
                self._home, self._config, store, self._sink, self._clock.now(), config_changed=self._is_first_check
            )

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
        self._status.update_sink(self._sink, last_round=self._clock.now(), last_status=done["status"])
