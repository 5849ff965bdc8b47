"""Maintain the lake periodically: compaction, retention and expiry, whenever a dataset is due.

A check reads metadata and state and calls the engine only if a dataset is due. Maintenance waits during the quiet
hours, and on battery unless the config allows it. It runs concurrently with the daemon's other tasks and is cancelled
with them, which is safe at any moment. The server uses the same task with its own reasons to wait.

Battery power is read from `/sys/class/power_supply/*/{type,online,status,scope}` on Linux, without peripherals such as
a mouse, whose batteries have the scope `Device`, and from `pmset -g batt` on macOS.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hypaware.config import Config, MaintainConfig, values
from hypaware.engine.background import TaskClock, run_cancellable_job, run_in_thread
from hypaware.engine.jobs import Event
from hypaware.engine.launcher import Engine
from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.lake import health, snapshots
from hypaware.maintain import compact_plan, retention_plan
from hypaware.maintain.context import MaintenanceReport
from hypaware.model import datasets
from hypaware.model.datasets import Dataset
from hypaware.state.home_opener import open_home
from hypaware.state.location import has_state

if TYPE_CHECKING:
    from hypaware.state.store import StateStore

log = logging.getLogger("hypaware.daemon")

# A changed config, the end of the quiet hours and mains power are noticed within this time.
_POLL_SECONDS = 60.0
# Short, so that a machine that never runs for a whole interval is maintained too.
_FIRST_SECONDS = 300.0
_SUPPLIES = Path("/sys/class/power_supply")
_PMSET_SECONDS = 5.0


class TaskStatus(Protocol):
    def update(self, part: str, **facts: object) -> None: ...


def find_due_datasets(
    home: Home, config: Config, store: StateStore, now: datetime, only: str | None = None
) -> list[str]:
    """Return the datasets with work to do, limited to the step `only` as in the job `maintain`."""
    found = []
    damaged = health.find_damaged_tables(home)
    for entry in metadata.list_tables(home):
        # A table whose plugin is not installed is left alone, and so is one that only a rebuild can help.
        if entry.name not in datasets.list_names() or entry.name in damaged:
            continue
        table = metadata.read_metadata(entry.metadata)
        # A single pending settlement is enough for a compaction.
        needs_compaction = only != "expire" and bool(
            health.list_settlements(home, entry.name) or compact_plan.plan_compaction(metadata.iter_cached_files(table))
        )
        needs_expiry = only != "compact" and (
            snapshots.is_expiry_due(table)
            or retention_plan.is_retention_due(home, config, store, datasets.get(entry.name), now)
        )
        if needs_compaction or needs_expiry:
            found.append(entry.name)
    return found


def idle_report(
    home: Home, config: Config, store: StateStore, wanted: Sequence[Dataset], now: datetime, only: str | None
) -> dict[str, Any]:
    """Return the report of `hyp maintain` if no dataset is due. It includes rows held for a sink."""
    reports = []
    damaged = health.find_damaged_tables(home)
    for dataset in wanted:
        if dataset.name in damaged:
            reports.append(MaintenanceReport(dataset.name, errors=[damaged[dataset.name].message]).as_json())
            continue
        entry = metadata.find_table(home, dataset.name)
        assert entry is not None
        files = list(metadata.iter_cached_files(metadata.read_metadata(entry.metadata)))
        size = sum(file.bytes for file in files)
        report = MaintenanceReport(dataset.name, len(files), len(files), size, size)
        plan = retention_plan.plan_retention(home, config, store, dataset, now)
        if only != "compact" and plan.held:
            report.rows_held = plan.rows_held
            report.held = [held.as_json() for held in plan.held]
            report.reasons.append(retention_plan.describe_holds(plan.held))
        report.rows_without_time = plan.rows_without_time
        reports.append(report.as_json())
    return {"datasets": reports}


def is_on_battery() -> bool | None:
    """Return whether the machine runs on battery, or None if the platform does not say."""
    try:
        if sys.platform == "darwin":
            command = ["pmset", "-g", "batt"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PMSET_SECONDS, check=True)
            first, _, _ = done.stdout.partition("\n")
            if "'Battery Power'" in first:
                return True
            return False if "'AC Power'" in first else None
        supplies = sorted(_SUPPLIES.iterdir())
    except (OSError, subprocess.SubprocessError):
        return None
    batteries = []
    for supply in supplies:
        kind = _read_line(supply / "type")
        if kind in ("Mains", "USB") and _read_line(supply / "online") == "1":
            return False
        if kind == "Battery" and _read_line(supply / "scope") != "Device":
            batteries.append(_read_line(supply / "status"))
    return "Discharging" in batteries if batteries else None


def _read_line(path: Path) -> str | None:
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None


def find_reason_to_wait(
    settings: MaintainConfig, now: datetime, battery: Callable[[], bool | None] = is_on_battery
) -> str | None:
    """Return why maintenance has to wait, or None if it may run."""
    if why := quiet_hours_reason(settings, now):
        return why
    if not settings.on_battery and battery():
        return "maintenance waits until the machine is plugged in"
    return None


def quiet_hours_reason(settings: MaintainConfig, now: datetime) -> str | None:
    if settings.quiet_hours and values.parse_period(settings.quiet_hours).contains(now.astimezone().time()):
        return f"maintenance waits for the end of the quiet hours ({settings.quiet_hours})"
    return None


class MaintenanceTask:
    name = "maintenance"
    retry_on = (HypError,)

    def __init__(
        self,
        engine: Engine,
        config: Callable[[], Config],
        status: TaskStatus,
        clock: TaskClock,
        *,
        reason_to_wait: Callable[[MaintainConfig, datetime], str | None] = find_reason_to_wait,
        log: logging.Logger = log,
    ) -> None:
        self._engine = engine
        self._config = config
        self._current_config = config()
        self._status = status
        self._clock = clock
        self._reason_to_wait = reason_to_wait
        self._log = log
        self._checked_at = clock.monotonic()
        self._pause: float | None = _FIRST_SECONDS
        self._logged: set[str] = set()
        self._announced: object = ()

    async def wait(self, retry_in: float | None) -> None:
        if retry_in is not None:
            self._pause = retry_in
        while True:
            # Use one config for the whole check. Otherwise a config that turns maintenance off could start a check
            # that applies its new retention.
            self._current_config = self._config()
            remaining = self._remaining()
            if remaining is None or remaining > 0:
                self._announce(remaining)
                await self._clock.sleep(_POLL_SECONDS if remaining is None else min(remaining, _POLL_SECONDS))
            elif why := await run_in_thread(lambda: self._reason_to_wait(self._settings, self._clock.now()), "power"):
                self._log_once(why)
                self._status.update("maintain", next_look=None, waits=why)
                await self._clock.sleep(_POLL_SECONDS)
            else:
                return

    def _remaining(self) -> float | None:
        """Return the seconds until the next check, or None while the config turns maintenance off."""
        if not (interval := self._settings.interval):
            return None
        pause = interval if self._pause is None else min(self._pause, interval)
        return self._checked_at + pause - self._clock.monotonic()

    def _announce(self, remaining: float | None) -> None:
        """Report the time of the next check, once per change."""
        key = None if remaining is None else (self._checked_at, self._pause, self._settings.interval)
        if key != self._announced:
            self._announced = key
            at = None if remaining is None else self._clock.now() + timedelta(seconds=remaining)
            self._status.update("maintain", next_look=at, waits="off" if at is None else None)

    async def check(self) -> None:
        self._checked_at, self._pause = self._clock.monotonic(), None
        is_due, warnings = await run_in_thread(self._find_due, "maintenance")
        self._logged &= set(warnings)
        for warning in warnings:
            self._log_once(warning)
        if not is_due:
            return
        args = {"dataset": None, "budget": self._settings.budget}
        report = await run_cancellable_job(self._engine, "maintain", args, self._on_event)
        failed = False
        for each in report["datasets"]:
            if each["reason"] != "nothing to do":
                self._log.info("%s: %s", each["dataset"], each["reason"])
            for error in each.get("errors", ()):
                failed = True
                self._log.warning("%s: %s", each["dataset"], error)
        self._status.update("maintain", last_run=self._clock.now(), last_status="partial" if failed else "ok")

    def record_failure(self, _retry_in: float | None) -> None:
        self._status.update("maintain", last_run=self._clock.now(), last_status="failed")

    def _find_due(self) -> tuple[bool, list[str]]:
        """Return whether anything is due, and the warnings about rows that will expire."""
        home, config, now = self._engine.home, self._current_config, self._clock.now()
        if not has_state(home):
            return False, []  # opening it would create a state in a home that may just have been removed
        with closing(open_home(home, make=False).store) as store:
            retention = retention_plan.retention_status(home, config, store, now)
            warnings = [warning for each in retention for warning in each["warnings"]]
            warnings += [f"warning: {error.message}" for error in health.find_damaged_tables(home).values()]
            return bool(find_due_datasets(home, config, store, now)), warnings

    def _on_event(self, event: Event) -> None:
        if not isinstance(event, bytes) and event["event"] == "note":
            self._log_once(str(event["message"]))

    def _log_once(self, message: str) -> None:
        if message not in self._logged:
            self._logged.add(message)
            level = logging.WARNING if message.startswith("warning: ") else logging.INFO
            self._log.log(level, "%s", message.removeprefix("warning: "))

    @property
    def _settings(self) -> MaintainConfig:
        return self._current_config.maintain
