"""Redaction of an exchange before it is projected and stored (`redaction.kept` in the config).

Redaction comes before projection, so that rows, raw exchange and a later reprojection contain the same text and derive
the same ids. A stream is redacted twice: first its fragments joined, because a secret may be split anywhere, then event
by event. If the joined fragments contain a secret, the first fragment gets all of the redacted text and the others
become empty, so a reader assembles the same response. An exchange without secrets is not changed at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from hypaware.capture.decoded import Decoded, Event
from hypaware.capture.redact import rebuilt, redact_json, redact_json_text, redact_text

_INDEXES = ("item_id", "output_index", "content_index", "summary_index")
_NOT_SAID = ("type", "id", "role", "name")
_ARGUMENTS = ("partial_json", "arguments")
_TOO_DEEP = '"nested too deeply"'


def redacted(decoded: Decoded, rules_off: Collection[str] = ()) -> tuple[Decoded, Counter[str]]:
    """Return the exchange without secrets, and how often each rule matched."""
    counts: Counter[str] = Counter()
    request, request_text = _body(decoded.request, decoded.request_text, rules_off, counts)
    if decoded.events is None:
        response, response_text = _body(decoded.response, decoded.response_text, rules_off, counts)
        events: tuple[Event, ...] | None = None
    else:
        before = counts.total()
        events = _stream(decoded.events, rules_off, counts)
        response = decoded.response
        response_text = decoded.response_text if counts.total() == before else _written(events)
    if not counts:
        return decoded, counts
    return (
        replace(
            decoded,
            request=request,
            request_text=request_text,
            response=response,
            response_text=response_text,
            events=events,
        ),
        counts,
    )


def _body(document: Any, text: str | None, off: Collection[str], counts: Counter[str]) -> tuple[Any, str | None]:
    if text is None:
        return document, None
    if document is None:
        text, found = redact_text(text, off)
        counts.update(found)
        return None, text
    document, found = redact_json(document, off)
    counts.update(found)
    if not found:
        return document, text
    try:
        # Serialized as clients do it, with the keys in their order, so that a repeated history has the same parts.
        return document, orjson.dumps(document).decode()
    except TypeError:
        # Nested too deeply to serialize.
        return document, redact_text(text, off)[0]


def _stream(events: Sequence[Event], off: Collection[str], counts: Counter[str]) -> tuple[Event, ...]:
    documents = [_copied(event.data) for event in events]
    running: dict[Hashable, list[_Piece]] = {}
    for event, document in zip(events, documents, strict=True):
        for piece in _pieces(event.type, document):
            running.setdefault(piece.stream, []).append(piece)
    for pieces in running.values():
        _redact_joined(pieces, off, counts)
    found = [redact_json(document, off) for document in documents]
    counts.update(kind for _, each in found for kind in each.elements())
    return tuple(Event(event.type, document) for event, (document, _) in zip(events, found, strict=True))


def _copied(value: Any) -> Any:
    return rebuilt(value, lambda text: text, lambda _name, text: text)


class _Piece(NamedTuple):
    """A string that continues the others of its stream: `holder[name]`."""

    stream: Hashable
    holder: dict[str, Any]
    name: str
    is_json: bool
    """Whether it holds a tool's arguments. Other text stays text even if it is JSON, as in the transcript."""


def _pieces(kind: str, data: Any) -> Iterator[_Piece]:
    """`delta` is a string (Responses), an object of strings (Anthropic), or such an object in each choice (Chat)."""
    if not isinstance(data, dict):
        return
    delta = data.get("delta")
    if isinstance(delta, str):
        stream = (kind, *(str(data.get(name)) for name in _INDEXES))
        yield _Piece(stream, data, "delta", is_json="arguments" in kind)
    elif isinstance(delta, dict):
        yield from _texts(("delta", str(data.get("index"))), delta)
    choices = data.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and isinstance(delta := choice.get("delta"), dict):
            place = ("choice", str(choice.get("index")))
            yield from _texts(place, delta)
            for name in ("function_call", "audio"):
                if isinstance(said := delta.get(name), dict):
                    yield from _texts((*place, name), said)
            calls = delta.get("tool_calls")
            for call in calls if isinstance(calls, list) else ():
                tool = call.get("function") or call.get("custom") if isinstance(call, dict) else None
                if isinstance(tool, dict):
                    yield from _texts((*place, str(call.get("index"))), tool)


def _texts(place: tuple[str, ...], holder: dict[str, Any]) -> Iterator[_Piece]:
    for name, value in holder.items():
        if isinstance(value, str) and name not in _NOT_SAID:
            yield _Piece((*place, name), holder, name, is_json=name in _ARGUMENTS)


def _redact_joined(pieces: Sequence[_Piece], off: Collection[str], counts: Counter[str]) -> None:
    if len(pieces) < 2:
        return
    joined = "".join(piece.holder[piece.name] for piece in pieces)
    text, found = redact_json_text(joined, off) if pieces[0].is_json else redact_text(joined, off)
    if not found:
        return
    counts.update(found)
    for piece in pieces:
        piece.holder[piece.name] = ""
    pieces[0].holder[pieces[0].name] = text


def _written(events: Sequence[Event]) -> str:
    return "".join(f"event: {event.type}\n{_data(event.data)}\n\n" for event in events)


def _data(data: Any) -> str:
    try:
        text = data if isinstance(data, str) else orjson.dumps(data).decode()
    except TypeError:
        text = _TOO_DEEP
    return "\n".join(f"data: {line}" for line in text.split("\n"))
