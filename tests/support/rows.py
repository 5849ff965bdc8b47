"""Valid rows of `ai_gateway_messages`, as a producer sends them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypaware.model import datasets

DATASET = "ai_gateway_messages"
MESSAGES = datasets.get(DATASET)
_BEGIN = datetime(2026, 11, 15, 7, 0, tzinfo=UTC)


def row(number: int, **columns: Any) -> dict[str, Any]:
    """The number makes the row's identity; `columns` overrides or adds."""
    created_at = _BEGIN + timedelta(seconds=number)
    return {
        "session_id": "session-1",
        "provider": "anthropic",
        "client_name": "claude",
        "model": "model-1",
        "conversation_started_at": _BEGIN.isoformat(),
        "message_id": f"message-{number}",
        "message_index": number,
        "message_created_at": created_at.isoformat(),
        "role": "assistant",
        "part_index": 0,
        "part_type": "text",
        "content_text": f"text of message {number}",
        "attributes": {"usage": {"output_tokens": number}},
        **columns,
    }


def of_age(days: float) -> str:
    """When that was. For rows whose age the program counts by its own clock; all others are of one day in 2026."""
    return (datetime.now(UTC) - timedelta(days=days)).isoformat()


def rows(count: int, start: int = 0, **columns: Any) -> list[dict[str, Any]]:
    return [row(number, **columns) for number in range(start, start + count)]
