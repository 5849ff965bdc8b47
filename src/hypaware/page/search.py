"""The search: what `hyp search` finds, by session, while one types.

The view is a plain page with a form. With JavaScript the same results, without the page around them (`/lists/search`),
replace those on the screen at each key. Words that cannot be read and filters that exclude everything are explained
in place of the results, so that nothing that was typed is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import web

from hypaware.errors import Cancelled, HypError, UsageError
from hypaware.index.filters import Filters, explain_no_match
from hypaware.index.prices import PriceTable
from hypaware.index.search import TIME_LIMIT, explain_unknown_name, list_tools
from hypaware.index.search import search as run_search
from hypaware.index.sessions import find_sessions_by_id, read_sessions
from hypaware.index.snippets import split_marks
from hypaware.index.store import Index
from hypaware.page.address import FILTERS, Linker, message_path, read_filters, session_path
from hypaware.page.context import PageContext
from hypaware.page.filter_bar import load_filter_bar
from hypaware.page.numbers import format_local
from hypaware.page.session_rows import NO_TITLE, cut_text
from hypaware.text import escape_cell

PAGE_HITS = 30
_SHOWN_HITS = 3
"""Hits of one session that are shown at once; the others are folded."""
_MAX_OFFSET = 5000
_MAX_TOOLS = 12
_LONGEST_TOOL = 60
_PATIENCE = 1.5
_LONG_PATIENCE = 100.0
"""Of the time limit of a search, how much it may take until it finds anything."""
_TIME_FOR_ANSWER = 0.1
"""Seconds after which no further filters are tried, to tell whether there are matches without them."""
_BRIEF_LIMIT = 0.01
"""Seconds for a search that only tells whether there are matches without a filter."""
_ROLES = ("user", "assistant", "tool", "system")
_TYPES = ("text", "reasoning", "tool_call", "tool_result", "error")
_OWN_FILTERS = ("role", "tool", "type", "errors")


@dataclass(frozen=True)
class SearchTerms:
    """What an address asks for."""

    words: str
    filters: Filters
    role: str | None = None
    tool: str | None = None
    part_type: str | None = None
    errors: bool = False
    offset: int = 0
    longer: bool = False
    """Whether the search may take seconds, because nothing was found in the time for an answer while one types."""


@dataclass(frozen=True)
class SearchHit:
    path: str
    when: str
    at: str
    role: str
    kind: str
    pieces: list[tuple[str, bool]]
    """The snippet: texts, each with whether it is marked."""


@dataclass(frozen=True)
class HitGroup:
    """Hits of one session."""

    path: str
    find: str
    """The address of all matches in this session."""
    title: str
    project: str
    client: str
    hits: list[SearchHit]

    @property
    def shown(self) -> list[SearchHit]:
        return self.hits[:_SHOWN_HITS]

    @property
    def folded(self) -> list[SearchHit]:
        return self.hits[_SHOWN_HITS:]


@dataclass(frozen=True)
class Relaxation:
    """A filter without which there are matches."""

    label: str
    address: str
    total: int
    is_exact: bool


@dataclass(frozen=True)
class SearchAnswer:
    groups: list[HitGroup]
    total: int = 0
    is_exact: bool = True
    is_complete: bool = True
    sessions: int | None = None
    order: str = "relevance"
    ignored: tuple[str, ...] = ()
    prefix: str = ""
    """The last word, if nothing contains it as a whole and the matches are of words that begin like it."""
    previous: int | None = None
    """The offset of the previous page of hits."""
    next: int | None = None
    problem: str = ""
    relaxations: tuple[Relaxation, ...] = ()
    tools: tuple[str, ...] = ()


def routes(context: PageContext) -> list[web.RouteDef]:
    async def answer(request: web.Request, template: str, more: Mapping[str, Any]) -> web.Response:
        asked = read_terms(request.query)
        link = Linker("/search", request.query)

        def is_wanted() -> bool:
            # If the user types on, the browser closes the connection and this answer is not needed.
            return request.transport is not None

        try:
            found = await context.read(find_hits, asked, context.prices(), link, is_wanted)
        except Cancelled:
            return web.Response(status=204)
        values = {"asked": asked, "found": found, "roles": _ROLES, "types": _TYPES, "to_search": link}
        return context.render(request, template, {**values, **more})

    async def search(request: web.Request) -> web.Response:
        bar = await load_filter_bar(context, request, read_filters(request.query))
        kept = [(name, request.query[name]) for name in (*FILTERS, *_OWN_FILTERS) if request.query.get(name)]
        return await answer(request, "search.html", {"bar": bar, "kept": kept})

    async def results(request: web.Request) -> web.Response:
        return await answer(request, "search_results.html", {})

    return [web.get("/search", search), web.get("/lists/search", results)]


def read_terms(query: Mapping[str, str]) -> SearchTerms:
    """Return what an address asks for. Raise UsageError if it cannot be read."""
    offset = query.get("offset") or "0"
    if not (offset.isascii() and offset.isdigit() and len(offset) < 6 and int(offset) <= _MAX_OFFSET):
        raise UsageError(f"offset={escape_cell(offset[:40])} must be a number from 0 to {_MAX_OFFSET}")
    return SearchTerms(
        query.get("q", "").strip(),
        # Here the tool is that of the part itself.
        read_filters(query)._replace(tool=None),
        query.get("role") or None,
        query.get("tool") or None,
        query.get("type") or None,
        query.get("errors", "") not in ("", "0", "false"),
        int(offset),
        query.get("longer", "") == "1",
    )


def find_hits(
    index: Index,
    asked: SearchTerms,
    prices: PriceTable,
    link: Linker,
    is_wanted: Callable[[], bool] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> SearchAnswer:
    """Return the matches by session, or why there are none. Raise Cancelled if the request is gone."""
    end = clock() + _TIME_FOR_ANSWER
    tools = tuple(tool for tool in list_tools(index, _MAX_TOOLS) if len(tool) <= _LONGEST_TOOL)
    if not asked.words:
        return SearchAnswer([], tools=tools)
    prefix = ""
    try:
        found = _run(index, asked, is_wanted=is_wanted)
        beginning = _as_prefix(asked.words)
        if beginning is not None and not found["total"] and found["is_complete"]:
            terms = replace(asked, words=beginning)
            by_prefix = _run(index, terms, time_limit=TIME_LIMIT / 2, is_wanted=is_wanted)
            if by_prefix["total"]:
                found, prefix = by_prefix, cut_text(beginning.split()[-1])
    except Cancelled:
        raise
    except HypError as error:
        return SearchAnswer([], problem=error.message, tools=tools)
    if not found["total"]:
        answer = _explain(index, asked, link, tools, lambda: clock() < end)
        return replace(answer, is_complete=found["is_complete"], ignored=tuple(map(cut_text, found["ignored"])))
    last = asked.offset + PAGE_HITS
    return SearchAnswer(
        _group(index, found["hits"], asked, prices),
        found["total"],
        found["total_is_exact"],
        found["is_complete"],
        found["sessions"],
        found["order"],
        tuple(map(cut_text, found["ignored"])),
        prefix,
        max(0, asked.offset - PAGE_HITS) if asked.offset else None,
        last if len(found["hits"]) == PAGE_HITS and last <= _MAX_OFFSET and found["total"] > last else None,
        tools=tools,
    )


def _run(
    index: Index,
    asked: SearchTerms,
    limit: int = PAGE_HITS,
    time_limit: float = TIME_LIMIT,
    is_wanted: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    return run_search(
        index,
        asked.words,
        asked.filters,
        role=asked.role,
        tool=asked.tool,
        part_type=asked.part_type,
        errors=asked.errors,
        limit=limit,
        offset=asked.offset,
        time_limit=time_limit,
        patience=_LONG_PATIENCE if asked.longer else _PATIENCE,
        is_wanted=is_wanted,
    )


def _as_prefix(words: str) -> str | None:
    """Return the words with the last one as a prefix; None if that is not a word of letters and digits."""
    return f"{words}*" if words[-1].isalnum() and words.count('"') % 2 == 0 else None


def _group(index: Index, hits: list[dict[str, Any]], asked: SearchTerms, prices: PriceTable) -> list[HitGroup]:
    """Return the hits by session, the session of the best hit first."""
    by_session: dict[str, list[dict[str, Any]]] = {}
    for hit in hits:
        by_session.setdefault(hit["session_id"], []).append(hit)
    numbers = find_sessions_by_id(index, list(by_session))
    sessions = read_sessions(index, list(numbers.values()), prices)
    groups = []
    for session_id, members in by_session.items():
        session = sessions[numbers[session_id]]
        groups.append(
            HitGroup(
                session_path(session_id),
                Linker(f"{session_path(session_id)}/find", {})(q=asked.words),
                cut_text(session["title"], 200) or NO_TITLE,
                cut_text(members[0]["project"]),
                cut_text(session["client"]),
                [_to_hit(hit, asked) for hit in members],
            )
        )
    return groups


def _to_hit(hit: dict[str, Any], asked: SearchTerms) -> SearchHit:
    kind = hit["part_type"] if hit["part_type"] != "text" else ""
    return SearchHit(
        message_path(hit["session_id"], hit["part_id"].rpartition("#")[0]),
        format_local(hit["at"], asked.filters.timezone),
        hit["at"],
        cut_text(hit["role"]),
        cut_text(f"{kind.replace('_', ' ')} {hit['tool_name'] or ''}".strip()),
        [(escape_cell(piece), is_marked) for piece, is_marked in split_marks(hit["snippet"])],
    )


def _explain(
    index: Index, asked: SearchTerms, link: Linker, tools: tuple[str, ...], has_time: Callable[[], bool]
) -> SearchAnswer:
    """Return why nothing matches: a name that does not exist, or the filters without which something would."""
    names = {"role": asked.role, "tool": asked.tool, "type": asked.part_type}
    reasons = [reason for kind, name in names.items() if name and (reason := explain_unknown_name(index, kind, name))]
    problem = next(iter(reasons), None) or explain_no_match(index.connection, asked.filters) or ""
    plain = Filters(timezone=asked.filters.timezone, excluded=asked.filters.excluded)
    without: dict[str, tuple[SearchTerms, dict[str, None]]] = {
        "role": (replace(asked, role=None), {"role": None}),
        "tool": (replace(asked, tool=None), {"tool": None}),
        "type": (replace(asked, part_type=None), {"type": None}),
        "errors": (replace(asked, errors=False), {"errors": None}),
        "filters": (
            replace(asked, role=None, tool=None, part_type=None, errors=False, filters=plain),
            dict.fromkeys((*FILTERS, *_OWN_FILTERS)),
        ),
    }
    for name in ("project", "client", "model", "machine", "person", "failed"):
        cleared: dict[str, Any] = {name: None}
        without[name] = (replace(asked, filters=asked.filters._replace(**cleared)), cleared)
    dates = asked.filters._replace(since=None, until=None)
    without["dates"] = (replace(asked, filters=dates), dict.fromkeys(("days", "since", "until")))
    relaxed = []
    for label, (terms, changes) in without.items():
        if terms != asked and has_time() and (found := _run(index, replace(terms, offset=0), 1, _BRIEF_LIMIT))["total"]:
            relaxed.append(Relaxation(label, link(**changes), found["total"], found["total_is_exact"]))
    named = [each for each in relaxed if each.label != "filters"]
    return SearchAnswer([], problem=problem, relaxations=tuple(named or relaxed), tools=tools)
