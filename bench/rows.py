"""Rows for benchmarks: like those of real sessions, about 1 KB each, all different."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

BATCH = 1_000
START = datetime(2026, 11, 1, tzinfo=UTC)
_TEXT = "The invoice moves a due date that falls on a weekend to the next workday; the test does not know that. " * 2


def batches(rows: int, start: int = 0) -> Iterator[list[dict[str, Any]]]:
    for first in range(start, start + rows, BATCH):
        yield [row(number) for number in range(first, min(first + BATCH, start + rows))]


def row(number: int) -> dict[str, Any]:
    client, provider, model = (("claude", "anthropic", "claude-opus-5-5"), ("codex", "openai", "gpt-6.1-sol"))[
        number % 2
    ]
    session, at = number // 400, START + timedelta(seconds=number * 2)
    message = f"{number:08x}-0e43-497a-acef-c7439a9403fb"
    return {
        "session_id": f"{session:08x}-e31e-4c16-bee2-700a049d93b5",
        "provider": provider,
        "model": model,
        "conversation_started_at": (START + timedelta(seconds=session * 800)).isoformat(),
        "conversation_source": client,
        "client_name": client,
        "cwd": f"/home/dev/project-{session % 7}",
        "git_branch": "main",
        "client_version": "2.1.325",
        "entrypoint": "cli",
        "user_type": "external",
        "is_sidechain": False,
        "message_id": message,
        "previous_message_id": [f"{number - 1:08x}-0e43-497a-acef-c7439a9403fb"] if number % 400 else [],
        "provider_uuid": message,
        "request_id": f"req_{number:020d}",
        "message_index": number % 400,
        "message_created_at": at.isoformat(),
        "role": ("user", "assistant")[number // 2 % 2],
        "part_index": 0,
        "part_type": "text",
        "provider_type": "assistant",
        "provider_subtype": "text",
        "content_text": f"{number}: {_TEXT}",
        "attributes": {
            "client": {"name": client, "version": "2.1.325"},
            "usage": {"input_tokens": number % 97, "output_tokens": number % 301, "cache_read_tokens": 11_000},
        },
        "raw_frame": {"type": "assistant", "uuid": message, "timestamp": at.isoformat()},
    }
