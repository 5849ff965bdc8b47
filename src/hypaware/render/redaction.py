"""A conversation without secrets, for sharing: texts, arguments and titles are redacted as for a delivery."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from hypaware.index.conversation import RecordedConversation, Thread
from hypaware.index.messages import Message
from hypaware.privacy.redact import Redaction, redact_json, redact_text


def redact_conversation(
    conversation: RecordedConversation, redaction: Redaction, found: Counter[str]
) -> RecordedConversation:
    """Return the conversation with markers in place of secrets. `found` counts them by kind while it is read."""

    def read(thread: Thread | None) -> Iterator[Message]:
        for message in conversation.read(thread):
            yield redact_message(message, redaction, found)

    # The title repeats the first prompt, which is counted there.
    session = {
        name: _redact(value, redaction) if name in ("title", "branch") else value
        for name, value in conversation.session.items()
    }
    return RecordedConversation(session, conversation.threads, read)


def redact_message(message: Message, redaction: Redaction, found: Counter[str] | None = None) -> Message:
    parts = [
        {
            **part,
            "text": _redact(part["text"], redaction, found),
            "tool_args": _redact(part["tool_args"], redaction, found),
        }
        for part in message["parts"]
    ]
    return {**message, "parts": parts}


def _redact(value: Any, redaction: Redaction, found: Counter[str] | None = None) -> Any:
    if value is None:
        return None
    redacted, counts = redact_text(value, redaction) if isinstance(value, str) else redact_json(value, redaction)
    if found is not None:
        found.update(counts)
    return redacted
