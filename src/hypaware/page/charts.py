"""Charts as geometry: what the macros of `charts.html` draw as SVG.

Positions along the time axis are percentages of the width, so that charts fill their card at every size and text keeps
its own. Colours are classes: c1 to c8 for series, h0 to h4 for the levels of a heat map. Everything that is drawn has
its address and its text; the text of names is escaped where it is drawn.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import NamedTuple

from hypaware.index.trends import MOST_DAYS

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MOST_SERIES = 7
OTHER = "c8"
_GAP = 0.22
_MOST_LABELS = 8
_LEVELS = 4
_SQUARE, _STEP = 11, 13
_HOUR_HEIGHT = 7
Address = Callable[..., str]


class Bucket(NamedTuple):
    """A bar's part of the time axis."""

    first: int
    """The first hour or day since 1970, as in `Trends.course`."""
    last: int
    label: str
    """Below the axis: `Nov 16`."""
    title: str
    """In full: `Mon, Nov 16 2026`."""


class BarSegment(NamedTuple):
    y: str
    height: str
    colour: str


class Bar(NamedTuple):
    x: str
    width: str
    slot_x: str
    """Where the area begins that reacts to the pointer, which has no gaps."""
    slot_width: str
    segments: list[BarSegment]
    text: str
    address: str


class AxisMark(NamedTuple):
    at: str
    text: str
    is_minor: bool = False
    """Whether it is left out on a narrow screen."""


class LegendEntry(NamedTuple):
    colour: str
    name: str
    value: str
    address: str | None


class TableCell(NamedTuple):
    text: str
    address: str | None = None


class TableRow(NamedTuple):
    name: str
    address: str | None
    cells: list[TableCell]


@dataclass(frozen=True)
class BarChart:
    title: str
    bars: list[Bar]
    ticks: list[AxisMark]
    labels: list[AxisMark]
    legend: list[LegendEntry]
    heads: list[str]
    """Of the table: what each column holds."""
    rows: list[TableRow]
    """Of the table: one for each bar."""


class HeatCell(NamedTuple):
    x: str
    y: str
    width: str
    height: str
    level: int
    text: str
    address: str | None


@dataclass(frozen=True)
class HeatMap:
    title: str
    height: int
    cells: list[HeatCell]
    rows: list[AxisMark]
    columns: list[AxisMark]
    heads: list[str]
    table: list[TableRow]
    width: int | None = None
    """The width of its own coordinates if it is drawn to scale; otherwise x is in percent."""


def make_buckets(first: int, last: int, *, step: str, to_date: Callable[[int], date]) -> list[Bucket]:
    """Divide the time axis into hours, days or weeks from Monday. Too many days are divided into months."""
    if step == "hour":
        return [
            Bucket(hour, hour, f"{hour % 24:02}:00", f"{_full(to_date(hour // 24))}, {hour % 24:02}:00")
            for hour in range(first, last + 1)
        ]
    days = last - first + 1
    if step == "day" and days <= MOST_DAYS:
        return [Bucket(day, day, _short(to_date(day)), _full(to_date(day))) for day in range(first, last + 1)]
    found = []
    begin = first
    while begin <= last:
        day = to_date(begin)
        if step == "week":
            end = min(last, begin + 6 - day.weekday())
            title = f"{_full(day)} to {_full(to_date(end))}"
            found.append(Bucket(begin, end, _short(day), title))
        else:
            following = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
            end = min(last, begin + (following - day).days - 1)
            found.append(Bucket(begin, end, f"{day:%b %Y}", f"{day:%B %Y}"))
        begin = end + 1
    return found


def _short(day: date) -> str:
    return f"{day:%b} {day.day}"


def _full(day: date) -> str:
    return f"{day:%a}, {day:%b} {day.day} {day.year}"


