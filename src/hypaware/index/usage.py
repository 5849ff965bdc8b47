"""Tokens and cost by day, week, month, project, model, client, session or machine."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hypaware.index.figures import Figures, TokenTally, to_date
from hypaware.index.filters import Filters, project_of, read_names
from hypaware.index.prices import PriceTable
from hypaware.index.session_order import list_most_expensive
from hypaware.index.sessions import SessionList, session_document

if TYPE_CHECKING:
    from sqlite3 import Connection

    from hypaware.index.store import Index

GROUPINGS = ("day", "week", "month", "project", "model", "client", "session", "machine")
_TIMES = ("day", "week", "month")
Document = dict[str, Any]


def summarize_usage(
    index: Index, filters: Filters, prices: PriceTable, *, by: str = "day", limit: int | None = None
) -> Document:
    """Return `{by, timezone, prices_as_of, rows: [{key, sessions, tokens, cost_usd, unpriced_models}], total: {…}}`.

    Days, weeks (ISO, from Monday) and months are in order; other rows begin with the most expensive. `limit` keeps the
    newest or the most expensive rows; the total includes all. The key of a project is its last folder, or its path if
    several projects share that name; `cwd` is its path. A key is None if the rows do not have the property.
    """
    found = read_usage(index, filters, prices, by=by, limit=limit)
    return {
        "by": by,
        "timezone": filters.timezone.key,
        "prices_as_of": prices.as_of,
        "rows": [row.as_document(with_cwd=by == "project") for row in found.rows],
        "total": {name: value for name, value in found.total.as_document().items() if name != "key"},
    }


class UsageRow(NamedTuple):
    key: str | None
    sessions: int
    input: int
    output: int
    cache_read: int
    cache_write: int
    reasoning: int
    cost: float | None
    unpriced: Sequence[str]
    cwd: str | None = None

    def as_document(self, *, with_cwd: bool = False) -> Document:
        key, sessions, input_, output, cache_read, cache_write, reasoning, cost, unpriced, cwd = self
        place = {"key": key, "cwd": cwd} if with_cwd else {"key": key}
        return {
            **place,
            "sessions": sessions,
            "tokens": {
                "input": input_,
                "output": output,
                "cache_read": cache_read,
                "cache_write": cache_write,
                "reasoning": reasoning,
            },
            "cost_usd": cost,
            "unpriced_models": list(unpriced),
        }


class UsageTable(NamedTuple):
    rows: list[UsageRow]
    total: UsageRow
    row_count: int
    """The number of rows without the limit."""


def read_usage(
    index: Index, filters: Filters, prices: PriceTable, *, by: str = "day", limit: int | None = None
) -> UsageTable:
    """Return what `summarize_usage` describes, as rows: there can be one for every session."""
    figures = Figures(index.connection, filters, prices)
    if by == "session" and figures.has_whole_sessions:
        rows, total = _read_whole_sessions(index, figures, filters, prices, limit)
        count = total.sessions
    else:
        groups, total = _read_groups(index.connection, figures, by)
        keys = _name_keys(index.connection, by, groups)
        rows = [group.as_row(prices, *keys[key]) for key, group in groups.items()]
        count = len(rows)
    if by in _TIMES:
        rows.sort(key=lambda row: str(row.key))
        rows = rows if limit is None else rows[max(0, len(rows) - limit) :]
    else:
        rows.sort(key=_sort_key)
        rows = rows[:limit]
    return UsageTable(rows, total.as_row(prices, "total"), count)


def _sort_key(row: UsageRow) -> tuple[float, int, str]:
    key, _, input_, output, cache_read, cache_write, reasoning, cost, *_ = row
    return -(cost or 0.0), -(input_ + output + cache_read + cache_write + reasoning), key or ""


class _Group:
    __slots__ = ("sessions", "tokens")

    def __init__(self, sessions: int = 0) -> None:
        self.sessions = sessions
        self.tokens = TokenTally()

    def as_row(self, prices: PriceTable, key: str | None, cwd: str | None = None) -> UsageRow:
        tokens, cost = self.tokens.add_up(prices)
        return UsageRow(key, self.sessions, *tokens[:5], cost.rounded, cost.list_unpriced(), cwd)


def _read_whole_sessions(
    index: Index, figures: Figures, filters: Filters, prices: PriceTable, limit: int | None
) -> tuple[list[UsageRow], _Group]:
    """Return the rows by session, and the total. There can be many, so each costs as little as possible.

    With a limit, sessions that cost less than so many others are left out.
    """
    numbers = figures.list_numbers() if limit is None else list_most_expensive(index, filters, prices, limit)
    listed = SessionList(index, numbers, prices, only_tokens=True)
    rows = [UsageRow._make((row[1], 1, *row[3:8], *listed.price(row), None)) for row in listed.rows]
    _, total = _read_groups(index.connection, figures, "machine")
    return rows, total


def _read_groups(connection: Connection, figures: Figures, by: str) -> tuple[dict[Any, _Group], _Group]:
    """Return the groups by day, week, month, id of a name or number of a session; and the total."""
    key = "day" if by in _TIMES else by
    to_key: Callable[[Any], Any] = {"week": _to_week, "month": _to_month}.get(by, lambda value: value)
    rows = list(figures.sum_by(key, only_tokens=True))
    names = read_names(connection, (row.model for row in rows))
    groups: defaultdict[Any, _Group] = defaultdict(_Group)
    total = _Group(figures.count_sessions()[None])
    for (value, *_), model, _, tokens, over in rows:
        groups[to_key(value)].tokens.add(names[model], tokens, over)
        total.tokens.add(names[model], tokens, over)
    if key == by:
        counts = figures.count_sessions(key)
    else:
        counts = Counter(each for each, _ in {(to_key(day), session) for day, session in figures.list_sessions(key)})
    for each, count in counts.items():
        groups[each].sessions = count
    if by == "model":
        # Rows without a model, such as the user's own messages, have no tokens.
        return {each: group for each, group in groups.items() if group.tokens}, total
    return dict(groups), total


def _to_week(day: int) -> str:
    year, week, _ = to_date(day).isocalendar()
    return f"{year}-W{week:02}"


def _to_month(day: int) -> str:
    return to_date(day).isoformat()[:7]


def _name_keys(connection: Connection, by: str, keys: Iterable[Any]) -> dict[Any, tuple[str | None, str | None]]:
    """Return the key of each row, and the path if it is a project."""
    if by == "day":
        return {key: (to_date(key).isoformat(), None) for key in keys}
    if by in _TIMES:
        return {key: (key, None) for key in keys}
    if by == "session":
        ids = connection.execute("SELECT id, session_id FROM sessions")
        return {number: (session_id, None) for number, session_id in ids}
    names = read_names(connection, keys)
    if by != "project":
        return {key: (names[key], None) for key in keys}
    shared = Counter(project_of(names[key]) for key in keys)
    return {
        key: (names[key] if shared[project_of(names[key])] > 1 else project_of(names[key]), names[key]) for key in keys
    }


def price_session(index: Index, session_id: str, prices: PriceTable) -> tuple[float | None, tuple[str, ...]] | None:
    """Return the cost of the session with this id and the models without a price; None if it is not recorded."""
    statement = """SELECT id FROM sessions WHERE session_id = ? ORDER BY ended_at DESC LIMIT 1"""
    if (found := index.connection.execute(statement, (session_id,)).fetchone()) is None:
        return None
    document = session_document(index, found[0], prices)
    return document["cost_usd"], tuple(document["unpriced_models"])
