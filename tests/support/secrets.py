"""Redaction with a fixed key."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

from hypaware.gateway.decode import BodyContent, BodyReader, DecompressionLimits
from hypaware.gateway.exchange import DecodedExchange
from hypaware.privacy import redact
from hypaware.privacy.redact import Redaction

REDACTION = Redaction(key=bytes(range(32)))
redact_text = partial(redact.redact_text, redaction=REDACTION)
redact_json = partial(redact.redact_json, redaction=REDACTION)
redact_json_text = partial(redact.redact_json_text, redaction=REDACTION)
redact_row = partial(redact.redact_row, redaction=REDACTION)


def redact_exchange(
    exchange: DecodedExchange, redaction: Redaction = REDACTION
) -> tuple[DecodedExchange, Counter[str]]:
    """Redact the bodies of an exchange, as decoding it does."""
    bodies = BodyReader(redaction, DecompressionLimits())
    request = response = BodyContent()
    if exchange.request_text is not None:
        request = bodies.redact_document(exchange.request_text, exchange.request)
    if exchange.events is not None:
        response = bodies.redact_stream(exchange.response_text or "", exchange.events)
    elif exchange.response_text is not None:
        response = bodies.redact_document(exchange.response_text, exchange.response)
    redacted = replace(
        exchange,
        request=request.document,
        request_text=request.text,
        response=response.document,
        response_text=response.text,
        events=response.events,
    )
    return redacted, bodies.redacted
