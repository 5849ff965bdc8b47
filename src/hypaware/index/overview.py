"""The overview: sessions, messages, tokens, cost and tools, in total and by day, project, client and model.

    {since, until, timezone, first_day, last_day, prices_as_of,
     totals:   {sessions, messages, parts, tool_calls, input_tokens, … reasoning_tokens, cost_usd, unpriced_models},
     days:     [{day, …the same}], in order,
     projects: [{cwd, …}], clients: [{client, …}], models: [{model, …}], most messages first,
     tools:    [{tool, calls, errors}], most calls first}

Days are those of the time zone. All parts of a message have the same session, time, folder and model, so the message
counts add up. Rows that are not part of the conversation (`provider_type` is gateway) are not counted, but their tokens
are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hypaware.index.figures import COUNTS, FigureRow, Figures, TokenTally, to_date
from hypaware.index.filters import Filters, read_names, to_datetime
from hypaware.index.prices import PriceTable

if TYPE_CHECKING:
    from hypaware.index.store import Index

_TOKENS = ("input", "output", "cache_read", "cache_write", "reasoning")
Document = dict[str, Any]


def summarize_overview(index: Index, filters: Filters, prices: PriceTable) -> Document:
    """Return the overview of the rows that match the filters, as in the module's description."""
    figures = Figures(index.connection, filters, prices)
    total = OverviewTally()
    groups: defaultdict[str, defaultdict[Any, OverviewTally]] = defaultdict(lambda: defaultdict(OverviewTally))
    for keys in (("day",), ("project", "client")):
        rows = list(figures.sum_by(*keys))
        models = read_names(index.connection, (row.model for row in rows))
        for row in rows:
            for key, value in zip(keys, row.keys, strict=True):
                groups[key][value].add(row, models)
            if "client" in keys:
                # Each row has the model as well.
                groups["model"][row.model].add(row, models)
                total.add(row, models)
    documents = {}
    for key, tallies in groups.items():
        sessions = figures.count_sessions(key)
        # A day is a number; the others are ids of names.
        names = (
            {each: str(to_date(each)) for each in tallies} if key == "day" else read_names(index.connection, tallies)
        )
        column = {"project": "cwd"}.get(key, key)
        documents[key] = [
            {column: names[each], "sessions": sessions.get(each, 0), **tally.as_document(prices)}
            for each, tally in tallies.items()
        ]
    days = sorted(documents.get("day", ()), key=lambda row: row["day"])
    tools = [{"tool": tool, "calls": calls, "errors": errors} for tool, calls, errors in figures.sum_tools()]
    return {
        "since": _to_day(filters, filters.since),
        "until": _to_day(filters, filters.until),
        "timezone": filters.timezone.key,
        "first_day": days[0]["day"] if days else None,
        "last_day": days[-1]["day"] if days else None,
        "prices_as_of": prices.as_of,
        "totals": {"sessions": figures.count_sessions()[None], **total.as_document(prices)},
        "days": days,
        "projects": _sort_by("messages", documents.get("project", ())),
        "clients": _sort_by("messages", documents.get("client", ())),
        "models": _sort_by("messages", (row for row in documents.get("model", ()) if row["model"] is not None)),
        "tools": _sort_by("calls", tools),
    }


class OverviewTally:
    """Adds up the counts and tokens of rows."""

    def __init__(self) -> None:
        self._counts = [0] * len(COUNTS)
        self._tokens = TokenTally()

    def add(self, row: FigureRow, models: Mapping[int | None, str | None]) -> None:
        for position, count in enumerate(row.counts):
            self._counts[position] += count
        self._tokens.add(models[row.model], row.tokens, row.over)

    def as_document(self, prices: PriceTable) -> Document:
        tokens, cost = self._tokens.add_up(prices)
        return {
            **dict(zip(COUNTS, self._counts, strict=True)),
            **{f"{name}_tokens": getattr(tokens, name) for name in _TOKENS},
            **cost.as_document(),
        }


def _to_day(filters: Filters, moment: int | None) -> str | None:
    return None if moment is None else to_datetime(moment).astimezone(filters.timezone).date().isoformat()


def _sort_by(count: str, rows: Iterable[Document]) -> list[Document]:
    return sorted(rows, key=lambda row: (-row[count], *map(str, row.values())))
