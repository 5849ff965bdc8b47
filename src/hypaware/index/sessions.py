"""Lists of sessions, one session, and the session that a prefix of its id means."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from hypaware.errors import HypError
from hypaware.index.filters import Filters, explain_no_match, filter_sessions, project_of, read_names, to_text
from hypaware.index.prices import Cost, LongTokens, PriceTable, TokenCounts
from hypaware.index.session_order import order_sessions
from hypaware.state.titles import read_titles
from hypaware.text import did_you_mean, escape_cell

if TYPE_CHECKING:
    from sqlite3 import Connection

    from hypaware.index.store import Index

_MAX_SHOWN = 10
_MAX_TITLE = 60
_NEAR_IDS = 500
_SHORT_ID = 8
_TOKENS = ", ".join(TokenCounts._fields)
_HAS_TOKENS = f"({' | '.join(TokenCounts._fields)}) <> 0"
_NO_TOKENS = tuple(TokenCounts())
_FEW = 1000
"""If more sessions are asked for, and these are most of them, all are read: that is faster than a list of numbers."""
Document = dict[str, Any]
ModelTokens = tuple[str | None, TokenCounts, LongTokens | None]
LongByModel = dict[int, dict[int, TokenCounts]]


class StoredSession(NamedTuple):
    """A row of `sessions`. machine, client, cwd, branch and model are ids of names; see `hypaware.index.schema`."""

    id: int
    session_id: str
    started_at: int | None
    ended_at: int | None
    title: str | None
    turns: int
    messages: int
    parts: int
    tool_calls: int
    errors: int
    machine: int
    client: int | None
    cwd: int | None
    branch: int | None
    model: int | None
    input: int
    output: int
    cache_read: int
    cache_write: int
    reasoning: int
    cache_write_1h: int


_TOKEN_FIELDS = ("id", "session_id", "model", *TokenCounts._fields)
_CWD = StoredSession._fields.index("cwd")
_PLACES = (StoredSession._fields.index("machine"), StoredSession._fields.index("model") + 1)
"""The first of the fields that are ids of names, and the one after the last."""
# From the end, where all rows have the same fields.
_MODEL, _FIRST_TOKEN = -len(TokenCounts._fields) - 1, -len(TokenCounts._fields)


def list_sessions(
    index: Index,
    filters: Filters,
    prices: PriceTable,
    *,
    errors: bool = False,
    among: Collection[int] | None = None,
    sort: str = "time",
    limit: int | None = None,
) -> list[Document]:
    """Return the sessions that match, newest first, or the largest first in `sort`.

    `errors` keeps only sessions with errors, `among` only these sessions. The title is the client's own, or else the
    first prompt. The figures are those of the whole session, even if the filters match only a part of it.
    """
    numbers = order_sessions(index, filters, prices, errors=errors, among=among, sort=sort, limit=limit)
    return list(read_sessions(index, numbers, prices).values())


def read_sessions(index: Index, numbers: Sequence[int], prices: PriceTable) -> dict[int, Document]:
    """Return the sessions of these numbers (`sessions.id`) in the shape of `list_sessions`, in the given order.

    Sessions that do not exist are left out.
    """
    listed = SessionList(index, numbers, prices)
    return dict(zip((row[0] for row in listed.rows), listed.list_documents(), strict=True))


class SessionList:
    """Sessions as rows, with what is needed to show one of them: names, titles, tokens by model and costs.

    There can be many sessions, and most of what they share is computed once.
    """

    def __init__(
        self, index: Index, numbers: Sequence[int] | None, prices: PriceTable, *, only_tokens: bool = False
    ) -> None:
        """Read the sessions of these numbers, in their order, or all sessions in any order.

        With `only_tokens`, rows have only id, session_id, model and tokens, and there are no documents.
        """
        cursor = index.connection.cursor()
        cursor.row_factory = None  # plain tuples, each with the fields of StoredSession
        chosen = None
        if numbers is not None:
            ((count,),) = cursor.execute("SELECT count(*) FROM sessions")
            chosen = None if len(numbers) > max(_FEW, count // 2) else json.dumps(list(numbers))
        fields = ", ".join(_TOKEN_FIELDS if only_tokens else StoredSession._fields)
        statement = f"SELECT {fields} FROM sessions WHERE {_is_chosen('id', chosen)}"
        rows = cursor.execute(statement, {"chosen": chosen}).fetchall()
        if numbers is not None:
            found = {row[0]: row for row in rows}
            rows = [found[each] for each in numbers if each in found]
        self.rows: list[tuple[Any, ...]] = rows
        several = [row[0] for row in rows if row[_MODEL] is None]
        self._several = _read_several(index.connection, several) if several else {}
        places = [_MODEL] if only_tokens else range(*_PLACES)
        ids = {each for place in places for each in set(map(itemgetter(place), rows))}
        ids.update(model for by_model in self._several.values() for model, _ in by_model)
        self.names = read_names(index.connection, ids)
        self.titles = {} if only_tokens else read_titles(index.home)
        self._prices = prices
        self._long = _read_long(index.connection, chosen, prices.list_long(self.names))
        self._found = {each: prices.find(name) for each, name in self.names.items()}

    def price(self, row: tuple[Any, ...]) -> tuple[float | None, Sequence[str]]:
        """Return the cost of a session, and the models without a price."""
        long = self._long.get(row[0])
        if (price := self._found.get(row[_MODEL])) is not None:
            # This is so for most sessions. Those with several models have no model of their own.
            tokens = row[_FIRST_TOKEN:]
            if tokens == _NO_TOKENS:
                return None, ()
            usd = price.cost_of(tokens) if long is None else price.add_cost(0.0, tokens, long.get(row[_MODEL]))
            return round(usd, 6), ()
        cost, long = Cost(), long or {}
        for model, counts in self._list_tokens(row):
            cost.add(self._prices, self.names[model], counts, long.get(model))
        return cost.rounded, cost.list_unpriced()

    def list_models(self, row: tuple[Any, ...]) -> list[str]:
        """Return the models of a session, the one with the most output first."""
        if (model := row[_MODEL]) is not None:
            return [name] if (name := self.names[model]) else []
        found = sorted(self._list_tokens(row), key=lambda each: (-each[1].output, self.names[each[0]] or ""))
        return [name for model, _ in found if (name := self.names[model])]

    def list_documents(self) -> Iterator[Document]:
        """Yield each session in the shape of `list_sessions`."""
        names, titles, price, list_models = self.names, self.titles, self.price, self.list_models
        projects = {each: project_of(names[each]) for each in {row[_CWD] for row in self.rows}}
        for row in self.rows:
            (_, session_id, started_at, ended_at, title, *counts) = row[:10]
            (machine, client, cwd, branch, _, *tokens, _) = row[10:]
            cost, unpriced = price(row)
            yield make_document(
                *(session_id, names[client], names[machine], projects[cwd], names[cwd], names[branch]),
                *(list_models(row), titles.get(session_id) or title, to_text(started_at), to_text(ended_at)),
                *(*counts, *tokens, cost, list(unpriced)),
            )

    def _list_tokens(self, row: tuple[Any, ...]) -> list[tuple[int, TokenCounts]]:
        model = row[_MODEL]
        return self._several[row[0]] if model is None else [(model, TokenCounts._make(row[_FIRST_TOKEN:]))]


def make_document(*values: Any) -> Document:
    """Return the document of a session. The values are in the order of its members, tokens among them."""
    (session_id, client, machine, project, cwd, branch, models, title, started_at, ended_at) = values[:10]
    (turns, messages, parts, tool_calls, errors, *tokens, cost, unpriced) = values[10:]
    input_, output, cache_read, cache_write, reasoning = tokens
    return {
        "session_id": session_id,
        "client": client,
        "machine": machine,
        "project": project,
        "cwd": cwd,
        "branch": branch,
        "models": models,
        "title": title,
        "started_at": started_at,
        "ended_at": ended_at,
        "turns": turns,
        "messages": messages,
        "parts": parts,
        "tool_calls": tool_calls,
        "errors": errors,
        "tokens": {
            "input": input_,
            "output": output,
            "cache_read": cache_read,
            "cache_write": cache_write,
            "reasoning": reasoning,
        },
        "cost_usd": cost,
        "unpriced_models": unpriced,
    }


def has_several_machines(index: Index) -> bool:
    """Return whether sessions of more than one machine are indexed."""
    return len(index.connection.execute("SELECT DISTINCT machine FROM sessions LIMIT 2").fetchall()) > 1


def session_document(index: Index, session: int, prices: PriceTable) -> Document:
    """Return one session of this number (`sessions.id`) in the same shape as `list_sessions`."""
    return read_sessions(index, [session], prices)[session]


def sum_tokens(tokens: Mapping[str, int]) -> int:
    """Return all tokens of a document; reasoning is part of the output."""
    return sum(count for name, count in tokens.items() if name != "reasoning")


def find_session(index: Index, given: str) -> int:
    """Return the number of the session with this id, or of the only one whose id begins like this.

    Raise HypError if there is none, with the nearest id, or if there are several. If machines share an id, its newest
    session counts.
    """
    connection = index.connection
    exact = "SELECT id FROM sessions WHERE session_id = ? ORDER BY ended_at DESC LIMIT 1"
    if found := connection.execute(exact, (given,)).fetchone():
        return int(found[0])
    matches = list_ids(connection, given)
    if len(matches) == 1:
        return int(connection.execute(exact, matches).fetchone()[0])
    shown = escape_cell(given)
    if not matches:
        near = list_near_ids(connection, given)
        if given:
            message = f"no recorded session has an id that starts with {shown}.{name_nearest(given, near)}"
        else:
            message = f"the given id of a session is empty.{'' if near else name_nearest(given, near)}"
        raise HypError(message, kind="unknown_session", repair="hyp sessions")
    raise HypError(
        f"{shown} is the start of several sessions:{_list_titles(index, matches)}",
        kind="ambiguous_session",
    )


def _list_titles(index: Index, session_ids: Sequence[str]) -> str:
    """Return a line for each of these sessions, newest first, with its title."""
    newest = """SELECT session_id FROM sessions WHERE session_id IN (SELECT value FROM json_each(?))
        GROUP BY session_id ORDER BY max(ended_at) DESC"""
    ordered = [each for (each,) in index.connection.execute(newest, (json.dumps(session_ids),))]
    shown = ordered[:_MAX_SHOWN]
    titles = read_shown_titles(index, shown)
    lines = [f"\n  {escape_cell(each)}  {_shorten(escape_cell(titles.get(each) or '-'))}" for each in shown]
    if len(ordered) > len(shown):
        lines.append(f"\n  and {len(ordered) - len(shown):,} more")
    return "".join(lines)


def _shorten(title: str) -> str:
    return title if len(title) <= _MAX_TITLE else f"{title[: _MAX_TITLE - 1]}…"


def list_ids(connection: Connection, given: str) -> list[str]:
    """Return the ids of the sessions that begin like this, sorted; none for an empty text."""
    within = "session_id >= :given AND session_id < :given || char(1114111)" if given else "false"
    statement = f"SELECT DISTINCT session_id FROM sessions WHERE {within} ORDER BY session_id"
    return [row[0] for row in connection.execute(statement, {"given": given})]


def find_sessions_by_id(index: Index, session_ids: Sequence[str]) -> dict[str, int]:
    """Return the numbers of the sessions with these ids. If machines share an id, its newest session counts."""
    rows = index.connection.execute(
        "SELECT session_id, id FROM sessions WHERE session_id IN (SELECT value FROM json_each(?)) ORDER BY ended_at",
        (json.dumps(session_ids),),
    )
    return {row[0]: row[1] for row in rows}


def shorten_ids(index: Index, session_ids: Iterable[str]) -> dict[str, str]:
    """Return for each id its shortest prefix, of at least 8 characters, that means no other session."""
    neighbours = """SELECT (SELECT max(session_id) FROM sessions WHERE session_id < :id),
                           (SELECT min(session_id) FROM sessions WHERE session_id > :id)"""
    short = {}
    for each in session_ids:
        others = [other or "" for other in index.connection.execute(neighbours, {"id": each}).fetchone()]
        needed = max(_common_prefix(each, other) for other in others) + 1
        short[each] = each[: max(_SHORT_ID, needed)]
    return short


def read_shown_titles(index: Index, session_ids: Sequence[str]) -> dict[str, str]:
    """Return the titles of the sessions with these ids, as lists show them."""
    statement = """SELECT session_id, title FROM sessions
        WHERE session_id IN (SELECT value FROM json_each(?)) AND title IS NOT NULL ORDER BY ended_at"""
    titles = read_titles(index.home)
    found = [tuple(row) for row in index.connection.execute(statement, (json.dumps(session_ids),))]
    return {**dict(found), **{each: title for each in session_ids if (title := titles.get(each))}}


def find_last_session(index: Index, filters: Filters | None = None) -> int:
    """Return the number of the newest session that matches. Raise HypError if there is none, with the reason."""
    filters = filters or Filters()
    condition, values = filter_sessions(index.connection, filters)
    statement = f"SELECT s.id FROM sessions s WHERE {condition} ORDER BY s.ended_at DESC, s.id DESC LIMIT 1"
    found = index.connection.execute(statement, values).fetchone()
    if found is not None:
        return int(found[0])
    if index.connection.execute("SELECT 1 FROM sessions LIMIT 1").fetchone():
        reason = explain_no_match(index.connection, filters) or "no recorded session matches all of the filters"
        raise HypError(reason, kind="unknown_session", repair="hyp sessions")
    raise HypError("no session is recorded yet", kind="unknown_session", repair="hyp backfill")


def list_near_ids(connection: Connection, given: str) -> list[str]:
    """Return ids that may be meant: the neighbours in order, and the newest."""
    return [
        row[0]
        for row in connection.execute(
            """SELECT session_id FROM (SELECT session_id FROM sessions WHERE session_id < :given
                 ORDER BY session_id DESC LIMIT 1)
               UNION SELECT session_id FROM (SELECT session_id FROM sessions WHERE session_id > :given
                 ORDER BY session_id LIMIT 1)
               UNION SELECT session_id FROM (SELECT session_id FROM sessions ORDER BY ended_at DESC LIMIT :newest)""",
            {"given": given, "newest": _NEAR_IDS},
        )
    ]


def name_nearest(given: str, near: Collection[str]) -> str:
    """Return a hint with that of the ids which is most like the given one."""
    if not near:
        return " No session is recorded yet."
    if hint := did_you_mean(given, {escape_cell(each): each[: len(given)] for each in near}, or_all=False):
        return hint
    nearest = max(near, key=lambda each: (_common_prefix(each, given), each))
    return f" The nearest is {escape_cell(nearest)}."


def _common_prefix(one: str, two: str) -> int:
    length = 0
    for left, right in zip(one, two, strict=False):
        if left != right:
            break
        length += 1
    return length


def _is_chosen(column: str, chosen: str | None) -> str:
    return "true" if chosen is None else f"{column} IN (SELECT value FROM json_each(:chosen))"


def _read_several(connection: Connection, sessions: Sequence[int]) -> dict[int, list[tuple[int, TokenCounts]]]:
    """Return the tokens of each of these sessions by model."""
    sums = ", ".join(f"sum({name})" for name in TokenCounts._fields)
    cursor = connection.cursor()
    cursor.row_factory = None
    # The rows without a model are the user's own messages, which have no tokens.
    rows = cursor.execute(
        f"""SELECT session, model, {sums} FROM totals WHERE {_is_chosen("session", "")}
            AND (model <> 0 OR {_HAS_TOKENS}) GROUP BY session, model""",
        {"chosen": json.dumps(sessions)},
    )
    found: dict[int, list[tuple[int, TokenCounts]]] = {}
    for session, model, *counts in rows:
        found.setdefault(session, []).append((model, TokenCounts._make(counts)))
    return found


def _read_long(connection: Connection, chosen: str | None, models: Sequence[int]) -> dict[int, LongByModel]:
    """Return the part of the tokens that is due to long prompts, by session and model, of models that charge more."""
    if not models:
        return {}
    cursor = connection.cursor()
    cursor.row_factory = None
    # Added up here: most sessions have one folder, and SQLite would sort all rows.
    rows = cursor.execute(
        f"""SELECT session, model, over, {_TOKENS} FROM long_totals
            WHERE {_is_chosen("session", chosen)} AND model IN ({", ".join(map(str, models))})""",
        {"chosen": chosen},
    )
    found: dict[int, LongByModel] = {}
    for session, model, over, *counts in rows:
        by_size = found.setdefault(session, {}).setdefault(model, {})
        tokens = TokenCounts._make(counts)
        by_size[over] = by_size[over] + tokens if over in by_size else tokens
    return found
