"""A session as a conversation that can be read while it is sent, and what its view fetches later.

/sessions/<id>            the conversation; an id that is not complete leads to the complete one
/sessions/<id>/part       all of a text that was cut, in pieces, or as plain text
/sessions/<id>/find       the parts that contain some words, as a page or as JSON
/sessions/<id>/message    one message as Markdown
/sessions/<id>/download   the conversation as one HTML file or as Markdown, with or without secrets
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import tzinfo
from typing import Any

from aiohttp import web
from markupsafe import Markup

from hypaware import config
from hypaware.index.conversation import RecordedConversation, Thread, read_conversation
from hypaware.index.sessions import session_document
from hypaware.index.store import Index
from hypaware.page.address import make_address, message_anchor, read_filters, session_path
from hypaware.page.context import PageContext
from hypaware.page.session_parts import (
    MAX_MATCHES,
    PartMatch,
    SessionNotFound,
    find_in_session,
    list_turns,
    locate_session,
    read_message,
)
from hypaware.page.text_stream import TextStream
from hypaware.privacy.redact import Redaction, load_marker_key
from hypaware.render.edits import list_changes
from hypaware.render.facts import find_main, list_facts, resume_command
from hypaware.render.html import render_html
from hypaware.render.html_blocks import HtmlBlocks, HtmlStyle, format_json, to_diff, to_pre
from hypaware.render.markdown import render_blocks, render_markdown
from hypaware.render.outline import outline, readable_thinking
from hypaware.render.redaction import redact_conversation
from hypaware.render.safe_markdown import to_html
from hypaware.render.tool_calls import has_failed, result_text
from hypaware.state.home_opener import read_identity
from hypaware.text import escape, format_count

HTML = {"Content-Type": "text/html; charset=utf-8"}
_PLAIN = {"Content-Type": "text/plain; charset=utf-8"}
_MAX_LINES, _MAX_CHARACTERS = 60, 4000
_LARGE = 10_000
"""Parts from which on less of each is sent."""
_LARGE_CHARACTERS = 800
_GROUP = 24
_PIECE = 100_000
_FORMATS = {"html": ("html", "text/html"), "markdown": ("md", "text/markdown")}
_UNSAFE_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME = 80
_MAX_SHOWN = 100


def routes(context: PageContext) -> list[web.RouteDef]:
    view = _SessionView(context)
    return [
        web.get("/sessions/{id:[^/]+}", view.show),
        web.get("/sessions/{id:[^/]+}/part", view.show_part),
        web.get("/sessions/{id:[^/]+}/find", view.find),
        web.get("/sessions/{id:[^/]+}/message", view.copy_message),
        web.get("/sessions/{id:[^/]+}/download", view.download),
    ]


class _SessionView:
    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._stream = TextStream(context)

    async def show(self, request: web.Request) -> web.StreamResponse:
        given = request.match_info["id"]
        zone = read_filters(request.query).timezone
        try:
            session_id = await self._context.read(_find_id, given)
            if session_id != given:
                raise web.HTTPFound(make_address(session_path(session_id), request.query))

            def pieces(index: Index) -> Iterator[str]:
                number = locate_session(index, session_id)
                conversation = read_conversation(index, number, self._context.prices())
                values = {
                    **describe_session(conversation, zone, own_machine(self._context)),
                    "turns": list_turns(index, number),
                }
                yield from frame(
                    self._context,
                    request,
                    "session.html",
                    values,
                    render(conversation, zone, user_name(self._context, conversation.session)),
                )

            return await self._stream.send(request, pieces, HTML)
        except SessionNotFound as error:
            return show_missing(self._context, request, error)

    async def show_part(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        part_id, which, start = query.get("part", ""), query.get("which", "text"), query.get("from", "0")
        if which not in ("text", "args", "diff") or not start.isdecimal() or len(start) > 9:
            raise web.HTTPBadRequest
        found = await self._context.read(_read_part, request.match_info["id"], part_id, self._context.prices())
        if found is None:
            raise web.HTTPNotFound(reason="the session has no such part, or no longer")
        if query.get("format") == "text":
            return web.Response(text=escape(_all_of(found, which)), headers=_PLAIN)
        path = f"{session_path(request.match_info['id'])}/part"
        known = {"part": part_id, "which": which}
        address = make_address(path, {**known, "from": int(start) + _PIECE})
        raw = make_address(path, {**known, "format": "text"})
        content, left = render_part(found, which, int(start))
        values = {"content": Markup(content), "left": left, "address": address, "raw": raw}
        template = "session_piece.html" if query.get("format") == "piece" else "session_part.html"
        return self._context.render(request, template, {**values, "session_id": request.match_info["id"]})

    async def find(self, request: web.Request) -> web.StreamResponse:
        session_id, words = request.match_info["id"], request.query.get("q", "")
        try:
            found = await self._context.read(_find_matches, session_id, words)
        except SessionNotFound as error:
            return show_missing(self._context, request, error)
        if request.query.get("format") == "json":
            matches = [{"part": match.part, "anchor": match.anchor, "count": match.occurrences} for match in found]
            return web.json_response({"matches": matches, "is_complete": len(found) < MAX_MATCHES})
        values = {"session_id": session_id, "words": words, "matches": found, "path_of": session_path(session_id)}
        return self._context.render(request, "session_find.html", values)

    async def copy_message(self, request: web.Request) -> web.StreamResponse:
        zone = read_filters(request.query).timezone
        message_id = request.query.get("message", "")
        text = await self._context.read(_to_markdown, request.match_info["id"], message_id, self._context, zone)
        if text is None:
            raise web.HTTPNotFound(reason="the session has no such message, or no longer")
        return web.Response(text=text, headers=_PLAIN)

    async def download(self, request: web.Request) -> web.StreamResponse:
        format_ = request.query.get("format", "html")
        if format_ not in _FORMATS:
            raise web.HTTPBadRequest
        zone = read_filters(request.query).timezone
        is_redacted, full = "redact" in request.query, "full" in request.query
        session_id = request.match_info["id"]

        def pieces(index: Index) -> Iterator[str]:
            number = locate_session(index, session_id)
            conversation = read_conversation(index, number, self._context.prices())
            if is_redacted:
                conversation = redact_conversation(conversation, self._load_redaction(), Counter())
            renderer = render_html if format_ == "html" else render_markdown
            yield from renderer(conversation, zone, full=full)

        suffix, content_type = _FORMATS[format_]
        name = _UNSAFE_IN_NAMES.sub("-", session_id)[:_MAX_NAME] + ("-redacted" if is_redacted else "")
        headers = {
            "Content-Type": f"{content_type}; charset=utf-8",
            "Content-Disposition": f'attachment; filename="{name}.{suffix}"',
        }
        try:
            return await self._stream.send(request, pieces, headers)
        except SessionNotFound as error:
            return show_missing(self._context, request, error)

    def _load_redaction(self) -> Redaction:
        # As in `hyp show`: reading creates nothing in the home.
        key = load_marker_key(self._context.home, is_dry_run=True)
        return Redaction(key, frozenset(config.load(self._context.home).redaction.rules_off))


def frame(
    context: PageContext, request: web.Request, template: str, values: Mapping[str, Any], content: Iterator[str]
) -> Iterator[str]:
    """Yield a page whose template has `{{ content }}` in one place, where the pieces of the content come."""
    mark = secrets.token_hex(16)
    text = context.render(request, template, {**values, "content": mark}).text
    before, _, after = (text or "").partition(mark)
    yield before
    yield from content
    yield after


def render(conversation: RecordedConversation, zone: tzinfo, user: str = "You") -> Iterator[str]:
    """Yield the blocks of a conversation."""
    blocks = HtmlBlocks(page_style(conversation.session, zone, user))
    yield blocks.start()
    for event in outline(conversation):
        yield from blocks.event(event)
    yield blocks.finish()


def page_style(session: Mapping[str, Any], zone: tzinfo, user: str, prefix: str = "") -> HtmlStyle:
    """Return how the page shows a session. `prefix` keeps ids apart if a page shows two of them."""
    path = f"{session_path(session['session_id'])}/part"
    return HtmlStyle(
        zone,
        session["cwd"],
        max_lines=_MAX_LINES,
        max_characters=_MAX_CHARACTERS if session["parts"] <= _LARGE else _LARGE_CHARACTERS,
        anchor=lambda message_id: prefix + message_anchor(message_id),
        part_link=lambda part_id, which: make_address(path, {"part": part_id, "which": which}),
        folds=True,
        group=_GROUP,
        user=user,
    )


def describe_session(conversation: RecordedConversation, zone: tzinfo, machine: str | None) -> dict[str, Any]:
    """Return what the head of a session shows."""
    session, threads = conversation.session, conversation.threads
    return {
        "session": session,
        "session_path": session_path(session["session_id"]),
        "facts": list_facts(session, zone),
        "agents": sum(each.is_sidechain for each in threads),
        "agents_cost": add_costs(threads),
        "command": resume_command(session, find_main(threads)),
        "is_elsewhere": session["machine"] not in (None, machine),
        "zone": zone,
    }


def add_costs(threads: tuple[Thread, ...]) -> float | None:
    """Return what the subagents cost, None if none of their costs is known."""
    costs = [each.cost_usd for each in threads if each.is_sidechain]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known else None


def own_machine(context: PageContext) -> str | None:
    """Return the name under which this machine records; None on a server, which is no one's own machine."""
    if context.access.is_team:
        return None
    return read_identity(context.home, make=False).gateway_of_rows(context.home.root)


