"""Maintain the server's lake with the daemon's maintenance task and settings.

The server ignores the machine's battery. It waits while a daemon runs in the same home, which already does the
maintenance.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial

from hypaware import lock_file
from hypaware.config import Config, MaintainConfig
from hypaware.daemon import instance
from hypaware.daemon.clock import Clock
from hypaware.daemon.upkeep import Upkeep, quiet_hours
from hypaware.engine.launch import Engine
from hypaware.home import Home
from hypaware.server.meters import Meters
from hypaware.server.trouble import log


def upkeep(engine: Engine, config: Callable[[], Config], metrics: Meters, clock: Clock) -> Upkeep:
    return Upkeep(engine, config, _Counted(metrics), clock, reason_to_wait=partial(why_not_now, engine.home), log=log)


def why_not_now(home: Home, settings: MaintainConfig, now: datetime) -> str | None:
    """Return why maintenance has to wait, or None if it may run."""
    if lock_file.is_taken(instance.lock_path(home)):
        return "the daemon that runs in this home does the maintenance"
    return quiet_hours(settings, now)


class _Counted:
    """Counts the maintenance runs for `/metrics`."""

    def __init__(self, metrics: Meters) -> None:
        self._metrics = metrics

    def set_next_maintenance(self, at: datetime | None, reason_to_wait: str | None = None) -> None:
        pass

    def record_maintenance(self, at: datetime, status: str) -> None:
        self._metrics.maintained(status)
