"""Charts: bars add up, nothing leaves the plot, every day and hour is drawn once."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.index.trends import choose_step
from hypaware.page.charts import (
    MOST_SERIES,
    Bucket,
    make_bar_chart,
    make_buckets,
    make_calendar,
    make_hour_map,
    make_week_map,
)
from hypaware.page.numbers import format_amount, format_document_cost, format_dollars, format_lapse, format_percent

START = 20_000
amounts = st.floats(0, 1e9, allow_nan=False) | st.just(0.0)


def to_date(day: int) -> date:
    return date(1970, 1, 1) + timedelta(days=day)


def no_address(*_: object) -> str:
    return "/"


def number(percent: str) -> float:
    assert percent.endswith("%")
    return float(percent[:-1])


@given(st.integers(0, 3000), st.integers(0, 20_000))
def test_buckets_cover_the_time_without_gaps(length: int, first: int) -> None:
    step = choose_step(first, first + length)

    buckets = make_buckets(first, first + length, step=step, to_date=to_date)

    assert [bucket.first for bucket in buckets[1:]] == [bucket.last + 1 for bucket in buckets[:-1]]
    assert (buckets[0].first, buckets[-1].last) == (first, first + length)
    assert len(buckets) <= 110
    if 100 < length < 700:
        assert step == "week"
        assert all(to_date(bucket.first).weekday() == 0 for bucket in buckets[1:])


def test_buckets_of_hours_name_their_hour() -> None:
    buckets = make_buckets(START * 24, START * 24 + 23, step="hour", to_date=to_date)

    assert [bucket.label for bucket in buckets[:2]] == ["00:00", "01:00"]
    assert len(buckets) == 24


@given(st.lists(st.lists(amounts, min_size=5, max_size=5), max_size=12))
def test_the_segments_of_a_bar_stand_on_each_other_within_the_plot(series: list[list[float]]) -> None:
    buckets = [Bucket(START + each, START + each, "", "") for each in range(5)]

    chart = make_bar_chart(
        "title",
        buckets,
        [(f"series {place}", None, values) for place, values in enumerate(series)],
        format_value=str,
        format_tick=str,
        address_of=no_address,
    )

    assert len(chart.bars) == 5
    assert len(chart.legend) == min(len(series), MOST_SERIES + 1)
    for bar in chart.bars:
        level = 100.0
        for segment in bar.segments:
            level -= number(segment.height)
            assert number(segment.y) == pytest.approx(level, abs=0.1)
        assert level >= -0.1
        assert number(bar.x) >= 0
        assert number(bar.x) + number(bar.width) <= 100.01
    ticks = [number(tick.at) for tick in chart.ticks]
    assert ticks == sorted(ticks, reverse=True)
    assert ticks[0] == 100


def test_the_axis_ends_at_a_round_number() -> None:
    chart = make_bar_chart(
        "title",
        [Bucket(START, START, "", "")],
        [("a", None, [41.3])],
        format_value=str,
        format_tick=lambda value: f"{value:g}",
        address_of=no_address,
    )

    assert [tick.text for tick in chart.ticks] == ["0", "20", "40", "60"]


@given(st.dictionaries(st.integers(START * 24, START * 24 + 24 * 20 - 1), st.integers(1, 5000)))
def test_heat_maps_have_a_cell_for_everything(hours: dict[int, int]) -> None:
    days = range(START, START + 20)

    by_day = make_hour_map("title", hours, days, no_address, no_address, to_date)
    week = make_week_map("title", hours, no_address, to_date)

    assert sum(1 for cell in by_day.cells if cell.address) == len(hours)
    assert len(week.cells) == 7 * 24
    assert all(0 <= cell.level <= 4 for cell in by_day.cells + week.cells)
    shown = sum(int(cell.text.replace(",", "")) for row in week.table for cell in row.cells)
    assert shown == sum(hours.values())
    if hours:
        largest = max(hours.values())
        assert any(cell.level == 4 and f"{largest:,} message" in cell.text for cell in by_day.cells)


def test_a_calendar_has_whole_weeks_from_monday() -> None:
    monday = next(day for day in range(START, START + 7) if to_date(day).weekday() == 0)

    calendar = make_calendar("title", {monday + 8: 3}, monday, monday + 15, lambda day: f"/{day}", to_date)

    assert len(calendar.cells) == 16
    marked = [cell for cell in calendar.cells if cell.address]
    assert [cell.address for cell in marked] == [f"/{to_date(monday + 8)}"]
    assert marked[0].x == calendar.cells[7].x
    assert len({cell.x for cell in calendar.cells}) == 3


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999, "999"), (1000, "1k"), (12_345, "12.3k"), (999_949, "1M"), (4_560_000, "4.56M"), (None, "–")],
)
def test_amounts_are_short(value: float | None, text: str) -> None:
    assert format_amount(value) == text


def test_costs_say_what_they_do_not_include() -> None:
    assert format_dollars(0.001) == "<$0.01"
    assert format_dollars(12_345.6) == "$12,346"
    assert format_document_cost({"cost_usd": 1.2, "unpriced_models": ["x"]}) == "$1.20+"
    assert format_document_cost({"cost_usd": None, "unpriced_models": ["x"]}) == "?"
    assert format_document_cost({"cost_usd": None, "unpriced_models": []}) == "–"
    assert format_percent(0.0432) == "4.3 %"
    assert format_percent(1.5) == "150 %"
    assert [format_lapse(seconds) for seconds in (42, 720, 11_100, 400_000)] == ["42s", "12m", "3h05", "5d"]
