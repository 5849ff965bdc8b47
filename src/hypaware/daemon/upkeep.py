"""Keeps the lake in shape: compaction, retention and expiry, now and then, when something of it is due.

Whether anything is due is told from metadata and state: only then is the engine asked. Not in the quiet hours, and not
on battery unless the config allows it; what is due waits until then. Beside everything else that the daemon does, and
cancelled with it: maintenance may be broken off at any moment. A server keeps its lake in the same way, with reasons of
its own to wait (`hypaware.server.upkeep`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from hypaware.config import Config, MaintainConfig, hours
from hypaware.daemon.backoff import Backoff
from hypaware.daemon.clock import Clock
from hypaware.daemon.engine_job import run_job
from hypaware.daemon.offload import on_thread
from hypaware.daemon.power import on_battery
from hypaware.engine.jobs import Event
from hypaware.engine.launch import Engine
from hypaware.errors import HypError
from hypaware.home import Home

log = logging.getLogger("hypaware.daemon")

# A new config, the end of quiet hours and a plug in its socket are noticed within this time.
_LOOK_SECONDS = 60.0
# A machine that is never on for a whole interval has its turn too.
_FIRST_SECONDS = 300.0


@dataclass(frozen=True)
class Look:
    due: bool
    warnings: tuple[str, ...] = ()


class Condition(Protocol):
    """Who is told how it goes."""

    def awaits_upkeep(self, next_look: datetime | None, waits: str | None = None) -> None: ...

    def had_upkeep(self, at: datetime, status: str) -> None: ...


def why_not_now(settings: MaintainConfig, now: datetime, battery: Callable[[], bool | None] = on_battery) -> str | None:
    """None if nothing speaks against it."""
    if why := quiet_hours(settings, now):
        return why
    if not settings.on_battery and battery():
        return "maintenance waits until the machine is plugged in"
    return None


def quiet_hours(settings: MaintainConfig, now: datetime) -> str | None:
    if settings.quiet_hours and hours.parse(settings.quiet_hours).hold(now.astimezone().time()):
        return f"maintenance waits for the end of the quiet hours ({settings.quiet_hours})"
    return None


class Upkeep:
    def __init__(
        self,
        engine: Engine,
        config: Callable[[], Config],
        condition: Condition,
        clock: Clock,
        *,
        why_not: Callable[[MaintainConfig, datetime], str | None] = why_not_now,
        log: logging.Logger = log,
    ) -> None:
        self._engine = engine
        self._home: Home = engine.home
        self._config = config
        self._in_force = config()
        self._condition = condition
        self._clock = clock
        self._why_not = why_not
        self._log = log
        self._backoff = Backoff()
        self._last = clock.monotonic()
        self._pause: float | None = _FIRST_SECONDS
        self._said: set[str] = set()
        self._announced: object = ()

    async def run(self) -> None:
        while True:
            # One for the whole look: one that turns it off would else begin it, by the retention that it brings.
            self._in_force = self._config()
            wait = self._wait()
            if wait is None or wait > 0:
                self._announce(wait)
                await self._clock.sleep(_LOOK_SECONDS if wait is None else min(wait, _LOOK_SECONDS))
            elif why := await on_thread(self._not_now, "power"):
                self._say(why)
                self._condition.awaits_upkeep(None, why)
                await self._clock.sleep(_LOOK_SECONDS)
            else:
                await self._turn()

    def _wait(self) -> float | None:
        """Seconds until the next look; None while the config has turned it off."""
        if not (interval := self._settings.interval):
            return None
        return self._last + (interval if self._pause is None else min(self._pause, interval)) - self._clock.monotonic()

    def _announce(self, wait: float | None) -> None:
        """When the next look is, told once for each."""
        which = None if wait is None else (self._last, self._pause, self._settings.interval)
        if which != self._announced:
            self._announced = which
            at = None if wait is None else self._clock.now() + timedelta(seconds=wait)
            self._condition.awaits_upkeep(at, "off" if at is None else None)

    def _not_now(self) -> str | None:
        return self._why_not(self._settings, self._clock.now())

    async def _turn(self) -> None:
        self._last, self._pause = self._clock.monotonic(), None
        try:
            look = await on_thread(self._look, "upkeep")
            self._said &= set(look.warnings)
            for warning in look.warnings:
                self._say(warning)
            if look.due:
                await self._maintain()
            self._backoff.succeeded()
        except HypError as trouble:
            self._pause = self._backoff.failed()
            self._log.warning("the lake was not maintained: %s; again in %.0f s", trouble.message, self._pause)
            self._condition.had_upkeep(self._clock.now(), "failed")
        except Exception:
            self._log.exception("the lake was not maintained; it is tried again at the next look")
            self._condition.had_upkeep(self._clock.now(), "failed")

    def _look(self) -> Look:
        from hypaware.maintain import due, retention
        from hypaware.opening import open_home

        if not self._home.state.is_file():
            return Look(due=False)  # it would be made, in a home that may just have been removed
        config, now = self._in_force, self._clock.now()
        with closing(open_home(self._home, make=False).store) as store:
            warnings = retention.about_to_go(self._home, config, store, now)
            return Look(bool(due.all_due(self._home, config, store, now)), tuple(warnings))

    async def _maintain(self) -> None:
        args = {"dataset": None, "budget": self._settings.budget}
        report = await run_job(self._engine, "maintain", args, self._heard)
        failed = False
        for each in report["datasets"]:
            if each["reason"] != "nothing to do":
                self._log.info("%s: %s", each["dataset"], each["reason"])
            for error in each.get("errors", ()):
                failed = True
                self._log.warning("%s: %s", each["dataset"], error)
        self._condition.had_upkeep(self._clock.now(), "partial" if failed else "ok")

    def _heard(self, event: Event) -> None:
        if not isinstance(event, bytes) and event["event"] == "note":
            self._say(str(event["message"]))

    def _say(self, what: str) -> None:
        """Once: what was said already is not said at every look."""
        if what not in self._said:
            self._said.add(what)
            self._log.log(
                logging.WARNING if what.startswith("warning: ") else logging.INFO, "%s", what.removeprefix("warning: ")
            )

    @property
    def _settings(self) -> MaintainConfig:
        return self._in_force.maintain
