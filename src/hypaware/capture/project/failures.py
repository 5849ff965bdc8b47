"""An answer that is an error, or that ended before its time: what is known of it, in whatever dialect.

Providers write `{"error": {"type" | "code", "message"}}`, some only text. Where the connection broke, the gateway's own
word for how stands in the place of a code.
"""

from __future__ import annotations

from typing import Any

from hypaware.capture.decoded import Decoded
from hypaware.capture.project.turn import Answer
from hypaware.capture.project.values import mapping, text

_SHOWN = 2000


def answer(decoded: Decoded, body: dict[str, Any]) -> Answer:
    told = body.get("error")
    error = mapping(told)
    code = text(error.get("type")) or text(error.get("code")) or decoded.error
    said = text(error.get("message")) or text(told) or text(body.get("message")) or text(body.get("detail"))
    if code is None and decoded.status is not None and decoded.status >= 400:
        code = f"http_{decoded.status}"
    if said is None and not body and decoded.events is None:
        said = text(decoded.response_text)
    return Answer(
        error_code=code or "cut_short",
        error_message=(said or _in_words(decoded))[:_SHOWN],
        finish_reason="error",
        failed=True,
    )


def _in_words(decoded: Decoded) -> str:
    if decoded.status is None:
        return "no answer came"
    if decoded.status >= 400:
        return f"the answer had the status {decoded.status}"
    return "the answer ended before its time"
