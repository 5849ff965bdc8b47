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

from hypaware.gateway.exchange import DecodedExchange, SseEvent
from hypaware.privacy.redact import map_json, redact_json, redact_json_text, redact_text

_INDEX_KEYS = ("item_id", "output_index", "content_index", "summary_index")
_METADATA_KEYS = ("type", "id", "role", "name")
_ARGUMENT_KEYS = ("partial_json", "arguments")
_TOO_DEEP = '"nested too deeply"'


def redact_exchange(decoded: DecodedExchange, rules_off: Collection[str] = ()) -> tuple[DecodedExchange, Counter[str]]:
    """Return the exchange without secrets, and how often each rule matched."""
    counts: Counter[str] = Counter()
    request, request_text = _redact_body(decoded.request, decoded.request_text, rules_off, counts)
    if decoded.events is None:
        response, response_text = _redact_body(decoded.response, decoded.response_text, rules_off, counts)
        events: tuple[SseEvent, ...] | None = None
    else:
        before = counts.total()
        events = _redact_stream(decoded.events, rules_off, counts)
        response = decoded.response
        response_text = decoded.response_text if counts.total() == before else _serialize_events(events)
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


def _redact_body(document: Any, text: str | None, off: Collection[str], counts: Counter[str]) -> tuple[Any, str | None]:
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


def _redact_stream(events: Sequence[SseEvent], off: Collection[str], counts: Counter[str]) -> tuple[SseEvent, ...]:
    documents = [map_json(event.data, lambda text: text, lambda _name, text: text) for event in events]
    streams: dict[Hashable, list[_Fragment]] = {}
    for event, document in zip(events, documents, strict=True):
        for fragment in _find_fragments(event.type, document):
            streams.setdefault(fragment.stream, []).append(fragment)
    for fragments in streams.values():
        _redact_joined(fragments, off, counts)
    found = [redact_json(document, off) for document in documents]
    counts.update(kind for _, each in found for kind in each.elements())
    return tuple(SseEvent(event.type, document) for event, (document, _) in zip(events, found, strict=True))


class _Fragment(NamedTuple):
    """A string that continues the others of its stream: `holder[name]`."""

    stream: Hashable
    holder: dict[str, Any]
    name: str
    is_json: bool
    """Whether it holds a tool's arguments. Other text stays text even if it is JSON, as in the transcript."""


def _find_fragments(kind: str, data: Any) -> Iterator[_Fragment]:
    """`delta` is a string (Responses), an object of strings (Anthropic), or such an object in each choice (Chat)."""
    if not isinstance(data, dict):
        return
    delta = data.get("delta")
    if isinstance(delta, str):
        stream = (kind, *(str(data.get(name)) for name in _INDEX_KEYS))
        yield _Fragment(stream, data, "delta", is_json="arguments" in kind)
    elif isinstance(delta, dict):
        yield from _text_fragments(("delta", str(data.get("index"))), delta)
    choices = data.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and isinstance(delta := choice.get("delta"), dict):
            stream = ("choice", str(choice.get("index")))
            yield from _text_fragments(stream, delta)
            for name in ("function_call", "audio"):
                if isinstance(nested := delta.get(name), dict):
                    yield from _text_fragments((*stream, name), nested)
            calls = delta.get("tool_calls")
            for call in calls if isinstance(calls, list) else ():
                tool = call.get("function") or call.get("custom") if isinstance(call, dict) else None
                if isinstance(tool, dict):
                    yield from _text_fragments((*stream, str(call.get("index"))), tool)


def _text_fragments(stream: tuple[str, ...], holder: dict[str, Any]) -> Iterator[_Fragment]:
    for name, value in holder.items():
        if isinstance(value, str) and name not in _METADATA_KEYS:
            yield _Fragment((*stream, name), holder, name, is_json=name in _ARGUMENT_KEYS)


def _redact_joined(fragments: Sequence[_Fragment], off: Collection[str], counts: Counter[str]) -> None:
    if len(fragments) < 2:
        return
    joined = "".join(fragment.holder[fragment.name] for fragment in fragments)
    text, found = redact_json_text(joined, off) if fragments[0].is_json else redact_text(joined, off)
    if not found:
        return
    counts.update(found)
    for fragment in fragments:
        fragment.holder[fragment.name] = ""
    fragments[0].holder[fragments[0].name] = text


def _serialize_events(events: Sequence[SseEvent]) -> str:
    return "".join(f"event: {event.type}\n{_data_lines(event.data)}\n\n" for event in events)


def _data_lines(data: Any) -> str:
    try:
        text = data if isinstance(data, str) else orjson.dumps(data).decode()
    except TypeError:
        text = _TOO_DEEP
    return "\n".join(f"data: {line}" for line in text.split("\n"))
