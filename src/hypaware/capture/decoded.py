"""An exchange that can be read: bodies unpacked (gzip, deflate, br, zstd, within bounds), events taken apart, secrets
in headers and addresses gone. What `project` turns into rows, and what is kept raw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class Event:
    """One server-sent event: its type, and its data as JSON where it is JSON, else as text."""

    type: str
    data: Any


@dataclass(frozen=True)
class Decoded:
    exchange_id: str
    started_at: datetime
    ended_at: datetime
    first_byte_ms: int | None
    upstream: str
    provider: str
    client_name: str | None
    method: str
    path: str
    """Without its query."""
    query: str
    """With its values redacted."""
    status: int | None
    request_headers: Mapping[str, str]
    """Names in lower case, values redacted; several of one name joined by commas."""
    response_headers: Mapping[str, str]
    request_bytes: int
    response_bytes: int
    request_text: str | None
    """The body, unpacked; None if it is no text, or too large to be kept."""
    response_text: str | None
    request: Any = None
    """The body as JSON, where it is JSON."""
    response: Any = None
    """The answer as JSON, where it is one JSON document."""
    events: tuple[Event, ...] | None = None
    """The answer as events, where it is a stream of them; the last one counts also without its blank line."""
    error: str | None = None
    """How it ended before its time, see `Recording.error`; or why a body could not be unpacked."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What the client asked to be noted: `{"dev_run_id": …}` (header x-hyp-dev-run-id)."""

    @property
    def is_sse(self) -> bool:
        return self.events is not None
