"""The rounds of one sink, one after the other, by its schedule; each sink has a task of its own.

Whether there is anything to do is told from the state alone: only then is the engine asked. A destination that asked
for patience is visited again at the time that it named, an engine that died is tried again after a moment, both
without waiting for the schedule. Nothing that goes wrong here ends the rounds, and no sink waits for another.
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

# A machine that slept, or a clock that jumped, is noticed within this time.
_LOOK_SECONDS = 15.0
# The rest of a wait is not waited out in the engine: it is written down, and the round comes back for it.
_MAX_WAIT_SECONDS = 2.0
# Intents of each stream in one job: between two jobs a new config takes effect.
_BUDGET = 20


class Rounds:
    def __init__(self, engine: Engine, config: Config, sink: str, condition: Condition, clock: Clock) -> None:
        self._engine = engine
        self._home: Home = engine.home
        self._config = config
        self._sink = sink
        self._condition = condition
        self._clock = clock
        self._backoff = Backoff()
        self._anew = True
        self._said: str | None = None

    async def run(self) -> None:
        timer = Timer(self._config.sinks[self._sink].schedule, self._clock.now())
        again: datetime | None = None
        while True:
            self._condition.awaits(self._sink, timer.next if again is None else min(timer.next, again))
            await self._until(timer, again)
            again = await self._guarded_round()

    async def _until(self, timer: Timer, again: datetime | None) -> None:
        while True:
            now = self._clock.now()
            if timer.is_due(now) or (again is not None and now >= again):
                return
            following = timer.next if again is None else min(timer.next, again)
            await self._clock.sleep(min(_LOOK_SECONDS, (following - now).total_seconds()))

    async def _guarded_round(self) -> datetime | None:
        """When to come back before the schedule says so."""
        try:
            again = await self._round()
            self._backoff.succeeded()
            self._said = None
            return again
        except (Retryable, NotReady) as trouble:
            pause = self._backoff.failed()
            self._say(trouble, f"; again in {pause:.0f} s")
            self._condition.had_round(self._sink, self._clock.now(), "failed")
            return self._clock.now() + timedelta(seconds=pause)
        except HypError as trouble:
            self._say(trouble)
        except Exception:
            log.exception("%s: the round failed; the next one comes by schedule", self._sink)
        self._condition.had_round(self._sink, self._clock.now(), "failed")
        return None

    async def _round(self) -> datetime | None:
        moves = True
        while True:
            due = await on_thread(self._due_at, f"state {self._sink}")
            self._anew = False
            if due is None or due > self._clock.now():
                return due
            if not moves:
                return None
            report = await run_job(self._engine, "export", self._args(), self._heard)
            (done,) = report["sinks"]
            self._tell(done)
            # A budget ends a job before its time: what is left goes on at once, unless nothing went at all.
            moves = any(stream["chunks"] for stream in done["streams"])

    def _args(self) -> dict[str, Any]:
        return {"sinks": [self._sink], "max_wait": _MAX_WAIT_SECONDS, "budget": _BUDGET, "patient": True}

    def _due_at(self) -> datetime | None:
        from hypaware.export.status import due_at
        from hypaware.opening import open_home

        if not self._home.state.is_file():
            return None  # it would be made, in a home that may just have been removed
        with closing(open_home(self._home, make=False).store) as store:
            return due_at(self._home, self._config, store, self._sink, self._clock.now(), anew=self._anew)

    def _heard(self, event: Event) -> None:
        if not isinstance(event, bytes) and event["event"] == "note":
            log.info("%s: %s", self._sink, event["message"])

    def _tell(self, done: dict[str, Any]) -> None:
        rows = sum(stream["rows"] for stream in done["streams"])
        size = sum(stream["bytes"] for stream in done["streams"])
        log.info("%s: %s, %s rows delivered (%.1f MB)", self._sink, done["status"], f"{rows:,}", size / 1e6)
        if error := done.get("error"):
            log.warning("%s: %s", self._sink, error["message"])
        for stream in done["streams"]:
            if (error := stream.get("error")) and error != done.get("error"):
                log.warning("%s: %s of %s: %s", self._sink, stream["dataset"], stream["source"], error["message"])
        self._condition.had_round(self._sink, self._clock.now(), done["status"])

    def _say(self, trouble: HypError, what_now: str = "") -> None:
        """What was said already is not said at every tick."""
        repair = f" (try: {trouble.repair[0]})" if trouble.repair else ""
        said = f"{trouble.message}{what_now}{repair}"
        if said != self._said:
            log.warning("%s: %s", self._sink, said)
        self._said = said