def user_name(context: PageContext, session: Mapping[str, Any]) -> str:
    """Return the name of the person who typed in a session: on a server, the person whose machine recorded it."""
    return (context.machines().person_of(session["machine"]) or "User") if context.access.is_team else "You"


def show_missing(context: PageContext, request: web.Request, error: SessionNotFound) -> web.Response:
    shown, left = error.matches[:_MAX_SHOWN], max(0, len(error.matches) - _MAX_SHOWN)
    # The message lists the matches on lines of its own; here they are links.
    message, *_ = error.message.splitlines()
    values = {"message": message, "matches": shown, "left": left, "nearest": error.nearest}
    return context.render(request, "session_missing.html", values, status=404)


def render_part(part: Mapping[str, Any], which: str, start: int) -> tuple[str, str]:
    """Return one piece of a part as HTML, and how much is left after it, in words."""
    if which == "diff":
        changes = list_changes(part["tool_args"]) or []
        return to_diff(changes, _PIECE), ""
    text = _all_of(part, which)
    piece, left = text[start : start + _PIECE], len(text) - start - _PIECE
    is_said = which == "text" and part["type"] == "text" and not start and left <= 0
    shown = to_html(piece) if is_said else to_pre(piece, is_bad=has_failed(part))
    return shown, format_count(left, "more character") if left > 0 else ""


