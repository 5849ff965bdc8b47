"""What a page about many sessions shows: totals, their course over time, and the largest projects, models and so on.

The figures are those of `summarize_overview`. The course is by hour or day and by one more key, so that it can be drawn
as stacked bars, in one pass over the sums. Activity (messages by hour, and by day of a year) is read without tokens.
Trends and activity are separate, so that two threads can read them at the same time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypaware.index.figures import FigureRow, Figures
from hypaware.index.filters import Filters, explain_no_match, read_names
from hypaware.index.overview import Document, OverviewTally
from hypaware.index.prices import PriceTable

if TYPE_CHECKING:
    from hypaware.index.store import Index

SERIES = ("model", "project", "client", "machine")
MOST_DAYS, MOST_WEEKS = 100, 106
"""Longer courses are by week; still longer ones are by day, for months."""
_SPAN = "SELECT (SELECT min(slot) FROM activity) / 96, (SELECT max(slot) FROM activity) / 96"
_KEYS = ("project", "client", "machine")
Tallies = dict[str, defaultdict[Any, OverviewTally]]
_TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


@dataclass(frozen=True)
class Trends:
    totals: Document
    """As in the overview: sessions, messages, tool_calls, tokens by kind, cost_usd, unpriced_models."""
    groups: dict[str, list[Document]]
    """By project, model, client and machine: the most expensive first, each with its `key`."""
    course: dict[int, dict[str | None, Document]]
    """By hour, day or week since 1970, and by the key of the series."""
    step: str
    """What the course is by."""
    before: Document | None
    """The totals of the period before, if one was asked for."""
    progress: float | None
    """The part of the rows that is indexed, while the index is being built."""
    no_match: str | None = None
    """If nothing matches: which filter matches no row at all."""
    has_sessions: bool = True
    """Whether anything is recorded, whatever the filters."""


@dataclass(frozen=True)
class Activity:
    hours: dict[int, int]
    """Messages by hour since 1970, in the zone of the filters."""
    days: dict[int, int]
    """Messages by day since 1970, in the window of the calendar."""
    tools: list[Document]
    """`{tool, calls, errors}`, most calls first."""


def read_trends(
    index: Index,
    filters: Filters,
    prices: PriceTable,
    *,
    by: str = "model",
    step: str | None = None,
    before: tuple[int, int] | None = None,
) -> Trends:
    """Return the trends of the rows that match.

    `by` is one of SERIES, `step` is hour, day or week; by default it depends on how long rows were recorded.
    `before` is the period to compare with, in moments.
    """
    step = step or choose_step(*index.connection.execute(_SPAN).fetchone())
    figures = Figures(index.connection, filters, prices)
    totals, tallies = _add_up(index, figures, prices)
    is_empty = not totals["parts"]
    compared = None
    if before is not None:
        period = filters._replace(since=before[0], until=before[1])
        compared, _ = _add_up(index, Figures(index.connection, period, prices), prices)
    return Trends(
        totals,
        _name_groups(index, figures, prices, totals, tallies),
        {} if is_empty else _read_course(index, figures, prices, by, step),
        step,
        compared,
        index.progress,
        explain_no_match(index.connection, filters) if is_empty else None,
        not is_empty or index.connection.execute("SELECT 1 FROM sessions LIMIT 1").fetchone() is not None,
    )


def read_activity(index: Index, filters: Filters, prices: PriceTable, calendar: tuple[int, int]) -> Activity:
    """Return the activity of the rows that match. `calendar` is the window of the activity by day, in moments."""
    figures = Figures(index.connection, filters, prices)
    year = filters._replace(since=calendar[0], until=calendar[1])
    tools = [{"tool": tool, "calls": calls, "errors": errors} for tool, calls, errors in figures.sum_tools()]
    return Activity(
        figures.count_messages("hour"),
        Figures(index.connection, year, prices).count_messages("day"),
        sorted(tools, key=lambda row: (-row["calls"], row["tool"])),
    )


def choose_step(first_day: int | None, last_day: int | None) -> str:
    """Return what a course from the first to the last day is by, so that it has neither too many steps nor too few."""
    days = 1 if first_day is None or last_day is None else last_day - first_day + 1
    return "week" if MOST_DAYS < days <= MOST_WEEKS * 7 else "day"


def sum_all_tokens(document: Mapping[str, Any]) -> int:
    """Return all tokens of a document; reasoning is part of the output."""
    return sum(document[name] for name in _TOKENS)


def _add_up(index: Index, figures: Figures, prices: PriceTable) -> tuple[Document, Tallies]:
    rows = list(figures.sum_by(*_KEYS))
    names = read_names(index.connection, {row.model for row in rows})
    total = OverviewTally()
    tallies: Tallies = {key: defaultdict(OverviewTally) for key in SERIES}
    for row in rows:
        total.add(row, names)
        for key, value in zip((*_KEYS, "model"), (*row.keys, row.model), strict=True):
            tallies[key][value].add(row, names)
    return {"sessions": figures.count_sessions()[None], **total.as_document(prices)}, tallies


def _name_groups(
    index: Index, figures: Figures, prices: PriceTable, totals: Document, tallies: Tallies
) -> dict[str, list[Document]]:
    groups = {}
    for key, found in tallies.items():
        names = read_names(index.connection, found)
        # If there is only one group, all sessions are in it.
        counts = dict.fromkeys(found, totals["sessions"]) if len(found) == 1 else figures.count_sessions(key)
        groups[key] = _sort(
            {"key": names[id_], "sessions": counts.get(id_, 0), **tally.as_document(prices)}
            for id_, tally in found.items()
            # Rows without a model are those that the user typed.
            if key != "model" or names[id_] is not None
        )
    return groups


def _read_course(
    index: Index, figures: Figures, prices: PriceTable, by: str, step: str
) -> dict[int, dict[str | None, Document]]:
    rows: list[FigureRow] = list(figures.sum_by(step) if by == "model" else figures.sum_by(step, by))
    ids = {row.model for row in rows}.union(row.keys[1] for row in rows if by != "model")
    names = read_names(index.connection, ids)
    tallies: defaultdict[int, defaultdict[str | None, OverviewTally]] = defaultdict(lambda: defaultdict(OverviewTally))
    for row in rows:
        tallies[row.keys[0]][names[row.model if by == "model" else row.keys[1]]].add(row, names)
    return {at: {key: tally.as_document(prices) for key, tally in found.items()} for at, found in tallies.items()}


def _sort(rows: Iterable[Document]) -> list[Document]:
    return sorted(
        rows, key=lambda row: (-(row["cost_usd"] or 0.0), -sum_all_tokens(row), -row["messages"], str(row["key"]))
    )
