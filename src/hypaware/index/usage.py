"""Tokens and cost by day, week, month, project, model, client, session or machine."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from hypaware.index.figures import Figures, TokenTally, to_date
from hypaware.index.filters import Filters, project_of, read_names
from hypaware.index.prices import PriceTable
from hypaware.index.sessions import price_models, read_model_tokens, session_document

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
    figures = Figures(index.connection, filters, prices)
    if by == "session" and figures.has_whole_sessions:
        rows, total = _read_whole_sessions(index.connection, figures, prices)
    else:
        groups, total = _read_groups(index.connection, figures, by)
        keys = _name_keys(index.connection, by, groups)
        rows = [keys[key] | group.as_document(prices) for key, group in groups.items()]
    if by in _TIMES:
        rows.sort(key=lambda row: str(row["key"]))
        rows = rows if limit is None else rows[max(0, len(rows) - limit) :]
    else:
        rows.sort(key=_sort_key)
        rows = rows[:limit]
    return {
        "by": by,
        "timezone": filters.timezone.key,
        "prices_as_of": prices.as_of,
        "rows": rows,
        "total": total.as_document(prices),
    }


def _sort_key(row: Document) -> tuple[float, int, str]:
    return -(row["cost_usd"] or 0.0), -sum(row["tokens"].values()), row["key"] or ""


class _Group:
    __slots__ = ("sessions", "tokens")

    def __init__(self, sessions: int = 0) -> None:
        self.sessions = sessions
        self.tokens = TokenTally()

    def as_document(self, prices: PriceTable) -> Document:
        tokens, cost = self.tokens.add_up(prices)
        return {"sessions": self.sessions, "tokens": tokens.as_document(), **cost.as_document()}


def _read_whole_sessions(connection: Connection, figures: Figures, prices: PriceTable) -> tuple[list[Document], _Group]:
    """Return the rows by session, and the total. There can be many, so each costs as little as possible."""
    tokens = read_model_tokens(connection, None, prices)
    rows = []
    for number, session_id in figures.list_session_ids():
        counts, cost, unpriced = price_models(tokens.get(number) or [], prices)
        rows.append(
            {
                "key": session_id,
                "sessions": 1,
                "tokens": counts.as_document(),
                "cost_usd": cost,
                "unpriced_models": unpriced,
            }
        )
    _, total = _read_groups(connection, figures, "machine")
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


def _name_keys(connection: Connection, by: str, keys: Iterable[Any]) -> dict[Any, Document]:
    if by == "day":
        return {key: {"key": to_date(key).isoformat()} for key in keys}
    if by in _TIMES:
        return {key: {"key": key} for key in keys}
    if by == "session":
        ids = connection.execute("SELECT id, session_id FROM sessions")
        return {number: {"key": session_id} for number, session_id in ids}
    names = read_names(connection, keys)
    if by != "project":
        return {key: {"key": names[key]} for key in keys}
    shared = Counter(project_of(names[key]) for key in keys)
    return {
        key: {"key": names[key] if shared[project_of(names[key])] > 1 else project_of(names[key]), "cwd": names[key]}
        for key in keys
    }


def price_session(index: Index, session_id: str, prices: PriceTable) -> tuple[float | None, tuple[str, ...]] | None:
    """Return the cost of the session with this id and the models without a price; None if it is not recorded."""
    statement = """SELECT id FROM sessions WHERE session_id = ? ORDER BY ended_at DESC LIMIT 1"""
    if (found := index.connection.execute(statement, (session_id,)).fetchone()) is None:
        return None
    document = session_document(index, found[0], prices)
    return document["cost_usd"], tuple(document["unpriced_models"])
