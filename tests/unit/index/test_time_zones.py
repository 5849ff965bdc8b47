"""The user's time zone, and the days of a zone."""

from __future__ import annotations

import io
import sqlite3
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.errors import UsageError
from hypaware.index.schema import SLOT
from hypaware.index.time_zones import _to_zone_file, day_sql, find_zone, list_ranges, week_sql

ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Pacific/Apia",
    "Africa/Casablanca",
)
FIRST, LAST = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000 // SLOT for year in (2024, 2029))


def evaluate(expression: str, slot: int) -> int:
    (day,) = sqlite3.connect(":memory:").execute(f"SELECT {expression} FROM (SELECT {slot} AS slot)").fetchone()
    return int(day)


@given(st.sampled_from(ZONES), st.integers(FIRST, LAST))
def test_the_day_of_a_slot_is_the_users_day_across_changes_of_the_clock(name: str, slot: int) -> None:
    zone = find_zone(name)
    begin = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=slot * SLOT)

    day = evaluate(day_sql(zone, FIRST, LAST), slot)

    assert date(1970, 1, 1) + timedelta(days=day) == begin.astimezone(zone).date()


@pytest.mark.parametrize("name", ZONES)
@given(slot=st.integers(FIRST, LAST))
def test_a_slot_is_in_the_range_of_its_day_and_of_its_week(name: str, slot: int) -> None:
    zone = find_zone(name)
    for time, to_sql in (("day", day_sql), ("week", week_sql)):
        ranges = list_ranges(zone, time, FIRST, LAST)
        assert ranges is not None
        (found,) = [each.key for each in ranges if each.first <= slot <= each.last]
        assert found == evaluate(to_sql(zone, FIRST, LAST), slot)


def test_a_day_that_the_clock_interrupts_has_no_range() -> None:
    # The clock is set back by an hour half an hour after midnight.
    zone = ZoneInfo.from_file(io.BytesIO(_to_zone_file("XXX4YYY,M9.1.6/24,M4.1.6/24:30")), key="interrupted")

    assert list_ranges(zone, "day", FIRST, LAST) is None
    assert list_ranges(find_zone("UTC"), "day", 0, 10_000 * 96) is None


def test_the_day_on_which_the_clock_changes_has_23_or_25_hours() -> None:
    zone = find_zone("Europe/Berlin")
    expression = day_sql(zone, FIRST, LAST)
    for day, hours in ((date(2026, 3, 29), 23), (date(2026, 10, 25), 25), (date(2026, 11, 15), 24)):
        number = (day - date(1970, 1, 1)).days
        near = range(number * 96 - 96, number * 96 + 192)
        assert sum(evaluate(expression, slot) == number for slot in near) == hours * 4


@pytest.mark.parametrize(
    ("variable", "offset_in_january", "offset_in_july"),
    [
        ("America/New_York", -5, -4),
        (":Europe/Berlin", 1, 2),
        ("CET-1CEST,M3.5.0,M10.5.0/3", 1, 2),
        ("EST5", -5, -5),
        ("no such zone", 0, 0),
        ("", 0, 0),
    ],
)
def test_the_users_zone_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, variable: str, offset_in_january: int, offset_in_july: int
) -> None:
    monkeypatch.setenv("TZ", variable)
    if not variable:
        monkeypatch.setattr("hypaware.index.time_zones._LOCAL_TIME", Path("/nowhere"))
    zone = find_zone()

    offsets = [datetime(2026, month, 1, tzinfo=zone).utcoffset() for month in (1, 7)]

    assert offsets == [timedelta(hours=offset_in_january), timedelta(hours=offset_in_july)]


@pytest.mark.parametrize("name", ["Europe/Berln", "../etc/passwd", "", "\x00"])
def test_an_unknown_zone_is_wrong_usage_and_names_the_nearest(name: str) -> None:
    with pytest.raises(UsageError) as raised:
        find_zone(name)

    assert raised.value.kind == "unknown_timezone"
    if name == "Europe/Berln":
        assert "Did you mean Europe/Berlin?" in raised.value.message
