"""Lists of sessions, one session, and the session that a prefix of its id means."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hypaware.errors import HypError
from hypaware.index.filters import Filters, filter_sessions, project_of, read_names, to_text
from hypaware.index.prices import Cost, LongTokens, PriceTable, TokenCounts
from hypaware.index.session_order import order_sessions
from hypaware.state.titles import read_titles
from hypaware.text import did_you_mean, escape_cell

if TYPE_CHECKING:
    from sqlite3 import Connection

    from hypaware.index.store import Index

_MAX_SHOWN = 5
_NEAR_IDS = 500
_SHORT_ID = 8
_TOKENS = ", ".join(TokenCounts._fields)
_HAS_TOKENS = f"({' | '.join(TokenCounts._fields)}) <> 0"
_COLUMNS = """id, session_id, started_at, ended_at, title, turns, messages, parts, tool_calls, errors,
machine, client, cwd, branch"""
_FEW = 1000
"""If more sessions are asked for, and these are most of them, all are read: that is faster than a list of numbers."""
Document = dict[str, Any]
ModelTokens = tuple[str | None, TokenCounts, LongTokens | None]
LongByModel = dict[str | None, dict[int, TokenCounts]]
Names = Mapping[int | None, str | None]


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
    cursor = index.connection.cursor()
    cursor.row_factory = None  # plain tuples: this is called with all sessions, too
    ((count,),) = cursor.execute("SELECT count(*) FROM sessions")
    is_most = len(numbers) > max(_FEW, count // 2)
    chosen = None if is_most else json.dumps(list(numbers))
    rows = cursor.execute(f"SELECT {_COLUMNS} FROM sessions WHERE {_is_chosen('id', chosen)}", {"chosen": chosen})
    found = {row[0]: row for row in rows}
    names = read_names(index.connection, {each for row in found.values() for each in row[-4:]})
    titles = read_titles(index.home)
    usage = read_model_tokens(index.connection, chosen, prices)
    return {
        each: _to_document(found[each], names, usage.get(each) or [], prices, titles)
        for each in numbers
        if each in found
    }


def has_several_machines(index: Index) -> bool:
    """Tell whether sessions of more than one machine are indexed."""
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
        nearest = name_nearest(given, list_near_ids(connection, given))
        raise HypError(
            f"no recorded session has an id that starts with {shown}.{nearest}",
            kind="unknown_session",
            repair="hyp sessions",
        )
    listed = ", ".join(map(escape_cell, matches[:_MAX_SHOWN]))
    more = f" and {len(matches) - _MAX_SHOWN} more" if len(matches) > _MAX_SHOWN else ""
    raise HypError(f"{shown} is the start of several sessions: {listed}{more}", kind="ambiguous_session")


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


def find_last_session(index: Index, filters: Filters | None = None) -> int:
    """Return the number of the newest session. Raise HypError if there is none."""
    condition, values = filter_sessions(index.connection, filters or Filters())
    statement = f"SELECT s.id FROM sessions s WHERE {condition} ORDER BY s.ended_at DESC, s.id DESC LIMIT 1"
    found = index.connection.execute(statement, values).fetchone()
    if found is None:
        raise HypError("no session is recorded yet", kind="unknown_session", repair="hyp backfill")
    return int(found[0])


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


def read_model_tokens(connection: Connection, chosen: str | None, prices: PriceTable) -> dict[int, list[ModelTokens]]:
    """Return the tokens of each chosen session by model, the model with the most output first.

    `chosen` is a JSON array of numbers, or None for all sessions.
    """
    cursor = connection.cursor()
    cursor.row_factory = None
    # The rows without a model are the user's own messages, which have no tokens. They are in the order of the primary
    # key: a session's model is in several of them if the session moved from folder to folder.
    rows = cursor.execute(
        f"""SELECT session, model, {_TOKENS} FROM totals
            WHERE {_is_chosen("session", chosen)} AND (model <> 0 OR {_HAS_TOKENS}) ORDER BY session, model""",
        {"chosen": chosen},
    ).fetchall()
    models = read_names(connection, {row[1] for row in rows})
    found: dict[int, list[ModelTokens]] = {}
    previous = None
    for row in rows:
        session, model = row[:2]
        tokens = TokenCounts._make(row[2:])
        if (session, model) == previous:
            by_model = found[session]
            by_model[-1] = (by_model[-1][0], by_model[-1][1] + tokens, None)
        elif session in found:
            found[session].append((models[model], tokens, None))
        else:
            found[session] = [(models[model], tokens, None)]
        previous = (session, model)
    long = _read_long(connection, chosen, prices.list_long(models))
    for session, by_model in found.items():
        if session in long:
            found[session] = by_model = [(name, tokens, long[session].get(name)) for name, tokens, _ in by_model]
        if len(by_model) > 1:
            by_model.sort(key=lambda each: (-each[1].output, each[0] or ""))
    return found


def _read_long(connection: Connection, chosen: str | None, models: Sequence[int]) -> dict[int, LongByModel]:
    """Return the part of the tokens that is due to long prompts, by session and model, of models that charge more."""
    if not models:
        return {}
    cursor = connection.cursor()
    cursor.row_factory = None
    rows = cursor.execute(
        f"""SELECT session, name, over, {_TOKENS} FROM long_totals JOIN names ON names.id = long_totals.model
            WHERE {_is_chosen("session", chosen)} AND model IN ({", ".join(map(str, models))})""",
        {"chosen": chosen},
    )
    found: dict[int, LongByModel] = {}
    for session, model, over, *counts in rows:
        sizes = found.setdefault(session, {}).setdefault(model, {})
        sizes[over] = sizes.get(over, TokenCounts()) + TokenCounts._make(counts)
    return found


def price_models(by_model: list[ModelTokens], prices: PriceTable) -> tuple[TokenCounts, float | None, list[str]]:
    """Return the tokens, their cost, and the models without a price."""
    if len(by_model) == 1 and by_model[0][2] is None and (price := prices.find(by_model[0][0])) is not None:
        # This is so for most sessions.
        tokens = by_model[0][1]
        return tokens, round(price.cost_of(tokens), 6) if any(tokens) else None, []
    tokens, cost = TokenCounts(), Cost()
    for model, counts, long in by_model:
        tokens += counts
        cost.add(prices, model, counts, long)
    return tokens, cost.rounded, cost.list_unpriced()


def _to_document(
    row: tuple[Any, ...], names: Names, by_model: list[ModelTokens], prices: PriceTable, titles: Mapping[str, str]
) -> Document:
    tokens, cost, unpriced = price_models(by_model, prices)
    (_, session_id, started_at, ended_at, title, turns, messages, parts, tool_calls, errors, *places) = row
    machine, client, cwd, branch = places
    folder = names[cwd]
    return {
        "session_id": session_id,
        "client": names[client],
        "machine": names[machine],
        "project": project_of(folder),
        "cwd": folder,
        "branch": names[branch],
        "models": [each[0] for each in by_model if each[0]],
        "title": titles.get(session_id) or title,
        "started_at": to_text(started_at),
        "ended_at": to_text(ended_at),
        "turns": turns,
        "messages": messages,
        "parts": parts,
        "tool_calls": tool_calls,
        "errors": errors,
        "tokens": tokens.as_document(),
        "cost_usd": cost,
        "unpriced_models": unpriced,
    }
