"""A stream of events without secrets.

It is redacted twice: its pieces joined, since a secret may be cut anywhere, and then event by event. Where joined
pieces held one, the first piece has all of the redacted text and the others have none: a reader puts together the same
answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import orjson

from hypaware.capture import sse
from hypaware.capture.decoded import Event
from hypaware.capture.redact import rebuilt, redact_json, redact_json_text, redact_text

_INDEXES = ("item_id", "output_index", "content_index", "summary_index")
_NOT_SAID = ("type", "id", "role", "name")
_HOLDS_PIECES = '"delta"'
_TOO_DEEP = '"nested too deeply"'


def redact_text_or_stream(text: str, rules_off: Collection[str] = ()) -> tuple[str, Counter[str]]:
    """Of a text that may be a stream: rules see it as the reader of the stream would, and as it stands."""
    counts: Counter[str] = Counter()
    if _HOLDS_PIECES in text and sse.looks_like_events(text):
        events, counts = redact_events([_event(each) for each in sse.events(text)], rules_off)
        text = written(events) if counts else text
    # What is no part of an event, such as a comment.
    text, found = redact_text(text, rules_off)
    return text, counts + found


def _event(raw: sse.RawEvent) -> Event:
    try:
        return Event(raw.type, orjson.loads(raw.data))
    except orjson.JSONDecodeError:
        return Event(raw.type, raw.data)


def redact_events(events: Sequence[Event], off: Collection[str]) -> tuple[tuple[Event, ...], Counter[str]]:
    counts: Counter[str] = Counter()
    documents = [_copied(event.data) for event in events]
    running: dict[Hashable, list[_Piece]] = {}
    for event, document in zip(events, documents, strict=True):
        for piece in _pieces(event.type, document):
            running.setdefault(piece.stream, []).append(piece)
    for pieces in running.values():
        _redact_joined(pieces, off, counts)
    found = [redact_json(document, off) for document in documents]
    counts.update(kind for _, each in found for kind in each.elements())
    return tuple(Event(event.type, document) for event, (document, _) in zip(events, found, strict=True)), counts


def _copied(value: Any) -> Any:
    return rebuilt(value, lambda text: text, lambda _name, text: text)


class _Piece(NamedTuple):
    """A string that continues others of its stream: `holder[name]`."""

    stream: Hashable
    holder: dict[str, Any]
    name: str


def _pieces(kind: str, data: Any) -> Iterator[_Piece]:
    """`delta` is a text (Responses), an object of texts (Anthropic), or such an object in each choice (Chat)."""
    if not isinstance(data, dict):
        return
    delta = data.get("delta")
    if isinstance(delta, str):
        yield _Piece((kind, *(str(data.get(name)) for name in _INDEXES)), data, "delta")
    elif isinstance(delta, dict):
        yield from _texts(("delta", str(data.get("index"))), delta)
    choices = data.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and isinstance(delta := choice.get("delta"), dict):
            place = ("choice", str(choice.get("index")))
            yield from _texts(place, delta)
            calls = delta.get("tool_calls")
            for call in calls if isinstance(calls, list) else ():
                if isinstance(call, dict) and isinstance(function := call.get("function"), dict):
                    yield from _texts((*place, str(call.get("index"))), function)


def _texts(place: tuple[str, ...], holder: dict[str, Any]) -> Iterator[_Piece]:
    for name, value in holder.items():
        if isinstance(value, str) and name not in _NOT_SAID:
            yield _Piece((*place, name), holder, name)


def _redact_joined(pieces: Sequence[_Piece], off: Collection[str], counts: Counter[str]) -> None:
    if len(pieces) < 2:
        return
    joined = "".join(piece.holder[piece.name] for piece in pieces)
    # The arguments of a tool come as JSON; text that is none is redacted as text.
    text, found = redact_json_text(joined, off)
    if not found:
        return
    counts.update(found)
    for piece in pieces:
        piece.holder[piece.name] = ""
    pieces[0].holder[pieces[0].name] = text


def written(events: Sequence[Event]) -> str:
    return "".join(f"event: {event.type}\n{_data(event.data)}\n\n" for event in events)


def _data(data: Any) -> str:
    try:
        text = data if isinstance(data, str) else orjson.dumps(data).decode()
    except TypeError:
        text = _TOO_DEEP
    return "\n".join(f"data: {line}" for line in text.split("\n"))