def make_bar_chart(
    title: str,
    buckets: Sequence[Bucket],
    series: Sequence[tuple[str, str | None, Sequence[float]]],
    *,
    format_value: Callable[[float], str],
    format_tick: Callable[[float], str],
    address_of: Callable[[Bucket], str],
    others_address: Callable[[int], str] | None = None,
) -> BarChart:
    """Stack the series, each a name, the address of what it stands for and a value for each bucket; largest first.

    `others_address` returns the address of all but the first series.
    """
    shown = list(series[:MOST_SERIES])
    if len(series) > MOST_SERIES:
        rest = series[MOST_SERIES:]
        sums = [sum(values) for values in zip(*(each[2] for each in rest), strict=True)]
        address = None if others_address is None else others_address(MOST_SERIES)
        shown.append((f"{len(rest)} more", address, sums))
    colours = [f"c{number + 1}" if number < MOST_SERIES else OTHER for number in range(len(shown))]
    totals = [sum(values) for values in zip(*(each[2] for each in shown), strict=True)] or [0.0] * len(buckets)
    top, ticks = _scale(max(totals, default=0.0))
    bars = []
    rows = []
    pitch = 100 / max(1, len(buckets))
    for number, bucket in enumerate(buckets):
        parts = [(name, values[number], colour) for (name, _, values), colour in zip(shown, colours, strict=True)]
        level, segments = 0.0, []
        for _, value, colour in parts:
            if value > 0:
                level += value
                segments.append(BarSegment(_percent(100 - 100 * level / top), _percent(100 * value / top), colour))
        largest = sorted((part for part in parts if part[1] > 0), key=lambda part: -part[1])[:6]
        lines = [bucket.title, format_value(totals[number])]
        if len(shown) > 1:
            lines += [f"{name}: {format_value(value)}" for name, value, _ in largest]
        address = address_of(bucket)
        x = number * pitch
        bars.append(
            Bar(
                _percent(x + pitch * _GAP / 2),
                _percent(pitch * (1 - _GAP)),
                _percent(x),
                _percent(pitch),
                segments,
                "\n".join(lines),
                address,
            )
        )
        values = (totals[number], *(part[1] for part in parts))
        rows.append(TableRow(bucket.title, address, [TableCell(format_value(value)) for value in values]))
    return BarChart(
        title,
        bars,
        [AxisMark(_percent(100 - 100 * tick / top), format_tick(tick)) for tick in ticks],
        _mark_buckets(buckets, pitch),
        [
            LegendEntry(colour, name, format_value(sum(values)), address)
            for (name, address, values), colour in zip(shown, colours, strict=True)
        ],
        ["", "Total", *(name for name, _, _ in shown)],
        rows,
    )