def _all_of(part: Mapping[str, Any], which: str) -> str:
    if which == "text":
        match part["type"]:
            case "tool_result":
                return result_text(part)
            case "reasoning":
                return readable_thinking(part["text"] or "")
        return part["text"] or ""
    args = part["tool_args"]
    if which == "diff":
        return "\n".join(f"{line.sign} {line.text}" for line in list_changes(args) or [])
    return args if isinstance(args, str) else format_json(args)


def _find_id(index: Index, given: str) -> str:
    number = locate_session(index, given)
    return str(index.connection.execute("SELECT session_id FROM sessions WHERE id = ?", (number,)).fetchone()[0])


def _read_part(index: Index, session_id: str, part_id: str, prices: Any) -> dict[str, Any] | None:
    message = read_message(index, locate_session(index, session_id), part_id.rpartition("#")[0], prices)
    parts: list[dict[str, Any]] = message["parts"] if message else []
    return next((part for part in parts if part["part_id"] == part_id), None)


def _find_matches(index: Index, session_id: str, words: str) -> list[PartMatch]:
    return find_in_session(index, locate_session(index, session_id), words)


def _to_markdown(index: Index, session_id: str, message_id: str, context: PageContext, zone: tzinfo) -> str | None:
    number = locate_session(index, session_id)
    message = read_message(index, number, message_id, context.prices())
    if message is None:
        return None
    session = session_document(index, number, context.prices())
    single = RecordedConversation(session, (Thread(None),), lambda _thread: iter([message]))
    return "".join(render_blocks(single, zone, full=True)).strip() + "\n"
