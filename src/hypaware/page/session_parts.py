"""Read from the index what the view of a session shows next to the conversation: turns, one part, words in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from hypaware.errors import HypError
from hypaware.index.blocks import PartContent, read_contents, read_session_contents
from hypaware.index.messages import Message, MessageReader
from hypaware.index.parts import hash_message_id
from hypaware.index.prices import PriceTable
from hypaware.index.schema import IS_ERROR, IS_TURN, OFF_CONVERSATION
from hypaware.index.sessions import find_session, list_ids, list_near_ids
from hypaware.index.store import Index
from hypaware.page.address import message_anchor
from hypaware.render.html_blocks import shorten_prompt
from hypaware.text import escape_cell

_AROUND = 60
MAX_MATCHES = 2000


@dataclass
class TurnEntry:
    anchor: str
    prompt: str
    errors: int = 0


class PartMatch(NamedTuple):
    part: str
    """`<anchor of the message>-<index of the part>`, as elements name their part."""
    anchor: str
    at: int
    occurrences: int
    snippet: str


class SessionNotFound(HypError):
    """No session has the id, or several begin with it."""

    def __init__(self, error: HypError, matches: list[str], nearest: str | None) -> None:
        super().__init__(error.message, kind=error.kind, repair=error.repair)
        self.matches = matches
        self.nearest = nearest


def locate_session(index: Index, given: str) -> int:
    """Return the number of a session. Raise SessionNotFound with the ids that may be meant."""
    try:
        return find_session(index, given)
    except HypError as error:
        matches = list_ids(index.connection, given)
        near = [] if matches else list_near_ids(index.connection, given)
        named = (each for each in near if escape_cell(each) in error.message and each != given)
        raise SessionNotFound(error, matches, next(named, None)) from error


def list_turns(index: Index, session: int) -> list[TurnEntry]:
    """Return the turns of a session in order, with the errors up to the next one."""
    query = """
        SELECT seq, flags & :turn FROM parts
        WHERE session = :session AND flags & (:turn | :error) AND NOT flags & :off ORDER BY at, message_index, seq"""
    values = {"session": session, "turn": IS_TURN, "error": IS_ERROR, "off": OFF_CONVERSATION}
    rows = [tuple(row) for row in index.connection.execute(query, values)]
    contents = read_contents(index, [seq for seq, is_turn in rows if is_turn])
    turns: list[TurnEntry] = []
    for seq, is_turn in rows:
        if not is_turn:
            if turns:
                turns[-1].errors += 1
        elif seq in contents:
            content = contents[seq]
            turns.append(TurnEntry(message_anchor(content.message_id), shorten_prompt(content.text)))
    return turns


def read_message(index: Index, session: int, message_id: str, prices: PriceTable) -> Message | None:
    """Return a message of a session, None if the session has no such message."""
    reader = MessageReader(index, prices)
    found = reader.list_messages(
        "p.session = :session AND p.message = :message", {"session": session, "message": hash_message_id(message_id)}
    )
    return next(iter(reader.read_messages([(each, None) for each in found])), None)


def read_messages_since(index: Index, session: int, moment: int, prices: PriceTable) -> Iterator[Message]:
    """Yield the messages of a session from a moment on."""
    reader = MessageReader(index, prices)
    found = reader.list_messages("p.session = :session AND p.at >= :moment", {"session": session, "moment": moment})
    names = reader.load_names(each.thread for each in found)
    return reader.read_messages([(each, names[each.thread]) for each in found])


def find_in_session(index: Index, session: int, words: str) -> list[PartMatch]:
    """Return the parts of a session that contain the words as they are written, in any case, in their order."""
    wanted = words.casefold()
    if not wanted.strip():
        return []
    query = "SELECT seq, at FROM parts WHERE session = ? AND NOT flags & ?"
    times = dict(tuple(row) for row in index.connection.execute(query, (session, OFF_CONVERSATION)))
    found = []
    for content in read_session_contents(index, session):
        if content.seq not in times:
            continue
        text = _searched_text(content)
        folded = text.casefold()
        if count := folded.count(wanted):
            anchor = message_anchor(content.message_id)
            part = f"{anchor}-{content.part_id.rpartition('#')[2]}"
            # Folding can change the length of a text, so the snippet may begin a little off.
            snippet = _cut_around(text, folded.index(wanted), len(words))
            found.append(PartMatch(part, anchor, times[content.seq], count, snippet))
            if len(found) == MAX_MATCHES:
                break
    return sorted(found, key=lambda match: match.at)


def _searched_text(content: PartContent) -> str:
    if content.tool_args is None:
        return content.text or ""
    return f"{content.text or ''}\n{_join_values(content.tool_args)}"


def _join_values(value: Any) -> str:
    """Return the texts in the arguments of a tool call, one below the other."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False) if not isinstance(value, dict) else "\n".join(_list_values(value))
    except RecursionError:
        return ""


def _list_values(value: dict[str, Any]) -> Iterator[str]:
    for each in value.values():
        yield each if isinstance(each, str) else json.dumps(each, ensure_ascii=False)


def _cut_around(text: str, start: int, length: int) -> str:
    first = max(0, start - _AROUND)
    return " ".join(text[first : start + length + _AROUND].split())
