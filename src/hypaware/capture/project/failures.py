"""Error responses and truncated responses, in any dialect.

Providers send `{"error": {"type" | "code", "message"}}`, some only text. If the connection failed, the gateway's own
error name takes the place of the code.
"""

from __future__ import annotations

from typing import Any

from hypaware.capture.decoded import Decoded
from hypaware.capture.project.turn import Answer
from hypaware.capture.project.values import mapping, text

_SHOWN = 2000


def answer(decoded: Decoded, body: dict[str, Any]) -> Answer:
    error_value = body.get("error")
    error = mapping(error_value)
    code = text(error.get("type")) or text(error.get("code")) or decoded.error
    message = text(error.get("message")) or text(error_value) or text(body.get("message")) or text(body.get("detail"))
    if code is None and decoded.status is not None and decoded.status >= 400:
        code = f"http_{decoded.status}"
    if message is None and not body and decoded.events is None:
        message = text(decoded.response_text)
    return Answer(
        error_code=code or "cut_short",
        error_message=(message or _in_words(decoded))[:_SHOWN],
        finish_reason="error",
        failed=True,
    )


def _in_words(decoded: Decoded) -> str:
    if decoded.status is None:
        return "no response was received"
    if decoded.status >= 400:
        return f"the response had status {decoded.status}"
    return "the response ended early"
