"""Schedules under clock jumps, and the backoff after failures."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypaware.daemon.tasks import ScheduleTimer
from hypaware.engine.background import Backoff

NOON = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


def after(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def test_every_scheduled_time_is_due_once() -> None:
    timer = ScheduleTimer("*/5 * * * *", after(0.5))
    found = [minute for minute in range(1, 21) if timer.is_due(after(minute))]
    assert found == [5, 10, 15, 20]
    assert timer.next == after(25)


def test_times_missed_during_sleep_are_due_once() -> None:
    timer = ScheduleTimer("* * * * *", NOON)
    assert timer.is_due(after(600.5))
    assert not timer.is_due(after(600.9))
    assert timer.next == after(601)


def test_clock_set_back_does_not_stop_the_schedule() -> None:
    timer = ScheduleTimer("*/5 * * * *", after(60 * 24 * 365))
    assert not timer.is_due(after(1))
    assert timer.next == after(5)
    assert timer.is_due(after(5))


def test_clock_set_back_repeatedly_makes_nothing_due_early() -> None:
    timer = ScheduleTimer("*/5 * * * *", NOON)
    assert not any(timer.is_due(after(minute)) for minute in (4, 3, 2, 1, 4, 1))


def test_backoff_starts_at_one_second_and_ends_at_five_minutes() -> None:
    backoff = Backoff()
    pauses = [backoff.failed() for _ in range(40)]
    assert pauses[:4] == [1, 2, 4, 8]
    assert pauses == sorted(pauses)
    assert max(pauses) == 300
    backoff.succeeded()
    assert backoff.failed() == 1
