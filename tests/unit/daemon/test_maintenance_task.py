"""The daemon's maintenance: only if something is due, outside quiet hours, concurrently with other tasks."""

from __future__ import annotations

import asyncio
import logging
import sys
from datetime import UTC, datetime, time, timedelta
from pathlib import Path

import pytest

from hypaware import config
from hypaware.config import Config, MaintainConfig, RetentionConfig, values
from hypaware.daemon import status_file
from hypaware.engine.background import TaskClock, run_periodic_task
from hypaware.engine.launcher import Engine
from hypaware.errors import ConfigError, NotReady
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.maintain import task
from hypaware.maintain.task import MaintenanceTask, find_reason_to_wait
from tests.support import light_home
from tests.support.daemon_home import DaemonHome, count_delivered, daemon_part, wait_for_checks
from tests.support.delivery_home import write_config
from tests.support.delivery_jobs import maintenances_of
from tests.support.light_lake import read_lake
from tests.support.processes import eventually
from tests.support.rows import of_age, rows

LONG_AGO, TODAY = of_age(90), of_age(0)


def declare(daemon: DaemonHome, text: str) -> None:
    """Write a config without sinks, unless the test adds them."""
    daemon.home.root.mkdir(exist_ok=True)
    write_config(daemon.home, f'version = 1\n[gateway]\nlisten = "127.0.0.1:0"\n{text}')
    config.load(daemon.home)


def kept(home: Home) -> int:
    return len(read_lake(home, light_home.DATASET))


@pytest.mark.hazard(40)
def test_expired_days_are_removed_automatically(daemon: DaemonHome) -> None:
    declare(daemon, '[retention]\ndefault_days = 30\n[maintain]\ninterval = "2m"\nbudget = "90s"\n')
    light_home.append(daemon.home, rows(2, message_created_at=LONG_AGO) + rows(3, start=2, message_created_at=TODAY))
    light_home.flush(daemon.home)
    with daemon.running() as running:
        eventually(lambda: kept(daemon.home) == 3)
        eventually(lambda: daemon_part(daemon.home, "maintain").get("last_status") == "ok")
        wait_for_checks(daemon.home, "maintain")
        assert "dropped 2 rows of 1 day before" in running.log
        assert running.stop() == "\n", "the process imports neither Spark nor Arrow"
    assert maintenances_of(daemon.home) == [{"dataset": None, "budget": 90.0}]
    assert metadata.read_retention_start(daemon.home, light_home.DATASET) is not None


def test_engine_is_not_started_if_nothing_is_due_or_maintenance_is_off(daemon: DaemonHome) -> None:
    declare(daemon, '[maintain]\ninterval = "1m"\n')
    light_home.append(daemon.home, rows(3, message_created_at=LONG_AGO))
    light_home.flush(daemon.home)
    with daemon.running():
        wait_for_checks(daemon.home, "maintain")
        declare(daemon, '[retention]\ndefault_days = 30\n[maintain]\ninterval = "off"\n')
        eventually(lambda: daemon_part(daemon.home, "maintain").get("next_look") is None)
    assert (maintenances_of(daemon.home), kept(daemon.home)) == ([], 3)
    assert not daemon.home.engine.exists()


class Leaping(TaskClock):
    """A clock whose sleeps end immediately; the second one cancels the task."""

    def __init__(self) -> None:
        self.passed: list[float] = []

    def monotonic(self) -> float:
        return sum(self.passed)

    async def sleep(self, seconds: float) -> None:
        self.passed.append(seconds)
        if len(self.passed) == 2:
            raise asyncio.CancelledError


def test_config_that_turns_maintenance_off_during_a_check_starts_nothing(home: Home) -> None:
    light_home.append(home, rows(3, message_created_at=LONG_AGO))
    light_home.flush(home)
    home.run.mkdir(exist_ok=True)
    configs = [Config(maintain=MaintainConfig(interval=60.0))]
    off = Config(retention=RetentionConfig(default_days=30), maintain=MaintainConfig(interval=0.0))

    def no_reason_to_wait(_settings: MaintainConfig, _now: datetime) -> None:
        configs.append(off)

    def no_engine() -> None:
        raise NotReady("no engine may be started")

    seen = status_file.StatusFile(home, datetime.now(UTC))
    engine = Engine(home, check=no_engine)
    task = MaintenanceTask(engine, lambda: configs[-1], seen, Leaping(), reason_to_wait=no_reason_to_wait)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run_periodic_task(task, logging.getLogger("hypaware.daemon")))
    assert configs[-1] is off
    assert daemon_part(home, "maintain") == {"next_look": None, "waits": "off", "last_run": None, "last_status": None}


