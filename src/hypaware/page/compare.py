"""Two sessions side by side: their figures, and their conversations turn by turn.

    /compare?a=<id>&b=<id>

Turns are aligned by their number. A session with fewer turns has nothing next to the last ones of the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, tzinfo
from itertools import zip_longest
from typing import Any

from aiohttp import web

from hypaware.errors import UsageError
from hypaware.index.conversation import RecordedConversation, read_conversation
from hypaware.index.store import Index
from hypaware.page.address import read_filters
from hypaware.page.context import PageContext
from hypaware.page.numbers import format_amount, format_document_cost, format_whole
from hypaware.page.session import HTML, describe_session, frame, own_machine, page_style, show_missing, user_name
from hypaware.page.session_parts import SessionNotFound, locate_session
from hypaware.page.text_stream import TextStream
from hypaware.render.html_blocks import HtmlBlocks
from hypaware.render.outline import TurnEnd, outline
from hypaware.text import format_duration

SIDES = ("a", "b")
_COUNTS = {"turns": "Turns", "messages": "Messages", "tool_calls": "Tool calls", "errors": "Errors"}
_TOKENS = {"input": "Tokens in", "output": "Tokens out", "cache_read": "Cache read", "cache_write": "Cache write"}


def routes(context: PageContext) -> list[web.RouteDef]:
    stream = TextStream(context)

    async def compare(request: web.Request) -> web.StreamResponse:
        ids = [request.query.get(side, "").strip() for side in SIDES]
        if not all(ids):
            raise UsageError("name two sessions: /compare?a=ID&b=ID")
        zone = read_filters(request.query).timezone

        def pieces(index: Index) -> Iterator[str]:
            prices = context.prices()
            both = [read_conversation(index, locate_session(index, each), prices) for each in ids]
            machine = own_machine(context)
            values = {
                "sides": [describe_session(each, zone, machine) for each in both],
                "rows": compare_figures([each.session for each in both]),
            }
            names = [user_name(context, each.session) for each in both]
            yield from frame(context, request, "session_compare.html", values, render_pairs(both, zone, names))

        try:
            return await stream.send(request, pieces, HTML)
        except SessionNotFound as error:
            return show_missing(context, request, error)

    return [web.get("/compare", compare)]


def compare_figures(sessions: Sequence[dict[str, Any]]) -> list[tuple[str, list[str], str]]:
    """Return the rows of the table: name, the two values, and how the second differs."""
    rows = [
        ("Cost", [format_document_cost(each) for each in sessions], _relate([each["cost_usd"] for each in sessions]))
    ]
    seconds = [_length_of(each) for each in sessions]
    rows.append(("Duration", ["–" if each is None else format_duration(each) for each in seconds], _relate(seconds)))
    for name, shown in _COUNTS.items():
        values = [each[name] for each in sessions]
        rows.append((shown, list(map(format_whole, values)), _relate(values)))
    for name, shown in _TOKENS.items():
        values = [each["tokens"][name] for each in sessions]
        rows.append((shown, list(map(format_amount, values)), _relate(values)))
    models = [", ".join(each["models"]) or "–" for each in sessions]
    return [*rows, ("Models", models, "" if models[0] == models[1] else "differ")]


def render_pairs(both: Sequence[RecordedConversation], zone: tzinfo, users: Sequence[str]) -> Iterator[str]:
    """Yield the turns, each with those of the two sessions next to each other."""
    sides = [split_turns(each, zone, user, f"{side}-") for each, user, side in zip(both, users, SIDES, strict=True)]
    for number, pair in enumerate(zip_longest(*sides, fillvalue=""), start=1):
        yield f'<section class="pair" aria-label="Turn {number}">'
        for side, turn in zip(SIDES, pair, strict=True):
            shown = turn or '<p class="dim">No such turn</p>'
            yield f'<div class="conversation"><p class="side-name">{side.upper()}, turn {number}</p>{shown}</div>'
        yield "</section>\n"


def split_turns(conversation: RecordedConversation, zone: tzinfo, user: str, prefix: str) -> Iterator[str]:
    """Yield the turns of a conversation as HTML; what came before the first one belongs to it."""
    blocks = HtmlBlocks(page_style(conversation.session, zone, user, prefix))
    pieces = [blocks.start()]
    for event in outline(conversation):
        pieces += blocks.event(event)
        if isinstance(event, TurnEnd):
            yield "".join([*pieces, blocks.finish()])
            pieces = [blocks.start()]
    if len(pieces) > 1:
        yield "".join([*pieces, blocks.finish()])


def _length_of(session: dict[str, Any]) -> float | None:
    times = [datetime.fromisoformat(session[name]) for name in ("started_at", "ended_at") if session[name]]
    return (times[1] - times[0]).total_seconds() if len(times) == 2 else None


def _relate(values: Sequence[float | None]) -> str:
    first, second = values
    if first is None or second is None or first == second:
        return "" if first != second else "same"
    if not first or not second:
        return "more" if second > first else "less"
    share = second / first
    return f"{share:.2g} ×" if 0.01 <= share < 100 else "more" if share > 1 else "less"
