"""`hyp show` and `hyp tail`: read a recorded session, or watch sessions while they are recorded."""

from __future__ import annotations

import json
import os
import select
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypaware.cli import output
from hypaware.cli.index_reader import open_for_reading
from hypaware.errors import UsageError
from hypaware.text import escape_json, format_count

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from hypaware.index.arrivals import Arrival, Arrivals
    from hypaware.index.conversation import RecordedConversation
    from hypaware.index.filters import Filters
    from hypaware.index.store import Index
    from hypaware.privacy.redact import Redaction
    from hypaware.render.text import TextStyle

_SUFFIXES = {".md": "markdown", ".markdown": "markdown", ".html": "html", ".htm": "html", ".json": "json"}
_MAX_WIDTH = 120
_MAX_MEMORY_BYTES = 8 << 20
_CHUNK = 1 << 16
_POLL_MILLISECONDS = 250


def show_session(
    filters: Filters,
    *,
    session: str | None,
    last: bool,
    format_: str | None,
    target: str | None,
    redact: bool,
    thinking: bool,
    full: bool,
    follow: bool,
) -> None:
    """Show the conversation of a session, in a pager on a terminal, or write it to the file `target`."""
    chosen = _choose_format(format_, target)
    if (session is None) != last:
        raise UsageError("name either the id of a session or --last", repair="hyp sessions")
    if session is not None and not filters.is_empty:
        raise UsageError("filters such as --project need --last; an id names the session already")
    if follow and (target is not None or chosen in ("markdown", "html")):
        raise UsageError("--follow prints as text, or with --json as JSON lines, and not to a file")
    with _open_for_watching() if follow else open_for_reading() as index:
        number = _find(index, session, filters)
        _note_missing_text(index)
        redaction = _load_redaction(index) if redact else None
        if follow:
            _follow_session(index, number, filters, redaction, full=full, thinking=thinking)
            return
        found: Counter[str] = Counter()
        conversation = _read(index, number, redaction, found)
        style = _style(filters.timezone, full=full, thinking=thinking, to_terminal=target is None)
        pieces = _render(conversation, chosen, style)
        if target is not None and target != "-":
            _write_file(Path(target), pieces)
        elif chosen == "json":
            _print_json(pieces)
        else:
            from hypaware.cli.pager import print_paged

            print_paged(pieces)
        if redact:
            output.note(f"{format_count(found.total(), 'secret')} redacted")


def watch_sessions(
    filters: Filters, *, session: str | None, parts: int, redact: bool, thinking: bool, full: bool
) -> None:
    """Show the last parts of all sessions, or of one, and then new ones until Ctrl-C."""
    from hypaware.index.arrivals import Arrivals
    from hypaware.index.sessions import find_session

    with _open_for_watching() as index:
        number = None if session is None else find_session(index, session)
        _note_missing_text(index)
        redaction = _load_redaction(index) if redact else None
        arrivals = Arrivals(index, session=number, filters=filters)
        style = _style(filters.timezone, full=full, thinking=thinking)
        watcher = _Watcher(style, redaction, names_sessions=number is None)
        watcher.show(arrivals.read_last(parts) if parts else [])
        _watch(arrivals, watcher)


def _note_missing_text(index: Index) -> None:
    if not index.holds_text:
        output.note("the index holds no text, because index.text is false in the config")


def _open_for_watching() -> Index:
    """Open the index for many refreshes. What it has to say is said once, not at each of them."""
    from hypaware.home import Home
    from hypaware.index.store import open_index

    said: set[str] = set()

    def note_once(message: str) -> None:
        # A number after the colon is the progress of something.
        beginning = message.partition(":")[0]
        if beginning not in said:
            said.add(beginning)
            output.note(message)

    return open_index(Home.from_environment(), note=note_once)


def _choose_format(given: str | None, target: str | None) -> str:
    if output.wants_json():
        if given not in (None, "json"):
            raise UsageError(f"--json means --format json and cannot be combined with --format {given}")
        return "json"
    if given is not None:
        return given
    return "text" if target is None else _SUFFIXES.get(Path(target).suffix.lower(), "text")


def _find(index: Index, session: str | None, filters: Filters) -> int:
    from hypaware.index.sessions import find_last_session, find_session

    return find_last_session(index, filters) if session is None else find_session(index, session)


def _read(index: Index, number: int, redaction: Redaction | None, found: Counter[str]) -> RecordedConversation:
    from hypaware.index.conversation import read_conversation

    conversation = read_conversation(index, number)
    if redaction is None:
        return conversation
    from hypaware.render.redaction import redact_conversation

    return redact_conversation(conversation, redaction, found)


def _load_redaction(index: Index) -> Redaction:
    from hypaware import config
    from hypaware.privacy.redact import Redaction, load_marker_key

    # Reading creates nothing in the home, so a home without a key gets markers of this output only.
    key = load_marker_key(index.home, is_dry_run=True)
    return Redaction(key, frozenset(config.load(index.home).redaction.rules_off))


def _style(zone: ZoneInfo, *, full: bool, thinking: bool, to_terminal: bool = True) -> TextStyle:
    from hypaware.cli.columns import terminal_width
    from hypaware.render.text import TextStyle

    columns = terminal_width() if to_terminal else None
    width = min(columns, _MAX_WIDTH) if columns is not None else None
    color = columns is not None and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return TextStyle(width, color, not to_terminal or output.can_print("›●∴└✗│─…"), zone, full, thinking)


