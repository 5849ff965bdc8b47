"""Build the messages of a thread one by one, from its lines or from the items of an old document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from hypaware.backfill.reading import Reading
from hypaware.clients.codex import items
from hypaware.clients.codex.document import Document
from hypaware.clients.codex.rollout import Thread
from hypaware.model.exchange import Message
from hypaware.model.storable import utc_text

_NATIVE = {"codex": {"identity_source": "native"}}
_FALLBACK = {"codex": {"identity_source": "gateway_fallback"}}


def messages_of_lines(reading: Reading, thread: Thread) -> Iterator[Message]:
    for slot in thread.slots:
        value = slot.line.value
        created_at = value.get("timestamp")
        wanted = reading.wants(slot.line, utc_text(created_at), new=slot.new)
        if slot.new and not wanted:
            for offset in slot.counts_at:
                reading.exclude_with(offset)
        fresh = wanted and not slot.held
        yield _message(value["payload"], created_at, fresh, reading.skipped, slot.usage)


def messages_of_items(reading: Reading, document: Document) -> Iterator[Message]:
    skipped = reading.skipped
    for payload in document.items:
        if not isinstance(payload, dict):
            skipped["not_an_object"] += 1
        elif items.says(payload):
            created_at = payload.get("timestamp")
            yield _message(payload, created_at, reading.wants(document.line, utc_text(created_at)), skipped)
        else:
            skipped[items.why_unsaid(payload) or items.unknown_type(payload.get("type"), skipped)] += 1


def _message(
    payload: items.Payload,
    created_at: Any,
    fresh: bool,
    skipped: Counter[str],
    usage: Mapping[str, int] | None = None,
) -> Message:
    role, content = items.said(payload, skipped if fresh else Counter())
    own_id = items.own_id(payload)
    return Message(
        role=role,
        content=content,
        created_at=created_at,
        message_id=own_id,
        fresh=fresh,
        usage=usage,
        columns={"provider_type": payload["type"]},
        attributes=_NATIVE if own_id else _FALLBACK,
    )
