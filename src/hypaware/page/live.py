"""A session that is being recorded, as server-sent events.

    /sessions/<id>/events?since=<time>   `update`: {html, figures, at, is_running, facts}; `state`: {is_running}

One thread watches all sessions that are being viewed, with one open index, and each session is read once however many
viewers it has. While no file changes, a look costs a few system calls. The thread ends with the last viewer.

A viewer first gets the messages since the time up to which its page is complete, and leaves out the parts that it
already shows. The id of an event is the time of its last message: there a browser continues that connects again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from aiohttp import web

from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.index.arrivals import Arrivals
from hypaware.index.conversation import read_conversation
from hypaware.index.filters import to_moment
from hypaware.index.messages import Message, MessageReader
from hypaware.index.schema import IS_TURN
from hypaware.index.store import Index
from hypaware.page.address import read_filters
from hypaware.page.context import PageContext
from hypaware.page.session import describe_session, own_machine, page_style, user_name
from hypaware.page.session_parts import locate_session, read_messages_since
from hypaware.page.session_rows import RUNNING
from hypaware.render.facts import describe_usage
from hypaware.render.html_blocks import HtmlBlocks, to_line
from hypaware.render.outline import LiveOutline
from hypaware.text import parse_time

log = logging.getLogger("hypaware.page")

_POLL_SECONDS = 0.5
_LOOK_AGAIN_SECONDS = 10.0
"""How often the index is brought up to date even if no file has changed: a problem with it may be over."""
_BEAT_SECONDS = 10.0
_SETTLED = timedelta(minutes=10)
"""Messages of this age can still be recorded a second time, by another recorder."""
_RETRY_MILLISECONDS = 1000
_MAX_WAITING = 1000
Event = tuple[str, str, dict[str, Any]] | None
"""Id, name and content; None at the end."""


@dataclass(eq=False)
class _Viewer:
    request: web.Request
    session_id: str
    since: datetime | None
    zone: tzinfo
    put: Callable[[Event], None]


@dataclass(eq=False)
class _Watched:
    session_id: str
    number: int
    index_id: str | None
    arrivals: Arrivals
    viewers: list[_Viewer] = field(default_factory=list)
    index_state: tuple[object, ...] = ()
    looked_at: float = 0.0
    is_running: bool | None = None


def routes(context: PageContext) -> list[web.RouteDef]:
    live = LiveSessions(context)
    context.on_shutdown.append(live.close)
    return [web.get("/sessions/{id:[^/]+}/events", live.send_events)]


class LiveSessions:
    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._joined: list[_Viewer] = []
        self._viewers: set[_Viewer] = set()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._is_closed = False

    async def send_events(self, request: web.Request) -> web.StreamResponse:
        """Send events until the browser or the server goes away."""
        events: asyncio.Queue[Event] = asyncio.Queue(_MAX_WAITING)
        loop = asyncio.get_running_loop()
        # The time of the last event that arrived, if the browser connects again.
        since = parse_time(request.headers.get("Last-Event-ID") or request.query.get("since") or None)
        viewer = _Viewer(
            request,
            request.match_info["id"],
            since,
            read_filters(request.query).timezone,
            lambda event: _put(loop, events, event),
        )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        await response.write(f"retry: {_RETRY_MILLISECONDS}\n\n".encode())
        self._add(viewer)
        try:
            while not _is_gone(request):
                try:
                    event = await asyncio.wait_for(events.get(), _BEAT_SECONDS)
                except TimeoutError:
                    await response.write(b": \n\n")
                    continue
                if event is None:
                    break
                id_, name, content = event
                line = f"id: {id_}\n" if id_ else ""
                await response.write(f"{line}event: {name}\ndata: {json.dumps(content)}\n\n".encode())
        except ConnectionError:
            pass
        finally:
            self._remove(viewer)
        return response

    def close(self) -> None:
        """End all answers. The thread ends soon afterwards."""
        with self._lock:
            self._is_closed = True
            viewers = list(self._viewers)
        self._wake.set()
        for viewer in viewers:
            viewer.put(None)

    def _add(self, viewer: _Viewer) -> None:
        with self._lock:
            if self._is_closed:
                viewer.put(None)
                return
            self._viewers.add(viewer)
            self._joined.append(viewer)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="page-live", daemon=True)
                self._thread.start()
        self._wake.set()

    def _remove(self, viewer: _Viewer) -> None:
        with self._lock:
            self._viewers.discard(viewer)
        self._wake.set()

    def _run(self) -> None:
        try:
            self._context.read_here(self._watch)
        except Exception as error:
            # The browsers connect again, and a new thread opens the index again.
            if not isinstance(error, HypError):
                log.exception("watching sessions failed")
        with self._lock:
            self._thread = None
            self._joined = []
            viewers, self._viewers = self._viewers, set()
        for viewer in viewers:
            viewer.put(None)

    def _watch(self, index: Index) -> None:
        watched: dict[str, _Watched] = {}
        with self._lock:
            lost = self._viewers.difference(self._joined)
        for viewer in lost:
            # The index vanished while it was watched, and this is another one. The browsers connect again.
            viewer.put(None)
        while True:
            with self._lock:
                joined, self._joined = self._joined, []
                if self._is_closed or not self._viewers:
                    return
                viewers = set(self._viewers)
            for viewer in joined:
                self._join(index, watched, viewer)
            for each in list(watched.values()):
                each.viewers = [viewer for viewer in each.viewers if viewer in viewers]
                if not each.viewers or not self._look(index, each):
                    del watched[each.session_id]
            self._wake.wait(_POLL_SECONDS)
            self._wake.clear()

    def _join(self, index: Index, watched: dict[str, _Watched], viewer: _Viewer) -> None:
        """Bring a viewer up to date, and watch its session from now on."""
        try:
            number = locate_session(index, viewer.session_id)
        except HypError:
            viewer.put(("", "end", {}))
            return
        each = watched.get(viewer.session_id)
        if each is None:
            arrivals = Arrivals(index, session=number)
            each = watched[viewer.session_id] = _Watched(viewer.session_id, number, index.id, arrivals)
            self._note_recent(index, each)
        each.viewers.append(viewer)
        if viewer.since is not None:
            prices = self._context.prices()
            messages = list(read_messages_since(index, number, to_moment(viewer.since), prices))
            self._send(index, each, messages, [viewer])

    def _note_recent(self, index: Index, each: _Watched) -> None:
        document = read_conversation(index, each.number, self._context.prices()).session
        ended = parse_time(document["ended_at"])
        if ended is not None:
            since = to_moment(ended - _SETTLED)
            for message in read_messages_since(index, each.number, since, self._context.prices()):
                each.arrivals.note_shown(each.number, message)

    def _look(self, index: Index, each: _Watched) -> bool:
        """Send the parts that have arrived. Return False if the session is gone."""
        # Rows come into the index a little later than into their file.
        state, now = _take_index_state(index.home), time.monotonic()
        again = state != each.index_state or now - each.looked_at >= _LOOK_AGAIN_SECONDS
        if again:
            each.index_state, each.looked_at = state, now
        found = each.arrivals.poll(again=again)
        row = index.connection.execute("SELECT ended_at FROM sessions WHERE id = ?", (each.number,)).fetchone()
        if row is None or index.id != each.index_id:
            # The browsers connect again and continue after the last message that they have.
            for viewer in each.viewers:
                viewer.put(None)
            return False
        if found:
            self._send(index, each, [arrival.message for arrival in found], each.viewers)
        is_running = _is_running(row[0])
        if is_running != each.is_running or found:
            each.is_running = is_running
            for viewer in each.viewers:
                viewer.put(("", "state", {"is_running": is_running}))
        return True

    def _send(self, index: Index, each: _Watched, messages: list[Message], viewers: Iterable[_Viewer]) -> None:
        conversation = read_conversation(index, each.number, self._context.prices())
        session = conversation.session
        facts = _describe_last_turn(index, each.number, MessageReader(index, self._context.prices()))
        for viewer in viewers:
            values = describe_session(conversation, viewer.zone, own_machine(self._context))
            at = messages[-1]["at"] if messages else session["ended_at"]
            content = {
                "html": _render_messages(session, messages, viewer.zone, user_name(self._context, session)),
                "figures": self._context.render(viewer.request, "session_figures.html", values).text,
                "at": at,
                "facts": facts,
                "is_running": _is_running(to_moment(datetime.fromisoformat(session["ended_at"]))),
            }
            viewer.put((at or "", "update", content))


def _render_messages(session: dict[str, Any], messages: list[Message], zone: tzinfo, user: str) -> str:
    style = page_style(session, zone, user)
    live, blocks = LiveOutline(), HtmlBlocks(style)
    pieces = []
    for message in messages:
        thread = ""
        if message["is_sidechain"] and style.anchor is not None:
            name = message["thread"] or ""
            thread = f' data-thread="{style.anchor(name)}" data-thread-name="{to_line(name)}"'
        for event in live.add(session["session_id"], message):
            shown = "".join(blocks.event(event))
            # The attributes come into the first tag of the block.
            tag, space, rest = shown.partition(" ")
            pieces.append(f"{tag}{thread}{space}{rest}" if thread and space else shown)
            if shown.startswith("<details") and not shown.rstrip().endswith("</details>"):
                pieces.append("</details>\n")
    return "".join(pieces)


def _describe_last_turn(index: Index, session: int, reader: MessageReader) -> str:
    """Return the tokens and the cost since the user spoke last."""
    query = """
        SELECT seq FROM parts WHERE session = :session AND at >= ifnull(
            (SELECT max(at) FROM parts WHERE session = :session AND flags & :turn), 0)"""
    seqs = [seq for (seq,) in index.connection.execute(query, {"session": session, "turn": IS_TURN})]
    tokens, cost = reader.count_tokens(seqs)
    return describe_usage(tokens.as_document(), cost)


def _take_index_state(home: Home) -> tuple[object, ...]:
    """Return what changes whenever the index is written."""
    found: list[object] = []
    for path in (home.index, home.index.with_name(f"{home.index.name}-wal")):
        try:
            status = path.stat()
        except OSError:
            continue
        found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


def _is_running(ended_at: int | None) -> bool:
    return ended_at is not None and ended_at >= to_moment(datetime.now(UTC) - RUNNING)


def _is_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def _put(loop: asyncio.AbstractEventLoop, events: asyncio.Queue[Event], event: Event) -> None:
    """Put an event into the queue of a viewer, from any thread. One that does not read loses the connection."""

    def put() -> None:
        if events.full():
            while not events.empty():
                events.get_nowait()
            events.put_nowait(None)
        else:
            events.put_nowait(event)

    try:
        loop.call_soon_threadsafe(put)
    except RuntimeError:
        # The server has stopped.
        return
