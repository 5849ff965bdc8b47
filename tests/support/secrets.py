"""Redaction with a fixed key."""

from __future__ import annotations

from functools import partial

from hypaware.gateway import decode
from hypaware.privacy import redact
from hypaware.privacy.redact import Redaction

REDACTION = Redaction(key=bytes(range(32)))
redact_text = partial(redact.redact_text, redaction=REDACTION)
redact_json = partial(redact.redact_json, redaction=REDACTION)
redact_json_text = partial(redact.redact_json_text, redaction=REDACTION)
redact_row = partial(redact.redact_row, redaction=REDACTION)
redact_exchange = partial(decode.redact_exchange, redaction=REDACTION)
