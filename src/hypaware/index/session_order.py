"""The order of a list of sessions, and its pages: newest first, or the largest first in cost, tokens or length.

The order is a list of numbers (`sessions.id`), so that a page reads in full only the sessions that it shows. Sizes are
added up by SQLite from `totals`, also the cost: its statement contains the prices of the models that occur.
"""

from __future__ import annotations

import heapq
import json
from collections import defaultdict
from collections.abc import Collection
from operator import sub
from typing import TYPE_CHECKING, NamedTuple

from hypaware.index.filters import Filters, filter_sessions
from hypaware.index.prices import ModelPrice, PriceTable

if TYPE_CHECKING:
    from sqlite3 import Connection

    from hypaware.index.store import Index

SORTS = ("time", "cost", "tokens", "length")
_TOKENS = """coalesce((SELECT sum(t.input + t.cache_read + t.cache_write + t.output) FROM totals t
    WHERE t.session = s.id), 0)"""
_CLOSE = 2
"""Amounts that differ by more than this, in millionths of a dollar, differ after rounding too."""
_HAS_TOKENS = "(t.input | t.output | t.cache_read | t.cache_write | t.reasoning | t.cache_write_1h) <> 0"


class SessionKey(NamedTuple):
    """The place of a session in the list of the newest sessions."""

    ended_at: int
    number: int


def order_sessions(
    index: Index,
    filters: Filters,
    prices: PriceTable,
    *,
    errors: bool = False,
    among: Collection[int] | None = None,
    sort: str = "time",
    limit: int | None = None,
    offset: int = 0,
    before: SessionKey | None = None,
) -> list[int]:
    """Return the numbers of the sessions that match, in the order of `sort`.

    `errors` keeps only sessions with errors, `among` only these sessions. A page of the newest sessions continues
    `before` the last session of the previous page, so that sessions that arrive in between move nothing; pages of the
    other orders begin at an `offset`.
    """
    condition, values = filter_sessions(index.connection, filters)
    if errors:
        condition += " AND s.errors > 0"
    if among is not None:
        condition += " AND s.id IN (SELECT value FROM json_each(:among))"
        values["among"] = json.dumps(list(among))
    if before is not None:
        condition += " AND (s.ended_at, s.id) < (:before_end, :before_number)"
        values |= {"before_end": before.ended_at, "before_number": before.number}
    size = _size(index.connection, prices, sort)
    order = f"{size} DESC, s.ended_at DESC, s.id DESC" if size else "s.ended_at DESC, s.id DESC"
    cursor = index.connection.cursor()
    cursor.row_factory = None  # plain tuples: there can be many
    rows = cursor.execute(
        f"SELECT s.id FROM sessions s WHERE {condition} ORDER BY {order} LIMIT :limit OFFSET :offset",
        {**values, "limit": -1 if limit is None else limit, "offset": offset},
    )
    return [number for (number,) in rows]


def list_most_expensive(index: Index, filters: Filters, prices: PriceTable, count: int) -> list[int]:
    """Return the numbers of the sessions that match and cost most, in any order.

    There are more than `count` of them if several cost as much as the last one to a millionth of a dollar.
    """
    condition, values = filter_sessions(index.connection, filters)
    cursor = index.connection.cursor()
    cursor.row_factory = None
    cost = _cost(index.connection, prices)
    rows = cursor.execute(f"SELECT s.id, max({cost}, 0) FROM sessions s WHERE {condition}", values).fetchall()
    largest = heapq.nlargest(count, (usd or 0.0 for _, usd in rows))
    least = largest[-1] - _CLOSE if largest else 0.0
    return [number for number, usd in rows if (usd or 0.0) >= least]


def find_key(index: Index, number: int) -> SessionKey:
    """Return the place of a session in the list of the newest sessions."""
    (ended_at,) = index.connection.execute("SELECT ended_at FROM sessions WHERE id = ?", (number,)).fetchone()
    return SessionKey(ended_at, number)


def _size(connection: Connection, prices: PriceTable, sort: str) -> str:
    """Return the SQL for the size of a session s that an order compares; empty for the order by time."""
    if sort == "cost":
        return _cost(connection, prices)
    return {"tokens": _TOKENS, "length": "s.messages"}.get(sort, "")


def _cost(connection: Connection, prices: PriceTable) -> str:
    """Return the SQL for the cost of a session s. Without any price, it comes after those that cost nothing."""
    models: defaultdict[ModelPrice, list[int]] = defaultdict(list)
    used = "SELECT id, name FROM names WHERE id IN (SELECT DISTINCT model FROM totals)"
    for number, name in connection.execute(used):
        if (price := prices.find(name)) is not None:
            models[price].append(number)
    if not models:
        return "NULL"
    short = [f"WHEN t.model IN ({_join(ids)}) THEN {_price(_weights(price))}" for price, ids in models.items()]
    # What responses with long prompts cost in addition.
    long = [
        f"WHEN t.model IN ({_join(ids)}) AND t.over >= {price.over} "
        f"THEN {_price(tuple(map(sub, _weights(price.long), _weights(price))))}"
        for price, ids in models.items()
        if price.long is not None
    ]
    total = f"(SELECT sum(CASE {' '.join(short)} END) FROM totals t WHERE t.session = s.id AND {_HAS_TOKENS})"
    if long:
        more = f"SELECT sum(CASE {' '.join(long)} END) FROM long_totals t WHERE t.session = s.id"
        total += f" + coalesce(({more}), 0)"
    return f"coalesce({total}, -1)"


def _weights(price: ModelPrice) -> tuple[float, ...]:
    return (price.input, price.output, price.cache_read, price.cache_write_5m, price.cache_write_1h)


def _price(weights: tuple[float, ...]) -> str:
    """Return the SQL for the tokens of a row t at these prices, as in ModelPrice.cost_of."""
    input_, output, cache_read, cache_write_5m, cache_write_1h = (repr(float(each)) for each in weights)
    kept = "min(t.cache_write_1h, t.cache_write)"
    return (
        f"t.input * {input_} + t.output * {output} + t.cache_read * {cache_read} "
        f"+ (t.cache_write - {kept}) * {cache_write_5m} + {kept} * {cache_write_1h}"
    )


def _join(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
