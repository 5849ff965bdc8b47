"""Counts and tokens of the rows that match the filters, added up in any grouping.

Sessions that are inside the window as a whole, and within one day or hour if these are asked for, come from the sums
over all their slots (`totals`, `long_totals`, `tool_totals`); other whole slots from `activity`, `long_prompts` and
`tools`. The slots that the window cuts are computed from `parts` and `usage`, only for the sessions that were active in
them. So the figures are exact to the microsecond, and no query reads all rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import date, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from hypaware.index import day_sums
from hypaware.index.filters import Filters, filter_rows, filter_totals, read_names, split_window
from hypaware.index.prices import Cost, PriceTable, TokenCounts
from hypaware.index.schema import (
    IS_CALL,
    IS_COUNTED,
    IS_FAILED,
    IS_RESULT,
    LONG_PROMPTS,
    OVER,
    PROMPT_TOKENS,
    SLOT_OF,
)
from hypaware.index.time_zones import SlotRange, day_sql, hour_sql, list_ranges, week_sql

if TYPE_CHECKING:
    from sqlite3 import Connection

COUNTS = ("messages", "parts", "tool_calls")
_TOKENS = TokenCounts._fields
_PLACE = "p.session, s.machine, s.client"
_GROUP = f"{_PLACE}, {SLOT_OF} AS slot, coalesce(p.model, 0) AS model, coalesce(p.cwd, 0) AS cwd"
_TOKEN_SUMS = ", ".join(f"sum(coalesce(u.{name}, 0)) AS {name}" for name in _TOKENS)


class _SumTable(NamedTuple):
    """A table of sums by slot."""

    totals: str
    """The table of its sums over all slots of a session."""
    keys: tuple[str, ...]
    """What both are by, next to the session."""
    sums: tuple[str, ...]
    from_rows: str
    """How its rows are computed from rows p, u and s."""

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.keys, *self.sums)


_TABLES = {
    "activity": _SumTable(
        "totals",
        ("model", "cwd"),
        (*COUNTS, *_TOKENS),
        f"""SELECT {_GROUP}, count(DISTINCT CASE WHEN {IS_COUNTED} THEN p.message END) AS messages,
            sum({IS_COUNTED}) AS parts, sum({IS_COUNTED} AND {IS_CALL}) AS tool_calls, {_TOKEN_SUMS}
            FROM {{rows}} GROUP BY 1, 2, 3, 4, 5, 6""",
    ),
    "long_prompts": _SumTable(
        "long_totals",
        ("model", "cwd", "over"),
        _TOKENS,
        f"""SELECT {_GROUP}, {OVER} AS over, {_TOKEN_SUMS}
            FROM {{rows}} AND {PROMPT_TOKENS} > {min(LONG_PROMPTS)} GROUP BY 1, 2, 3, 4, 5, 6, 7""",
    ),
    "tools": _SumTable(
        "tool_totals",
        ("tool",),
        ("calls", "errors"),
        f"""SELECT {_PLACE}, {SLOT_OF} AS slot, p.tool, sum({IS_CALL}) AS calls,
            sum({IS_RESULT} AND {IS_FAILED}) AS errors
            FROM {{rows}} AND p.tool IS NOT NULL AND {IS_COUNTED} GROUP BY 1, 2, 3, 4, 5""",
    ),
}
_ROWS = "parts p JOIN sessions s ON s.id = p.session LEFT JOIN usage u ON u.seq = p.seq"
_PLACES = {"project": "cwd", "model": "model", "client": "client", "machine": "machine"}
_KEYS = {**{key: f"f.{column}" for key, column in _PLACES.items()}, "session": "f.session"}
_PLACE_COLUMNS = ("machine", "client", "cwd", "model")
_STARTS = {"client": "starts_session", "machine": "starts_session", "project": "starts_cwd", "model": "starts_model"}
"""The column of `totals` that counts the sessions of a key."""
_STARTS_COLUMNS = tuple(dict.fromkeys(_STARTS.values()))
_TIMES = {"day": day_sql, "hour": hour_sql, "week": week_sql}
_FIRST_DAY = date(1970, 1, 1)


class FigureRow(NamedTuple):
    keys: tuple[Any, ...]
    model: int
    counts: tuple[int, ...]
    """In the order of COUNTS."""
    tokens: TokenCounts
    over: int = 0
    """The size that the prompts exceed, if this is the part of a row that is due to long prompts."""


class Figures:
    """The figures of the rows that match.

    A key is `hour`, `day` or `week` (since 1970 in the user's zone), `session` (its number), or `project`, `model`,
    `client` or `machine` (the id of a name; 0 or None if a row has none).
    """

    def __init__(self, connection: Connection, filters: Filters, prices: PriceTable) -> None:
        self._connection = connection
        self._filters = filters
        self._prices = prices
        self._cut = split_window(filters).cut
        self._rows = filter_rows(connection, filters)
        self._totals = filter_totals(connection, filters)
        self._values = {**self._totals.values, **self._rows.values}

    def sum_by(self, *keys: str, only_tokens: bool = False) -> Iterator[FigureRow]:
        """Yield the sums of each combination of the keys and the model, and then their parts due to long prompts, if
        these cost more. With `only_tokens`, rows without tokens are left out, and no row has counts."""
        groups = ", ".join(str(number + 1) for number in range(len(keys) + 1))
        names: tuple[str, ...] = () if only_tokens else COUNTS
        at, counts = len(keys), len(names)
        columns = (*names, *_TOKENS)
        if (rows := self._sum_quickly(keys, columns)) is None:
            sums = ", ".join(f"sum(f.{name})" for name in columns)
            rows = self._run(f"SELECT {{keys}}f.model, {sums} FROM {{source}} GROUP BY {groups}", keys)
        for row in rows:
            numbers = row[at + 1 :]
            if not only_tokens or any(numbers):
                yield FigureRow(row[:at], row[at], numbers[:counts], TokenCounts._make(numbers[counts:]))
        if not (models := self._long_models):
            return
        sums = ", ".join(f"sum(f.{name})" for name in _TOKENS)
        source = f"{{source}} WHERE f.model IN ({', '.join(map(str, models))})"
        statement = f"SELECT {{keys}}f.model, f.over, {sums} FROM {source} GROUP BY {groups}, f.over"
        for row in self._run(statement, keys, "long_prompts"):
            yield FigureRow(row[:at], row[at], (0,) * counts, TokenCounts(*row[at + 2 :]), row[at + 1])

    @property
    def has_whole_sessions(self) -> bool:
        """Whether a session matches with all of its rows or with none."""
        return not self._filters.has_window and self._filters.project is None and self._filters.model is None

    def list_sessions(self, key: str) -> Iterable[tuple[Any, int]]:
        """Return the pairs of a key and a session that occur."""
        return self._run("SELECT DISTINCT {keys}f.session FROM {source}", (key,))

    def count_sessions(self, key: str | None = None) -> dict[Any, int]:
        """Return the number of sessions of each key; without one, of all rows, under None."""
        if key is None and self.has_whole_sessions:
            query = f"SELECT count(*) FROM sessions s WHERE {self._totals.sql}"
            return {None: self._connection.execute(query, self._values).fetchone()[0]}
        if key in _STARTS and self.has_whole_sessions:
            counts: Counter[Any] = Counter()
            column = _PLACE_COLUMNS.index(_PLACES[key])
            starts = _STARTS_COLUMNS.index(_STARTS[key]) - len(_STARTS_COLUMNS)
            for row in self._places:
                counts[row[column]] += row[starts]
            return dict(counts)
        if key in ("day", "week") and self.has_whole_sessions and (ranges := self._list_ranges(key)):
            return day_sums.count_sessions_within(self._connection, ranges, self._time_sql(key, "b.slot"))
        if key is None:
            ((total,),) = self._run("SELECT count(DISTINCT f.session) FROM {source}", ())
            return {None: total}
        pairs = "SELECT key0, count(*) FROM (SELECT DISTINCT {keys}f.session FROM {source}) GROUP BY 1"
        return dict(self._run(pairs, (key,)))

    def list_numbers(self) -> list[int] | None:
        """Return the number of each session that matches, if sessions match as a whole; None if all match."""
        assert self.has_whole_sessions
        if self._totals.sql == "true":
            return None
        query = f"SELECT s.id FROM sessions s WHERE {self._totals.sql}"
        return [number for (number,) in self._connection.execute(query, self._values)]

    def count_messages(self, time: str) -> dict[int, int]:
        """Return the number of messages of each `day` or `hour`. Those without messages are missing."""
        # By slot first, which is the order of an index: the hour or day of a slot is then found once.
        slots = f"SELECT slot, sum(messages) AS messages FROM ({self._select_slots()}) GROUP BY slot"
        counts = f"SELECT {self._time_sql(time)}, sum(f.messages) FROM ({slots}) f GROUP BY 1"
        return {key: count for key, count in self._connection.execute(counts, self._values) if count}

    def sum_tools(self) -> list[tuple[str, int, int]]:
        """Return the name, the calls and the failed results of each tool."""
        if self._filters.project is None and self._filters.model is None:
            relation = self._select_sums("tools")
        else:
            # The table does not have them: read the rows of the sessions that match.
            sessions = f"p.session IN (SELECT session FROM ({self._select_sums('activity')}))"
            relation = _TABLES["tools"].from_rows.format(rows=f"{_ROWS} WHERE {sessions} AND {self._rows.sql}")
        sums = f"SELECT tool, sum(calls) AS calls, sum(errors) AS errors FROM ({relation}) GROUP BY 1"
        statement = f"SELECT names.name, t.calls, t.errors FROM ({sums}) t JOIN names ON names.id = t.tool"
        return [tuple(row) for row in self._connection.execute(statement, self._values)]

    @cached_property
    def _long_models(self) -> list[int]:
        """The ids of the models with other prices for long prompts."""
        return self._prices.list_long(read_names(self._connection, self._models))

    @cached_property
    def _models(self) -> list[int]:
        return [model for (model,) in self._connection.execute(day_sums.MODELS)]

    @cached_property
    def _places(self) -> list[tuple[Any, ...]]:
        """The sums of `totals` that match by machine, client, folder and model, which are few; for any time.

        Each row has these four, the counts, the tokens and the columns that count sessions. The four are in the order
        of an index that holds all of it, so nothing is sorted.
        """
        places = ", ".join(f"a.{column}" for column in _PLACE_COLUMNS)
        sums = ", ".join(f"sum(a.{name})" for name in (*_TABLES["activity"].sums, *_STARTS_COLUMNS))
        cursor = self._connection.cursor()
        cursor.row_factory = None
        statement = f"""SELECT {places}, {sums} FROM totals a{self._join_sessions()} WHERE {self._totals.sql}
            GROUP BY {places}"""
        return cursor.execute(statement, self._values).fetchall()

    def _sum_quickly(self, keys: tuple[str, ...], columns: tuple[str, ...]) -> Iterable[tuple[Any, ...]] | None:
        """Return keys, model and sums without sorting; None if that is not possible."""
        if all(key in _PLACES for key in keys) and not self._filters.has_window:
            return self._sum_places(keys, columns)
        if len(keys) == 1 and keys[0] in ("day", "week") and (ranges := self._list_ranges(keys[0])):
            key = self._time_sql(keys[0], "b.slot")
            sums = day_sums.sum_within(self._connection, ranges, self._models, columns)
            day_sums.add_beyond(self._connection, ranges, self._models, columns, key, sums)
            return ((*pair, *numbers) for pair, numbers in sums.items())
        return None

    def _sum_places(self, keys: tuple[str, ...], columns: tuple[str, ...]) -> Iterable[tuple[Any, ...]]:
        at = [_PLACE_COLUMNS.index(_PLACES[key]) for key in (*keys, "model")]
        first = len(_PLACE_COLUMNS) + len(_TABLES["activity"].sums) - len(columns)
        groups: dict[tuple[Any, ...], list[tuple[int, ...]]] = {}
        for row in self._places:
            groups.setdefault(tuple(row[each] for each in at), []).append(row[first : first + len(columns)])
        return ((*group, *map(sum, zip(*rows, strict=True))) for group, rows in groups.items())

    def _list_ranges(self, time: str) -> list[SlotRange] | None:
        """Return the days or weeks with rows, if they can be read as ranges: nothing is filtered."""
        if self._filters.has_window or self._totals.sql != "true":
            return None
        return list_ranges(self._filters.timezone, time, *self._span)

    @cached_property
    def _span(self) -> tuple[int, int]:
        """The first and the last slot."""
        span = "SELECT (SELECT min(slot) FROM activity), (SELECT max(slot) FROM activity)"
        first, last = self._connection.execute(span).fetchone()
        return first or 0, last or 0

    def _select_sums(self, name: str, time: str | None = None) -> str:
        """Return the statement for the rows of a table of sums that match. A row can stand for several slots, of one
        day or hour if these matter."""
        table = _TABLES[name]
        # Tools are not asked for by machine and client.
        place = ("machine", "client") if "model" in table.keys else ()
        columns = ", ".join(f"a.{column}" for column in (*place, *table.columns))
        whole = ["a.first_slot >= :first_slot AND a.last_slot <= :last_slot"] if self._filters.has_window else []
        if time is not None:
            whole.append(f"{self._time_sql(time, 'a.first_slot')} = {self._time_sql(time, 'a.last_slot')}")
        is_whole = " AND ".join(whole) or "true"
        source = f"{table.totals} a{self._join_sessions()}"
        sql = f"""SELECT a.session, a.first_slot AS slot, {columns}
            FROM {source} WHERE {self._totals.sql} AND {is_whole}"""
        if whole:
            same = " AND ".join(f"b.{key} = a.{key}" for key in ("session", *table.keys))
            columns = ", ".join([*(f"a.{column}" for column in place), *(f"b.{column}" for column in table.columns)])
            sql += f"""
            UNION ALL SELECT b.session, b.slot, {columns} FROM {source} CROSS JOIN {name} b ON {same}
            WHERE {self._totals.sql} AND NOT ({is_whole}) AND a.first_slot <= :last_slot AND a.last_slot >= :first_slot
              AND b.slot BETWEEN :first_slot AND :last_slot"""
        return sql + self._select_cut(name, ("session", "slot", *place, *table.columns))

    def _select_slots(self) -> str:
        """Return the statement for slot and messages of the rows of `activity` that match."""
        condition = self._totals.sql
        if self._filters.has_window:
            condition += " AND a.slot BETWEEN :first_slot AND :last_slot"
        sql = f"SELECT a.slot, a.messages FROM activity a{self._join_sessions()} WHERE {condition}"
        return sql + self._select_cut("activity", ("slot", "messages"))

    def _select_cut(self, name: str, columns: tuple[str, ...]) -> str:
        """Return the rest of a statement: the rows of the slots that the window cuts."""
        if not self._cut:
            return ""
        slots = ", ".join(map(str, self._cut))
        within = f"p.session IN (SELECT session FROM activity WHERE slot IN ({slots})) AND {SLOT_OF} IN ({slots})"
        rows = _TABLES[name].from_rows.format(rows=f"{_ROWS} WHERE {within} AND {self._rows.sql}")
        return f" UNION ALL SELECT {', '.join(columns)} FROM ({rows})"

    def _join_sessions(self) -> str:
        return " JOIN sessions s ON s.id = a.session" if "s." in self._totals.sql else ""

    def _run(self, statement: str, keys: tuple[str, ...], table: str = "activity") -> Iterator[Any]:
        """Run a statement over the rows f of a table of sums; `{keys}` are the keys, as columns `key0` and so on."""
        time = next((key for key in keys if key in _TIMES), None)
        columns = [self._time_sql(key) if key in _TIMES else _KEYS[key] for key in keys]
        rows = self._select_sums(table, time)
        cursor = self._connection.cursor()
        cursor.row_factory = None  # plain tuples: there can be a row for every session
        listed = "".join(f"{column} AS key{at}, " for at, column in enumerate(columns))
        return iter(cursor.execute(statement.format(keys=listed, source=f"({rows}) f"), self._values))

    def _time_sql(self, time: str, slot: str = "f.slot") -> str:
        return _TIMES[time](self._filters.timezone, *self._span, slot)


class TokenTally:
    """Adds up tokens by model, so that they can be priced."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: list[tuple[str | None, TokenCounts, int]] = []

    def add(self, model: str | None, tokens: TokenCounts, over: int = 0) -> None:
        self._rows.append((model, tokens, over))

    def add_up(self, prices: PriceTable) -> tuple[TokenCounts, Cost]:
        cost = Cost()
        if len(self._rows) == 1 and not self._rows[0][2]:
            # Most sessions have one model, and there can be many of them.
            ((model, tokens, _),) = self._rows
            cost.add(prices, model, tokens)
            return tokens, cost
        groups: dict[tuple[str | None, int], list[TokenCounts]] = {}
        for model, tokens, over in self._rows:
            groups.setdefault((model, over), []).append(tokens)
        sums = {key: _sum_tokens(rows) for key, rows in groups.items()}
        for (model, over), tokens in sums.items():
            if not over:
                long = {size: counts for (name, size), counts in sums.items() if size and name == model}
                cost.add(prices, model, tokens, long)
        return _sum_tokens([TokenCounts(), *(tokens for (_, over), tokens in sums.items() if not over)]), cost

    def __bool__(self) -> bool:
        return any(any(tokens) and not over for _, tokens, over in self._rows)


def _sum_tokens(rows: list[TokenCounts]) -> TokenCounts:
    """Add up by columns: there can be a row for every session."""
    return rows[0] if len(rows) == 1 else TokenCounts._make(map(sum, zip(*rows, strict=True)))


def to_date(day: int) -> date:
    return _FIRST_DAY + timedelta(days=day)