def _render(conversation: RecordedConversation, format_: str, style: TextStyle) -> Iterator[str]:
    match format_:
        case "json":
            return _render_json(conversation)
        case "markdown":
            from hypaware.render.markdown import render_markdown

            return render_markdown(conversation, style.zone, full=style.full)
        case "html":
            from hypaware.render.html import render_html

            return render_html(conversation, style.zone, full=style.full)
    from hypaware.render.text import render_text

    return render_text(conversation, style)


def _render_json(conversation: RecordedConversation) -> Iterator[str]:
    """Yield the document message by message: a long session does not have to fit in memory."""
    threads = [thread.as_document() for thread in conversation.threads]
    yield f'{{\n"session": {_dump(conversation.session)},\n"threads": {_dump(threads)},\n"messages": ['
    separator = "\n"
    for message in conversation:
        yield f"{separator}{_dump(message)}"
        separator = ",\n"
    yield "\n]\n}\n"


def _dump(value: Any) -> str:
    document = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return escape_json(document.encode("utf-8", "surrogatepass")).decode()


def _print_json(pieces: Iterator[str]) -> None:
    """Print the document when it is complete: stdout must hold either the document or the error."""
    from tempfile import SpooledTemporaryFile

    with SpooledTemporaryFile(_MAX_MEMORY_BYTES) as document:
        document.writelines(_join_pieces(pieces))
        document.seek(0)
        while chunk := document.read(_CHUNK):
            output.write_bytes(chunk)


def _write_file(target: Path, pieces: Iterator[str]) -> None:
    from hypaware.query.formats import open_output

    with open_output(target) as write:
        for chunk in _join_pieces(pieces):
            write(chunk)
    output.note(f"written to {target}")


def _join_pieces(pieces: Iterator[str]) -> Iterator[bytes]:
    """Yield the pieces in chunks: there can be a piece for each line."""
    joined: list[str] = []
    size = 0
    for piece in pieces:
        joined.append(piece)
        size += len(piece)
        if size >= _CHUNK:
            yield "".join(joined).encode("utf-8", "backslashreplace")
            joined, size = [], 0
    yield "".join(joined).encode("utf-8", "backslashreplace")


def _follow_session(
    index: Index, number: int, filters: Filters, redaction: Redaction | None, *, full: bool, thinking: bool
) -> None:
    from hypaware.index.arrivals import Arrivals

    arrivals = Arrivals(index, session=number)
    style = _style(filters.timezone, full=full, thinking=thinking)
    watcher = _Watcher(style, redaction, names_sessions=False)
    conversation = _read(index, number, redaction, Counter())
    try:
        watcher.print_conversation(conversation)
        for message in _read(index, number, None, Counter()):
            arrivals.note_shown(number, message)
    except KeyboardInterrupt:
        return
    _watch(arrivals, watcher)


def _watch(arrivals: Arrivals, watcher: _Watcher) -> None:
    """Show what arrives until Ctrl-C, or until the reader of the output is gone."""
    reader = select.poll()
    reader.register(sys.stdout.fileno(), 0)
    try:
        while not any(happened & (select.POLLERR | select.POLLHUP) for _, happened in reader.poll(_POLL_MILLISECONDS)):
            watcher.show(arrivals.poll())
    except KeyboardInterrupt:
        return


class _Watcher:
    """Prints messages as they arrive."""

    def __init__(self, style: TextStyle, redaction: Redaction | None, *, names_sessions: bool) -> None:
        from hypaware.render.outline import LiveOutline
        from hypaware.render.text import TextRenderer

        self._renderer = TextRenderer(style)
        self._outline = LiveOutline()
        self._redaction = redaction
        self._names_sessions = names_sessions
        self._session: str | None = None

    def show(self, arrivals: list[Arrival]) -> None:
        for session, message in arrivals:
            if self._redaction is not None:
                from hypaware.render.redaction import redact_message

                message = redact_message(message, self._redaction)
            if output.wants_json():
                self._print_json(session, message)
            else:
                self._print(session, message)
        sys.stdout.flush()

    def print_conversation(self, conversation: RecordedConversation) -> None:
        from hypaware.render.outline import outline

        if output.wants_json():
            for message in conversation:
                self._print_json(conversation.session, message)
        else:
            self._renderer.cwd = conversation.session["cwd"]
            sys.stdout.writelines(self._renderer.header(conversation.session))
            for event in outline(conversation):
                sys.stdout.writelines(self._renderer.event(event))
        sys.stdout.flush()

    def _print_json(self, session: dict[str, Any], message: dict[str, Any]) -> None:
        named = {name: session[name] for name in ("session_id", "client", "project")}
        sys.stdout.write(_dump({**named, **message}) + "\n")

    def _print(self, session: dict[str, Any], message: dict[str, Any]) -> None:
        if self._names_sessions and session["session_id"] != self._session:
            self._session = session["session_id"]
            sys.stdout.writelines(self._renderer.session_line(session))
        self._renderer.cwd = session["cwd"]
        for event in self._outline.add(session["session_id"], message):
            sys.stdout.writelines(self._renderer.event(event))
