"""The server's lake is kept in shape as a daemon keeps it: by the same settings, and by the same code.

The machine's battery is no reason to wait here. A daemon of the same home is: it does this already, and one is enough.
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


def upkeep(engine: Engine, config: Callable[[], Config], meters: Meters, clock: Clock) -> Upkeep:
    return Upkeep(engine, config, _Counted(meters), clock, why_not=partial(why_not_now, engine.home), log=log)


def why_not_now(home: Home, settings: MaintainConfig, now: datetime) -> str | None:
    """None if nothing speaks against it."""
    if lock_file.is_taken(instance.lock_path(home)):
        return "maintenance is left to the daemon that runs in this home"
    return quiet_hours(settings, now)


class _Counted:
    """What there is to tell stands in the log; `/metrics` counts how it ended."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters

    def awaits_upkeep(self, next_look: datetime | None, waits: str | None = None) -> None:
        pass

    def had_upkeep(self, at: datetime, status: str) -> None:
        self._meters.maintained(status)
