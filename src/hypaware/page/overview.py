"""The overview: activity, cost and tokens over time, projects, tools, and sessions that are running.

`by` in the address is what the chart stacks, `unit` what it measures, and `top` the order of the listed sessions.
Everything links to the sessions behind it.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

from aiohttp import web

from hypaware.errors import UsageError
from hypaware.index.filters import project_of, to_moment
from hypaware.index.overview import Document
from hypaware.index.prices import UNKNOWN_MODEL, PriceTable
from hypaware.index.session_traits import WEEKDAYS, OtherNames
from hypaware.index.sessions import list_sessions, sum_tokens
from hypaware.index.store import Index
from hypaware.index.trends import SERIES, Activity, Trends, read_activity, read_trends, sum_all_tokens
from hypaware.page import charts
from hypaware.page.address import Linker, session_path
from hypaware.page.charts import BarChart, Bucket, HeatMap
from hypaware.page.context import PageContext
from hypaware.page.early_head import discard, send_early
from hypaware.page.filter_bar import load_filter_bar
from hypaware.page.numbers import format_amount, format_document_cost, format_dollars, format_percent
from hypaware.page.overview_window import DEFAULT_DAYS, OverviewWindow, read_window, to_day
from hypaware.page.session_rows import RUNNING
from hypaware.state.machines import MachineNames
from hypaware.text import escape_cell, format_count

_CHOICES = {"by": SERIES, "unit": ("cost", "tokens"), "top": ("newest", "cost", "tokens", "length")}
_MOST_RUNNING, _MOST_LISTED = 10, 8
_MOST_ROWS = 100
_MOST_MAP_DAYS = 62
_DATE_SUFFIX = re.compile(r"-20\d{6}$")


def routes(context: PageContext) -> list[web.RouteDef]:
    async def overview(request: web.Request) -> web.StreamResponse:
        choices = {name: _read_choice(request.query, name, known) for name, known in _CHOICES.items()}
        window = read_window(request.query, datetime.now(UTC))
        content = asyncio.create_task(_read_content(context, request.query, window, choices))
        try:
            # If there is no home or no index, this says so before the answer begins.
            bar = await load_filter_bar(context, request, window.filters, default_days=DEFAULT_DAYS)
            return await send_early(context, request, "overview.html", {"bar": bar}, content)
        finally:
            discard(content)

    return [web.get("/", overview)]


async def _read_content(
    context: PageContext, query: Mapping[str, str], window: OverviewWindow, choices: Mapping[str, str]
) -> dict[str, Any]:
    found, is_all = await _read(context, window, choices), False
    if not found.trends.totals["parts"] and "days" not in query and window.days is not None:
        # Nothing in the default window: show everything, instead of an empty page.
        everything = read_window(query, window.now, default_days=None)
        all_found = await _read(context, everything, choices)
        if all_found.trends.totals["parts"]:
            window, found, is_all = everything, all_found, True
    return {"shown": _Overview(query, window, found, choices), "is_all": is_all}


def _read_choice(query: Mapping[str, str], name: str, known: Sequence[str]) -> str:
    given = query.get(name) or known[0]
    if given not in known:
        raise UsageError(f"{name}={escape_cell(given)} is not known; write {name}={' or '.join(known)}")
    return given


@dataclass(frozen=True)
class _Found:
    trends: Trends
    activity: Activity
    running: list[Document]
    listed: list[Document]
    """If nothing matches: the newest session that does at any other time."""
    prices_as_of: str
    machines: MachineNames


async def _read(context: PageContext, window: OverviewWindow, choices: Mapping[str, str]) -> _Found:
    prices, filters = context.prices(), window.filters
    trends, activity, (running, listed) = await asyncio.gather(
        context.read(read_trends, filters, prices, by=choices["by"], step=window.step, before=window.before),
        context.read(read_activity, filters, prices, window.calendar_moments),
        context.read(_read_lists, window, prices, choices["top"]),
    )
    return _Found(trends, activity, running, listed, prices.as_of, context.machines())


def _read_lists(
    index: Index, window: OverviewWindow, prices: PriceTable, top: str
) -> tuple[list[Document], list[Document]]:
    """Return the sessions that are running, and the newest or largest ones."""
    filters = window.filters
    recent = filters._replace(since=to_moment(window.now - RUNNING), until=None)
    running = list_sessions(index, recent, prices, limit=_MOST_RUNNING) if filters.until is None else []
    sort = "time" if top == "newest" else top
    listed = list_sessions(index, filters, prices, sort=sort, limit=_MOST_LISTED)
    if not listed and filters.has_window:
        listed = list_sessions(index, filters._replace(since=None, until=None), prices, limit=1)
    return running, listed


class OverviewFigure(NamedTuple):
    """A large number."""

    name: str
    text: str
    address: str
    change: float | None = None
    """Compared with the period before, as a part of that."""
    note: str = ""
    tip: str = ""


class _Overview:
    """What the template shows. Links go to the sessions of the same window and filters."""

    def __init__(
        self, query: Mapping[str, str], window: OverviewWindow, found: _Found, choices: Mapping[str, str]
    ) -> None:
        self._query = query
        self._link = Linker("/", query)
        self.window = window
        self.by, self.unit, self.top = choices["by"], choices["unit"], choices["top"]
        self.trends = found.trends
        self.activity = found.activity
        self.totals = found.trends.totals
        self.prices_as_of = found.prices_as_of
        self.running = [self._describe_session(each) for each in found.running]
        self.listed = [self._describe_session(each) for each in found.listed]
        shorten = {"project": _shorten_project, "model": shorten_model, "machine": found.machines.name_of}
        self._labels = {
            key: _label_keys([row["key"] for row in self.trends.groups[key]], shorten.get(key, str)) for key in SERIES
        }

    @property
    def zone(self) -> str:
        return self.window.zone.key

    @property
    def period(self) -> str:
        first, last = self._span()
        if first == last:
            return f"{first:%b} {first.day}, {first.year}"
        begin = f"{first:%b} {first.day}" if first.year == last.year else f"{first:%b} {first.day}, {first.year}"
        return f"{begin} – {last:%b} {last.day}, {last.year}"

    def sessions(self, **changes: str | int | None) -> str:
        """Return the address of the sessions of this window, with more filters."""
        if not {"days", "since", "until"} & changes.keys() and not self._has_dates:
            changes = {"days": self.window.days, **changes}
        return self._link("/sessions", **changes)

    @property
    def figures(self) -> list[OverviewFigure]:
        totals, before = self.totals, self.trends.before
        calls = sum(row["calls"] for row in self.activity.tools)
        errors = sum(row["errors"] for row in self.activity.tools)
        kinds = {kind: totals[f"{kind}_tokens"] for kind in ("input", "output", "cache_read", "cache_write")}
        by_kind = "\n".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in kinds.items())
        tokens = sum_all_tokens(totals)

        def change(name: str) -> float | None:
            return None if before is None else _compare(totals[name] or 0, before[name] or 0)

        def count(name: str, key: str, note: str, **sort: str) -> OverviewFigure:
            return OverviewFigure(name, f"{totals[key]:,}", self.sessions(**sort), change(key), note)

        def per_session(text: str) -> str:
            return f"{text} a session"

        sessions = max(1, totals["sessions"])
        return [
            OverviewFigure(
                "Cost",
                format_document_cost(totals),
                self.sessions(sort="cost"),
                change("cost_usd"),
                per_session(format_dollars((totals["cost_usd"] or 0.0) / sessions)),
            ),
            OverviewFigure(
                "Tokens",
                format_amount(tokens),
                self.sessions(sort="tokens"),
                None if before is None else _compare(tokens, sum_all_tokens(before)),
                f"{format_amount(totals['output_tokens'])} output",
                by_kind,
            ),
            count(
                "Sessions", "sessions", format_count(len({hour // 24 for hour in self.activity.hours}), "active day")
            ),
            count("Messages", "messages", per_session(f"{totals['messages'] / sessions:,.0f}"), sort="length"),
            count("Tool calls", "tool_calls", per_session(f"{totals['tool_calls'] / sessions:,.0f}")),
            OverviewFigure(
                "Failed calls",
                format_percent(errors / calls if calls else None),
                self.sessions(errors=1),
                note=f"{errors:,} of {calls:,}",
            ),
        ]

    @property
    def chart(self) -> BarChart:
        first, last = self._steps()
        step = self.trends.step
        buckets = charts.make_buckets(first, last, step=step, to_date=to_day)
        measure: Callable[[Document], float] = _measure_cost if self.unit == "cost" else sum_all_tokens
        values: defaultdict[str | None, list[float]] = defaultdict(lambda: [0.0] * len(buckets))
        begins = [_to_week(bucket.first) if step == "week" else bucket.first for bucket in buckets]
        for at, found in self.trends.course.items():
            position = bisect_right(begins, at) - 1
            for key, document in found.items():
                if (value := measure(document)) and position >= 0:
                    values[key][position] += value
        ordered = sorted(values.items(), key=lambda each: (-sum(each[1]), str(each[0])))
        return charts.make_bar_chart(
            f"{self.unit.capitalize()} by {self.by}, {self.period}",
            buckets,
            [(self.label(self.by, key), self.group_address(self.by, key), numbers) for key, numbers in ordered],
            format_value=format_dollars if self.unit == "cost" else format_amount,
            format_tick=_format_tick if self.unit == "cost" else format_amount,
            address_of=self._bucket_address,
            others_address=lambda most: self._others_address([key for key, _ in ordered[:most]]),
        )

    @property
    def hour_map(self) -> HeatMap | None:
        """The activity by hour: of each day, or of the week if there are many days."""
        if self.window.step == "hour":
            return None
        first, last = self._steps()
        if last - first >= _MOST_MAP_DAYS:
            title = "Messages by hour and day of the week"
            return charts.make_week_map(title, self.activity.hours, self._weekday_address, to_day)
        days = range(first, last + 1)
        return charts.make_hour_map(
            "Messages by hour and day", self.activity.hours, days, self._hour_address, self._weekday_address, to_day
        )

    @property
    def calendar(self) -> HeatMap:
        first, last = self.window.calendar
        title = f"Messages by day in the year to {to_day(last).isoformat()}"
        return charts.make_calendar(title, self.activity.days, first, last, self._day_address, to_day)

    def rows(self, key: str) -> list[Document]:
        """Return the first rows of a group, with their part of the largest, in the unit of the chart."""
        measure: Callable[[Document], float] = _measure_cost if self.unit == "cost" else sum_all_tokens
        found = sorted(self.trends.groups[key], key=lambda row: -measure(row))[:_MOST_ROWS]
        most = max((measure(row) for row in found), default=0.0)
        return [
            {
                **row,
                "label": self.label(key, row["key"]),
                "address": self.group_address(key, row["key"]),
                "part": 100 * measure(row) / most if most else 0.0,
                "tokens": sum_all_tokens(row),
            }
            for row in found
        ]

    def more(self, key: str) -> int:
        return max(0, len(self.trends.groups[key]) - _MOST_ROWS)

    @property
    def tools(self) -> list[Document]:
        most = max((row["calls"] for row in self.activity.tools), default=0)
        return [
            {
                **row,
                "part": 100 * row["calls"] / most if most else 0.0,
                "rate": row["errors"] / row["calls"] if row["calls"] else None,
                "address": self.sessions(tool=row["tool"]),
                "failed": self.sessions(failed=row["tool"]),
            }
            for row in self.activity.tools[:_MOST_ROWS]
        ]

    @property
    def more_tools(self) -> int:
        return max(0, len(self.activity.tools) - _MOST_ROWS)

    def label(self, key: str, name: str | None) -> str:
        return self._labels[key].get(name) or UNKNOWN_MODEL

    def group_address(self, key: str, name: str | None) -> str | None:
        """Return the address of the sessions of a group; None for rows that have no such property."""
        return None if name is None else self.sessions(**{key: name})

    def switch(self, **changes: str) -> str:
        """Return the address of the overview with another unit or another series."""
        return self._link(**changes)

    @property
    def _has_dates(self) -> bool:
        return bool(self._query.get("since") or self._query.get("until"))

    def _span(self) -> tuple[date, date]:
        divisor = 24 if self.window.step == "hour" else 1
        first, last = self._steps()
        return to_day(first // divisor), to_day(last // divisor)

    def _steps(self) -> tuple[int, int]:
        """Return the first and the last hour or day of the chart."""
        window = self.window
        recorded = self.trends.course.keys()
        first = window.first_day
        if window.step == "hour" and first is not None:
            return first * 24, window.last_day * 24 + 23
        if first is None:
            first = min(recorded, default=window.last_day)
            if recorded and self.trends.step == "week":
                first = _to_monday(first)
        return first, max(window.last_day, first)

    def _bucket_address(self, bucket: Bucket) -> str:
        if self.window.step == "hour":
            return self._hour_address(to_day(bucket.first // 24), bucket.first % 24)
        since, until = to_day(bucket.first).isoformat(), to_day(bucket.last).isoformat()
        first, last = self._steps()
        # The ends of the window can be within a day.
        if bucket.first == first:
            since = self._query.get("since") or since
        if bucket.last == last:
            until = self._query.get("until") or until
        return self.sessions(since=since, until=until)

    def _day_address(self, day: date) -> str:
        return self.sessions(since=day.isoformat(), until=day.isoformat())

    def _hour_address(self, day: date, hour: int) -> str:
        begin = f"{day.isoformat()}T{hour:02}"
        return self.sessions(since=f"{begin}:00", until=f"{begin}:59:59.999999")

    def _weekday_address(self, weekday: int, hour: int) -> str:
        return self.sessions(weekday=WEEKDAYS[weekday], hour=hour)

    def _others_address(self, shown: Sequence[str | None]) -> str:
        """Return the address of the sessions with something else than what the chart shows by name."""
        return self.sessions(others=str(OtherNames(self.by, tuple(name or "" for name in shown))))

    def _describe_session(self, session: Document) -> Document:
        return {
            **session,
            "address": session_path(session["session_id"]),
            "total_tokens": sum_tokens(session["tokens"]),
            "model": ", ".join(map(shorten_model, session["models"][:2])),
        }


def _label_keys(names: Sequence[str | None], shorten: Callable[[str], str]) -> dict[str | None, str]:
    """Return the names as people read them, such as projects without their path, if these differ."""
    short = {name: shorten(name) for name in names if name is not None}
    shared = Counter(short.values())
    return {name: text if shared[text] == 1 else str(name) for name, text in short.items()}


def _shorten_project(cwd: str) -> str:
    return project_of(cwd) or cwd


def shorten_model(name: str) -> str:
    """Return a model's name without the date at its end."""
    return _DATE_SUFFIX.sub("", name)


def _to_week(day: int) -> int:
    return (day + 3) // 7


def _to_monday(week: int) -> int:
    return week * 7 - 3


def _measure_cost(document: Document) -> float:
    return document["cost_usd"] or 0.0


def _format_tick(dollars: float) -> str:
    return f"${dollars:,.2f}" if 0 < dollars < 1 or dollars % 1 else f"${dollars:,.0f}"


def _compare(value: float, before: float) -> float | None:
    return (value - before) / before if before else None
