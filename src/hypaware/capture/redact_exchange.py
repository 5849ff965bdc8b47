"""Secrets in what was said, replaced before an exchange is projected and kept (`redaction.kept` in the config).

It happens before the projection, so that rows, raw exchange and a later reprojection all see the same words, and the
ids that are made of words agree. An exchange without a secret stays as it is, to the letter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import orjson

from hypaware.capture.decoded import Decoded, Event
from hypaware.capture.redact import redact_json, redact_text
from hypaware.capture.redact_stream import redact_events, written


def redacted(decoded: Decoded, rules_off: Collection[str] = ()) -> tuple[Decoded, Counter[str]]:
    """The exchange without secrets, and how often each rule spoke."""
    counts: Counter[str] = Counter()
    request, request_text = _body(decoded.request, decoded.request_text, rules_off, counts)
    if decoded.events is None:
        response, response_text = _body(decoded.response, decoded.response_text, rules_off, counts)
        events: tuple[Event, ...] | None = None
    else:
        events, found = redact_events(decoded.events, rules_off)
        counts.update(found)
        response = decoded.response
        response_text = written(events) if found else decoded.response_text
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
        # Written as clients write it, its keys in their order: a history that comes again has the same parts.
        return document, orjson.dumps(document).decode()
    except TypeError:
        # Too deep to be written.
        return document, redact_text(text, off)[0]