def test_maintenance_waits_for_the_end_of_the_quiet_hours(daemon: DaemonHome) -> None:
    here = datetime.now(UTC).astimezone()
    quiet = values.DailyPeriod(here.time(), (here - timedelta(minutes=2)).time())
    settings = '[retention]\ndefault_days = 30\n[maintain]\ninterval = "1m"\n'
    declare(daemon, f'{settings}quiet_hours = "{quiet}"\n')
    light_home.append(daemon.home, rows(3, message_created_at=LONG_AGO))
    light_home.flush(daemon.home)
    with daemon.running() as running:
        eventually(lambda: "maintenance waits for the end of the quiet hours" in running.log)
        assert (maintenances_of(daemon.home), kept(daemon.home)) == ([], 3)
        declare(daemon, settings)
        eventually(lambda: kept(daemon.home) == 0)
        assert running.log.count("quiet hours") == 1


def test_maintenance_delays_no_delivery_and_ends_with_the_daemon(daemon: DaemonHome, tmp_path: Path) -> None:
    sink = f'[sinks.archive]\nkind = "blob"\ndestination = "{tmp_path / "archive"}"\nschedule = "* * * * *"\n'
    declare(daemon, f'[retention]\ndefault_days = 30\nwait_for_sinks = false\n[maintain]\ninterval = "1m"\n{sink}')
    light_home.append(daemon.home, rows(3, message_created_at=LONG_AGO))
    light_home.flush(daemon.home)
    (daemon.home.root / "wait-maintain").touch()
    with daemon.running() as running:
        eventually(lambda: maintenances_of(daemon.home))
        light_home.append(daemon.home, rows(4, start=3, message_created_at=TODAY))
        eventually(lambda: count_delivered(tmp_path / "archive") == 7)
        running.stop()
    eventually(lambda: (daemon.home.root / "cancelled-maintain").exists())
    assert len(maintenances_of(daemon.home)) == 1


def test_maintenance_is_retried_after_the_engine_died(daemon: DaemonHome) -> None:
    declare(daemon, '[retention]\ndefault_days = 30\n[maintain]\ninterval = "5m"\n')
    light_home.append(daemon.home, rows(3, message_created_at=LONG_AGO))
    light_home.flush(daemon.home)
    (daemon.home.root / "die-maintain").touch()
    with daemon.running() as running:
        eventually(lambda: kept(daemon.home) == 0)
        assert "maintenance failed: the engine died while running maintain" in running.log
        assert "retrying in 1 s" in running.log
    assert len(maintenances_of(daemon.home)) == 2


# Quiet hours and battery


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("22:00-07:00", [time(22), time(23, 59), time(0), time(6, 59)], [time(7), time(21, 59)]),
        ("9:30 - 17:00", [time(9, 30), time(16, 59)], [time(9, 29), time(17), time(23)]),
    ],
)
def test_quiet_hours_may_span_midnight(text: str, inside: list[time], outside: list[time]) -> None:
    found = values.parse_period(text)
    assert all(map(found.contains, inside))
    assert not any(map(found.contains, outside))
    assert values.parse_period(str(found)) == found


@pytest.mark.parametrize("text", ["22-7", "24:00-07:00", "22:00-22:00", "22:00", "a:00-b:00"])
def test_invalid_quiet_hours_are_rejected(daemon: DaemonHome, text: str) -> None:
    with pytest.raises(ConfigError, match=f'quiet_hours is "{text}".* expected a daily period'):
        declare(daemon, f'[maintain]\nquiet_hours = "{text}"\n')


def test_maintenance_waits_on_battery_unless_the_config_allows_it() -> None:
    now = datetime.now(UTC)
    settings = MaintainConfig()
    assert find_reason_to_wait(settings, now, lambda: True) == "maintenance waits until the machine is plugged in"
    assert find_reason_to_wait(settings, now, lambda: False) is None
    assert find_reason_to_wait(settings, now, lambda: None) is None, "maintenance runs if the power source is unknown"
    assert find_reason_to_wait(MaintainConfig(on_battery=True), now, lambda: True) is None


def supply(folder: Path, name: str, **files: str) -> None:
    (folder / name).mkdir(parents=True)
    for file, text in files.items():
        (folder / name / file).write_text(text + "\n")


def test_linux_battery_is_read_from_power_supplies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "_SUPPLIES", tmp_path / "power_supply")
    monkeypatch.setattr(sys, "platform", "linux")
    assert task.is_on_battery() is None
    folder = tmp_path / "power_supply"
    supply(folder, "mouse", type="Battery", scope="Device", status="Discharging")
    assert task.is_on_battery() is None
    supply(folder, "BAT0", type="Battery", status="Discharging")
    assert task.is_on_battery() is True
    supply(folder, "AC", type="Mains", online="1")
    assert task.is_on_battery() is False
    (folder / "AC" / "online").write_text("0\n")
    (folder / "BAT0" / "status").write_text("Full\n")
    assert task.is_on_battery() is False


def test_macos_battery_is_read_from_pmset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert task.is_on_battery() is None, "pmset is not installed"
    pmset = tmp_path / "pmset"
    for source, expected in (("Battery Power", True), ("AC Power", False), ("Something", None)):
        pmset.write_text(f"#!/bin/sh\necho \"Now drawing from '{source}'\"\n")
        pmset.chmod(0o755)
        assert task.is_on_battery() is expected