def _mark_buckets(buckets: Sequence[Bucket], pitch: float) -> list[AxisMark]:
    every = -(-len(buckets) // _MOST_LABELS)
    return [
        AxisMark(_percent((number + 0.5) * pitch), bucket.label, bool(number // every % 2))
        for number, bucket in enumerate(buckets)
        if number % every == 0
    ]


def _scale(most: float) -> tuple[float, list[float]]:
    """Return a round number that is not below the largest value, and the marks up to it."""
    if most <= 0:
        return 1.0, [0.0]
    size = 1.0
    while size > most:
        size /= 10
    while size * 10 <= most:
        size *= 10
    step = next(size * factor for factor in (0.5, 1, 2, 2.5, 5) if size * factor * 4 >= most)
    count = next(number for number in (2, 3, 4) if step * number >= most) if step * 4 >= most else 4
    return step * count, [step * number for number in range(count + 1)]


def make_hour_map(
    title: str,
    hours: Mapping[int, int],
    days: Sequence[int],
    address_of: Address,
    weekday_address: Callable[[int, int], str],
    to_date: Callable[[int], date],
) -> HeatMap:
    """Return a heat map with a column for each day and a row for each hour. Only hours with messages are drawn.

    Its table is by day of the week.
    """
    shown = {hour: count for hour, count in hours.items() if days[0] <= hour // 24 <= days[-1]}
    levels = _Levels(shown.values())
    pitch = 100 / len(days)
    cells = [
        HeatCell(_percent(number * pitch), "0", _percent(pitch * 0.9), str(24 * _HOUR_HEIGHT), 0, "", None)
        for number in range(len(days))
    ]
    for hour, count in sorted(shown.items()):
        day = to_date(hour // 24)
        cells.append(
            HeatCell(
                _percent((hour // 24 - days[0]) * pitch),
                str(hour % 24 * _HOUR_HEIGHT),
                _percent(pitch * 0.9),
                str(_HOUR_HEIGHT - 1),
                levels.of(count),
                f"{_full(day)}, {hour % 24:02}:00\n{_count(count)}",
                address_of(day, hour % 24),
            )
        )
    buckets = make_buckets(days[0], days[-1], step="day", to_date=to_date)
    rows = [AxisMark(str(hour * _HOUR_HEIGHT + 7), f"{hour:02}") for hour in (0, 6, 12, 18)]
    heads, table = _tabulate_week(shown, weekday_address, to_date)
    return HeatMap(title, 24 * _HOUR_HEIGHT, cells, rows, _mark_buckets(buckets, pitch), heads, table)


def make_week_map(
    title: str, hours: Mapping[int, int], address_of: Callable[[int, int], str], to_date: Callable[[int], date]
) -> HeatMap:
    """Return a heat map with a row for each day of the week and a column for each hour of the day."""
    week = _sum_week(hours, to_date)
    levels = _Levels(week.values())
    height, pitch = 26, 100 / 24
    cells = []
    for weekday, name in enumerate(WEEKDAYS):
        for hour in range(24):
            count = week.get((weekday, hour), 0)
            text = f"{name}, {hour:02}:00\n{_count(count)}"
            size = (_percent(pitch * 0.92), str(height - 2))
            address = address_of(weekday, hour) if count else None
            cells.append(
                HeatCell(_percent(hour * pitch), str(weekday * height), *size, levels.of(count), text, address)
            )
    rows = [AxisMark(str(number * height + 16), name) for number, name in enumerate(WEEKDAYS)]
    columns = [AxisMark(_percent((hour + 0.5) * pitch), f"{hour:02}", bool(hour % 6)) for hour in range(0, 24, 3)]
    heads, table = _tabulate_week(hours, address_of, to_date)
    return HeatMap(title, 7 * height, cells, rows, columns, heads, table)


def _sum_week(hours: Mapping[int, int], to_date: Callable[[int], date]) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    for hour, count in hours.items():
        key = (to_date(hour // 24).weekday(), hour % 24)
        found[key] = found.get(key, 0) + count
    return found


def _tabulate_week(
    hours: Mapping[int, int], address_of: Callable[[int, int], str], to_date: Callable[[int], date]
) -> tuple[list[str], list[TableRow]]:
    week = _sum_week(hours, to_date)

    def make_cell(weekday: int, hour: int) -> TableCell:
        count = week.get((weekday, hour), 0)
        return TableCell(f"{count:,}", address_of(weekday, hour) if count else None)

    rows = [TableRow(f"{hour:02}:00", None, [make_cell(each, hour) for each in range(7)]) for hour in range(24)]
    return ["Hour", *WEEKDAYS], rows


def make_calendar(
    title: str, days: Mapping[int, int], first: int, last: int, address_of: Address, to_date: Callable[[int], date]
) -> HeatMap:
    """Return a square for each day, a column for each week. `first` is a Monday."""
    levels = _Levels(days.values())
    left = 30
    cells, months, table = [], [], []
    for number in range(last - first + 1):
        day = to_date(first + number)
        week, weekday = divmod(number, 7)
        x = left + week * _STEP
        if day.day <= 7 and weekday == 0:
            months.append(AxisMark(str(x), f"{day:%b}"))
        count = days.get(first + number, 0)
        address = address_of(day) if count else None
        text = f"{_full(day)}\n{_count(count)}"
        size = (str(_SQUARE), str(_SQUARE))
        cells.append(HeatCell(str(x), str(16 + weekday * _STEP), *size, levels.of(count), text, address))
        if count:
            table.append(TableRow(_full(day), address, [TableCell(f"{count:,}")]))
    rows = [AxisMark(str(16 + number * _STEP + 9), WEEKDAYS[number]) for number in (0, 2, 4)]
    width = left + -(-(last - first + 1) // 7) * _STEP
    return HeatMap(title, 16 + 7 * _STEP, cells, rows, months, ["Day", "Messages"], table[::-1], width)


class _Levels:
    """Sorts values into levels with about as many values each; 0 is for nothing."""

    def __init__(self, values: Iterable[int]) -> None:
        found = sorted(value for value in values if value > 0)
        self._bounds = [found[len(found) * part // _LEVELS] for part in range(1, _LEVELS)] if found else []

    def of(self, value: int) -> int:
        return 0 if value <= 0 else 1 + bisect_right(self._bounds, value)


def _count(messages: int) -> str:
    return "1 message" if messages == 1 else f"{messages:,} messages"


def _percent(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") + "%"
