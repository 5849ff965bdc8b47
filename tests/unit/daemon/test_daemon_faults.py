"""The daemon under faults: kills, sleep, clock jumps, a full disk and an unreachable network."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

from hypaware import config
from hypaware.config import MaintainConfig
from hypaware.daemon.status_file import StatusFile
from hypaware.daemon.tasks import ExportTask
from hypaware.engine import client
from hypaware.engine.background import TaskClock, run_periodic_task
from hypaware.engine.launcher import Engine
from hypaware.home import Home, daemon_process
from hypaware.maintain.task import find_reason_to_wait
from tests.support import light_home, processes, small_disk
from tests.support.daemon_home import NO_CLIENTS, DaemonHome, RunningDaemon, count_delivered, last_status
from tests.support.delivery_home import DeliveryHome, key
from tests.support.delivery_jobs import rounds_of
from tests.support.ports import FreePort
from tests.support.processes import eventually
from tests.support.rows import rows

_FAILED = "flush failed"
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def engine_pid(home: Home) -> int | None:
    found = client.engine_status(home)
    return int(found["pid"]) if found["state"] == "running" else None


def committed(running: RunningDaemon) -> int:
    return sum(map(int, re.findall(r"(\d+) rows committed", running.log)))


def reported(home: Home, part: str) -> str:
    return str(daemon_process.read_daemon_status(home).get(part, {}).get("last_status"))


# Kills


def test_next_daemon_works_after_a_killed_one(daemon: DaemonHome, tmp_path: Path) -> None:
    (daemon.home.root / "wait-archive").touch()
    light_home.append(daemon.home, rows(6))
    with daemon.running() as first:
        eventually(lambda: rounds_of(daemon.home))
        processes.kill(first.process)
    assert daemon_process.running_daemon(daemon.home) is None
    assert daemon_process.read_daemon_status(daemon.home)["pid"] == first.process.pid, (
        "a killed daemon cannot remove its status file"
    )
    light_home.append(daemon.home, rows(2, start=6))
    (daemon.home.root / "wait-archive").unlink()
    with daemon.running() as second:
        eventually(lambda: count_delivered(tmp_path / "archive") == 8)
        # The engine outlived the first daemon and may finish before the second daemon writes its status file.
        eventually(lambda: daemon_process.read_daemon_status(daemon.home)["pid"] == second.process.pid)
        second.stop()


def test_dying_engine_is_retried_with_backoff_and_a_killed_one_is_restarted(
    daemon: DaemonHome,
) -> None:
    daemon.home.config.write_text(NO_CLIENTS)
    (daemon.home.root / "die-flush").write_text("2")
    light_home.append(daemon.home, rows(6))
    with replace(daemon, jobs="tests.support.fatal_jobs").running() as running:
        eventually(lambda: committed(running) == 6)
        assert re.findall(r"the engine died while running flush.*; retrying in (\d+) s", running.log) == ["1", "2"]
        eventually(lambda: reported(daemon.home, "flush") == "ok")
        first = engine_pid(daemon.home)
        assert first is not None
        os.kill(first, signal.SIGKILL)
        processes.wait_until_gone(first)
        light_home.append(daemon.home, rows(3, start=6))
        eventually(lambda: committed(running) == 9)
        assert engine_pid(daemon.home) not in (None, first)
        running.stop()


# Disk and network


@pytest.mark.hazard(13)
def test_daemon_survives_a_full_disk_and_continues_when_space_is_free(daemon: DaemonHome, tmp_path: Path) -> None:
    with small_disk.mounted(tmp_path / "disk", "16m") as disk:
        there = replace(daemon, deliveries=DeliveryHome(Home(disk.root / "home")))
        there.deliveries.declare(archive=tmp_path / "archive")
        try:
            with there.running() as running:
                # Stop the process, so that it does not write while the disk is filled.
                running.process.send_signal(signal.SIGSTOP)
                eventually(lambda: psutil.Process(running.process.pid).status() == psutil.STATUS_STOPPED)
                light_home.append(there.home, rows(6))
                disk.fill()
                running.process.send_signal(signal.SIGCONT)
                eventually(lambda: _FAILED in running.log)
                assert running.process.poll() is None
                disk.make_room()
                eventually(lambda: count_delivered(tmp_path / "archive") == 6)
                running.stop()
        finally:
            client.stop_engine(there.home)


def test_unreachable_destination_is_retried_less_often_and_does_not_delay_another(
    daemon: DaemonHome, tmp_path: Path, free_port: FreePort
) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    token = tmp_path / "token"
    token.write_text("a-token")
    token.chmod(0o600)
    daemon.deliveries.declare(archive=tmp_path / "archive")
    with daemon.home.config.open("a") as config:
        config.write(f'[sinks.team]\nkind = "forward"\nurl = "{nobody}"\ntoken_file = "{token}"\n')
    light_home.append(daemon.home, rows(6))
    with daemon.running() as running:
        eventually(lambda: last_status(daemon.home, "team") == "failed")
        eventually(lambda: count_delivered(tmp_path / "archive") == 6)
        eventually(lambda: daemon.deliveries.stream(key("team")).attempts >= 3)
        stream = daemon.deliveries.stream(key("team"))
        assert (stream.watermark, stream.held) == (None, None)
        assert stream.retry_at is not None
        assert stream.updated_at is not None
        assert stream.retry_at - stream.updated_at > timedelta(seconds=2)
        light_home.append(daemon.home, rows(4, start=6))
        eventually(lambda: count_delivered(tmp_path / "archive") == 10)
        assert "cannot be reached" in running.log
        running.stop()


# Sleep and clocks


class Scripted(TaskClock):
    """A clock whose sleeps end at scripted wall-clock times; after the last one the task is cancelled."""

    def __init__(self, now: datetime, wakes: Iterable[datetime]) -> None:
        self._now = now
        self._wakes = iter(wakes)
        self.slept: list[float] = []

    def now(self) -> datetime:
        return self._now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        try:
            self._now = next(self._wakes)
        except StopIteration:
            raise asyncio.CancelledError from None


class Seen(StatusFile):
    """Records the end of each round and the time of the next one."""

    def __init__(self, home: Home, clock: TaskClock) -> None:
        super().__init__(home, clock.now())
        self._clock = clock
        self.rounds: list[tuple[datetime, datetime]] = []

    def update_sink(self, sink: str, **facts: object) -> None:
        if isinstance(next_round := facts.get("next_round"), datetime):
            self.rounds.append((self._clock.now(), next_round))


def rounds(home: Home, schedule: str, clock: Scripted) -> list[tuple[datetime, datetime]]:
    """Return the rounds (time, next time) of a sink with nothing to deliver. The first entry is the start."""
    home.root.mkdir(exist_ok=True)
    home.config.write_text(f'version = 1\n[sinks.a]\nkind = "blob"\ndestination = "/x"\nschedule = "{schedule}"\n')
    seen = Seen(home, clock)
    task = ExportTask(Engine(home), config.load(home), "a", seen, clock)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run_periodic_task(task, logging.getLogger("hypaware.daemon")))
    return seen.rounds


def test_one_round_runs_after_eight_hours_of_sleep_and_then_the_schedule_continues(home: Home) -> None:
    woken = NOON + timedelta(hours=8, minutes=31)
    clock = Scripted(NOON + timedelta(minutes=30), [woken, woken + timedelta(minutes=29)])
    assert rounds(home, "0 * * * *", clock) == [
        (NOON + timedelta(minutes=30), NOON + timedelta(hours=1)),
        (woken, NOON + timedelta(hours=9)),
        (NOON + timedelta(hours=9), NOON + timedelta(hours=10)),
    ]
    assert max(clock.slept) <= 15, "the end of the machine's sleep is noticed soon"


def test_schedule_survives_a_clock_set_back_by_an_hour_without_a_repeated_round(home: Home) -> None:
    steps = [timedelta(hours=1), timedelta(minutes=1), timedelta(minutes=30), timedelta(hours=1), timedelta(hours=2)]
    clock = Scripted(NOON + timedelta(minutes=50), [NOON + each for each in steps])
    assert [at for at, _ in rounds(home, "0 * * * *", clock)[1:]] == [
        NOON + timedelta(hours=1),
        # The clock was set back to 12:01. The second 13:00 is scheduled, 12:30 is not.
        NOON + timedelta(hours=1),
        NOON + timedelta(hours=2),
    ]


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize("night", [datetime(2026, 3, 28, 22, tzinfo=UTC), datetime(2026, 10, 24, 22, tzinfo=UTC)])
def test_every_hour_has_a_round_when_daylight_saving_changes(home: Home, night: datetime) -> None:
    hours = [night + timedelta(hours=count) for count in range(1, 9)]
    assert [at for at, _ in rounds(home, "0 * * * *", Scripted(night, hours))[1:]] == hours


@pytest.mark.usefixtures("berlin")
def test_quiet_hours_follow_local_time_when_daylight_saving_changes() -> None:
    quiet = MaintainConfig(quiet_hours="22:00-07:00", on_battery=True)

    def waits(day: int, hour: int, minute: int) -> bool:
        return find_reason_to_wait(quiet, datetime(2026, 3, day, hour, minute, tzinfo=UTC), lambda: None) is not None

    # 07:00 local time is 06:00 UTC in winter and 05:00 UTC from 29 March on.
    assert (waits(28, 5, 59), waits(28, 6, 0)) == (True, False)
    assert (waits(29, 4, 59), waits(29, 5, 0)) == (True, False)
