"""Maintain the lake periodically: compaction, retention and expiry, whenever something is due.

A check reads metadata and state and calls the engine only if something is due. Maintenance waits during the quiet
hours, and on battery unless the config allows it. It runs concurrently with the other tasks and is cancelled with them,
which is safe at any moment. The server uses the same task with its own reasons to wait.
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

# A changed config, the end of the quiet hours and mains power are noticed within this time.
_POLL_SECONDS = 60.0
# Short, so that a machine that never runs for a whole interval is maintained too.
_FIRST_SECONDS = 300.0


@dataclass(frozen=True)
class Look:
    is_due: bool
    warnings: tuple[str, ...] = ()


class Condition(Protocol):
    """Receives the task's progress."""

    def set_next_maintenance(self, at: datetime | None, reason_to_wait: str | None = None) -> None: ...

    def record_maintenance(self, at: datetime, status: str) -> None: ...


def why_not_now(settings: MaintainConfig, now: datetime, battery: Callable[[], bool | None] = on_battery) -> str | None:
    """Return why maintenance has to wait, or None if it may run."""
    if why := quiet_hours(settings, now):
        return why
    if not settings.on_battery and battery():
        return "maintenance waits until the machine is plugged in"
    return None


def quiet_hours(settings: MaintainConfig, now: datetime) -> str | None:
    """Return the reason to wait if the time is within the quiet hours, or None."""
    if settings.quiet_hours and hours.parse(settings.quiet_hours).contains(now.astimezone().time()):
        return f"maintenance waits for the end of the quiet hours ({settings.quiet_hours})"
    return None


class Upkeep:
    def __init__(
        self,
        engine: Engine,
        config: Callable[[], Config],
        progress: Condition,
        clock: Clock,
        *,
        reason_to_wait: Callable[[MaintainConfig, datetime], str | None] = why_not_now,
        log: logging.Logger = log,
    ) -> None:
        self._engine = engine
        self._home: Home = engine.home
        self._config = config
        self._current_config = config()
        self._progress = progress
        self._clock = clock
        self._reason_to_wait = reason_to_wait
        self._log = log
        self._backoff = Backoff()
        self._checked_at = clock.monotonic()
        self._pause: float | None = _FIRST_SECONDS
        self._logged: set[str] = set()
        self._announced: object = ()

    async def run(self) -> None:
        while True:
            # Use one config for the whole check. Otherwise a config that turns maintenance off could start a check
            # that applies its new retention.
            self._current_config = self._config()
            wait = self._remaining()
            if wait is None or wait > 0:
                self._announce(wait)
                await self._clock.sleep(_POLL_SECONDS if wait is None else min(wait, _POLL_SECONDS))
            elif why := await on_thread(lambda: self._reason_to_wait(self._settings, self._clock.now()), "power"):
                self._log_once(why)
                self._progress.set_next_maintenance(None, why)
                await self._clock.sleep(_POLL_SECONDS)
            else:
                await self._check()

    def _remaining(self) -> float | None:
        """Return the seconds until the next check, or None while the config turns maintenance off."""
        if not (interval := self._settings.interval):
            return None
        pause = interval if self._pause is None else min(self._pause, interval)
        return self._checked_at + pause - self._clock.monotonic()

    def _announce(self, wait: float | None) -> None:
        """Report the time of the next check, once per change."""
        key = None if wait is None else (self._checked_at, self._pause, self._settings.interval)
        if key != self._announced:
            self._announced = key
            at = None if wait is None else self._clock.now() + timedelta(seconds=wait)
            self._progress.set_next_maintenance(at, "off" if at is None else None)

    async def _check(self) -> None:
        self._checked_at, self._pause = self._clock.monotonic(), None
        try:
            found = await on_thread(self._find_due, "maintenance")
            self._logged &= set(found.warnings)
            for warning in found.warnings:
                self._log_once(warning)
            if found.is_due:
                await self._maintain()
            self._backoff.succeeded()
        except HypError as error:
            self._pause = self._backoff.failed()
            self._log.warning("maintenance failed: %s; retrying in %.0f s", error.message, self._pause)
            self._progress.record_maintenance(self._clock.now(), "failed")
        except Exception:
            self._log.exception("maintenance failed; retrying at the next check")
            self._progress.record_maintenance(self._clock.now(), "failed")

    def _find_due(self) -> Look:
        from hypaware.maintain import due, retention
        from hypaware.opening import open_home

        if not self._home.state.is_file():
            return Look(is_due=False)  # opening it would create a state in a home that may just have been removed
        config, now = self._current_config, self._clock.now()
        with closing(open_home(self._home, make=False).store) as store:
            warnings = retention.about_to_go(self._home, config, store, now)
            return Look(bool(due.all_due(self._home, config, store, now)), tuple(warnings))

    async def _maintain(self) -> None:
        args = {"dataset": None, "budget": self._settings.budget}
        report = await run_job(self._engine, "maintain", args, self._on_event)
        failed = False
        for each in report["datasets"]:
            if each["reason"] != "nothing to do":
                self._log.info("%s: %s", each["dataset"], each["reason"])
            for error in each.get("errors", ()):
                failed = True
                self._log.warning("%s: %s", each["dataset"], error)
        self._progress.record_maintenance(self._clock.now(), "partial" if failed else "ok")

    def _on_event(self, event: Event) -> None:
        if not isinstance(event, bytes) and event["event"] == "note":
            self._log_once(str(event["message"]))

    def _log_once(self, message: str) -> None:
        """Log a message unless an earlier check logged it."""
        if message not in self._logged:
            self._logged.add(message)
            level = logging.WARNING if message.startswith("warning: ") else logging.INFO
            self._log.log(level, "%s", message.removeprefix("warning: "))

    @property
    def _settings(self) -> MaintainConfig:
        return self._current_config.maintain
