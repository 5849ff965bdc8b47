"""Search: the parts whose text contains all words, with snippets, and the sessions that contain them.

A search has a time limit, counted in CPU time, so that a busy machine does not change its answer. When the time is
over, the search ends with what it has found. If it has found nothing yet, it continues to the first match, or to
`_PATIENCE` times the limit. `hypaware.index.matches` says how hits are found and ranked.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hypaware.errors import Cancelled, HypError, UsageError
from hypaware.index.blocks import PartContent, read_contents
from hypaware.index.filters import Filters, project_of, to_text
from hypaware.index.matches import (
    DEFAULT_LIMIT,
    JOINED_PARTS,
    MATCHES,
    MAX_SESSIONS,
    FoundParts,
    MatchFinder,
    SearchRequest,
)
from hypaware.index.search_syntax import SearchWords, parse_words
from hypaware.index.snippets import make_snippets
from hypaware.index.time_limit import TimeLimit
from hypaware.index.tokens import SEPARATOR, prepare_text
from hypaware.text import did_you_mean, escape_cell

if TYPE_CHECKING:
    from sqlite3 import Connection

    from hypaware.index.store import Index

TIME_LIMIT = 0.05
"""Seconds for counting and ranking. Reading the hits themselves comes on top."""
_PATIENCE = 20
_KNOWN = {
    "role": ("user", "assistant", "tool", "system"),
    "type": ("text", "reasoning", "tool_call", "tool_result", "image", "file", "error", "usage"),
}


def search(
    index: Index,
    words: str,
    filters: Filters | None = None,
    *,
    role: str | None = None,
    tool: str | None = None,
    part_type: str | None = None,
    errors: bool = False,
    limit: int | None = DEFAULT_LIMIT,
    offset: int = 0,
    time_limit: float | None = TIME_LIMIT,
    patience: float | None = None,
    now: float | None = None,
    clock: Callable[[], float] = time.thread_time,
    is_wanted: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """Return `{total, total_is_exact, is_complete, sessions, order, ignored, hits: […]}`, at most `limit` hits.

    `errors` keeps only failed tool results and other errors. `sessions` is the number of sessions that contain the
    matches, None if there are too many to count. The matches of a hit are marked in its `snippet` by `⟦` and `⟧`, which
    are nowhere else in it. `ignored` are words without letters and digits. After `time_limit` seconds the search ends
    with what it has found, and if that is nothing, after `patience` times as long; `is_complete` is then False. Without
    `limit` or `time_limit` it continues to the end. Raise Cancelled if `is_wanted`, which is asked in between, returns
    False, UsageError if the words cannot be parsed, HypError if the index holds no text.
    """
    if (limit is not None and limit < 1) or offset < 0:
        raise UsageError(f"the limit must be at least 1 and the offset at least 0, not {limit} and {offset}")
    parsed = parse_words(words)
    check_text(index)
    request = SearchRequest(
        words=parsed,
        filters=filters or Filters(),
        role=role,
        tool=tool,
        part_type=part_type,
        errors=errors,
        limit=limit,
        offset=offset,
    )
    moment = int((time.time() if now is None else now) * 1e6)
    seconds = None if limit is None else time_limit
    patience = _PATIENCE if patience is None else patience
    with TimeLimit(index.connection, seconds, patience, clock, is_wanted) as time_left:
        found = MatchFinder(index, request, time_left).find(moment)
    if is_wanted is not None and not is_wanted():
        raise Cancelled("the results of the search are no longer wanted")
    hits = found.hits[offset : None if limit is None else offset + limit]
    return {
        "total": found.total,
        # Rows of an index that is being built may be missing.
        "total_is_exact": found.is_exact and index.progress is None,
        "is_complete": found.is_complete,
        "sessions": _count_sessions(index.connection, found),
        "order": found.order,
        "ignored": list(parsed.ignored),
        "hits": [
            hit for start in range(0, len(hits), 500) for hit in _describe(index, parsed, hits[start : start + 500])
        ],
    }


def _count_sessions(connection: Connection, found: FoundParts) -> int | None:
    """Return how many sessions the matches are in, if all of them are known."""
    if not found.is_exact or len(found.hits) != found.total:
        return None
    statement = "SELECT count(DISTINCT session) FROM parts WHERE seq IN (SELECT value FROM json_each(?))"
    (count,) = connection.execute(statement, (json.dumps(found.hits),)).fetchone()
    return int(count)


def find_sessions(index: Index, words: str) -> set[int]:
    """Return the sessions (`sessions.id`) in which one part contains all words, for `hyp sessions --grep`."""
    return find_sessions_within(index, words, None)[0]


def find_sessions_within(
    index: Index, words: str, seconds: float | None, clock: Callable[[], float] = time.thread_time
) -> tuple[set[int], bool]:
    """Return the sessions of `find_sessions` that are found in this time, and whether that are all.

    The rows that were recorded last are searched first.
    """
    parsed = parse_words(words)
    check_text(index)
    found: set[int] = set()
    with TimeLimit(index.connection, seconds, _PATIENCE, clock) as time_left:
        for month in index.text_tables():
            matches = f"SELECT DISTINCT p.session FROM ({MATCHES.format(month=month)}) t {JOINED_PARTS}"
            for (session,) in time_left.read(matches, {"words": parsed.all_of}):
                found.add(session)
                time_left.note_result()
            if time_left.is_over:
                break
    return found, not time_left.is_over


def _describe(index: Index, words: SearchWords, hits: list[int]) -> list[dict[str, Any]]:
    rows = {
        row["seq"]: row
        for row in index.connection.execute(
            f"""SELECT p.seq, p.at, s.session_id, role.name AS role, type.name AS part_type, tool.name AS tool_name,
            cwd.name AS cwd, client.name AS client
            FROM parts p JOIN sessions s ON s.id = p.session LEFT JOIN names role ON role.id = p.role
            LEFT JOIN names type ON type.id = p.type LEFT JOIN names tool ON tool.id = p.tool
            LEFT JOIN names cwd ON cwd.id = coalesce(p.cwd, s.cwd) LEFT JOIN names client ON client.id = s.client
            WHERE p.seq IN ({", ".join(map(str, hits))})"""
        )
    }
    contents = read_contents(index, hits)
    snippets = make_snippets(words, {seq: _join_text(content) for seq, content in contents.items()})
    return [
        {
            "part_id": contents[seq].part_id,
            "session_id": row["session_id"],
            "at": to_text(row["at"]),
            "role": row["role"],
            "part_type": row["part_type"],
            "tool_name": row["tool_name"],
            "project": project_of(row["cwd"]),
            "client": row["client"],
            "snippet": snippets[seq],
        }
        for seq in hits
        if (row := rows.get(seq)) is not None and seq in contents
    ]


def _join_text(content: PartContent) -> str:
    arguments = None if content.tool_args is None else json.dumps(content.tool_args, ensure_ascii=False)
    return (prepare_text(content.text, arguments) or "").replace(SEPARATOR, "")


def list_tools(index: Index, most: int) -> list[str]:
    """Return the names of the tools that were called most in the newest sessions."""
    rows = index.connection.execute(
        f"""SELECT names.name FROM (SELECT tool, sum(calls) AS calls FROM tools WHERE session IN (
              SELECT id FROM sessions ORDER BY ended_at DESC LIMIT {MAX_SESSIONS}) GROUP BY tool) t
            JOIN names ON names.id = t.tool ORDER BY t.calls DESC, names.name LIMIT ?""",
        (most,),
    )
    return [name for (name,) in rows]


def explain_unknown_name(index: Index, kind: str, name: str) -> str | None:
    """Return that no part has this role, tool or type, with the nearest that exists; None if the name is known."""
    if index.connection.execute("SELECT 1 FROM names WHERE name = ?", (name,)).fetchone():
        return None
    known: list[str] = list(_KNOWN.get(kind, ()))
    if kind == "tool":
        tools = "SELECT name FROM names WHERE id IN (SELECT DISTINCT tool FROM tools) ORDER BY name"
        known = [escape_cell(tool) for (tool,) in index.connection.execute(tools)]
    hint = "" if name in known else did_you_mean(name, known, or_all=len(known) <= 20)
    return f"no recorded part has the {kind} {escape_cell(name)}.{hint}"


def check_text(index: Index) -> None:
    """Raise HypError if the index holds no text."""
    if not index.holds_text:
        raise HypError(
            "the index holds no text, because index.text is false in the config, so nothing can be searched",
            kind="no_text",
            repair="hyp config set index.text true",
        )
