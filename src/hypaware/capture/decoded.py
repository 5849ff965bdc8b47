"""A decoded exchange: bodies decompressed and parsed, secrets in headers and URL redacted.

`projection` turns it into rows, and `raw_exchanges` stores it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class Event:
    """One server-sent event: its type, and its data as JSON if it is JSON, else as text."""

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
    """Without the query."""
    query: str
    """With redacted values."""
    status: int | None
    request_headers: Mapping[str, str]
    """Names in lower case, redacted values; values of a repeated name are joined by commas."""
    response_headers: Mapping[str, str]
    request_bytes: int
    response_bytes: int
    request_text: str | None
    """The decompressed body; None if it is not text or too large."""
    response_text: str | None
    request: Any = None
    """The body as JSON, if it is JSON."""
    response: Any = None
    """The response as JSON, if it is a single JSON document."""
    events: tuple[Event, ...] | None = None
    """The response as events, if it is a stream of them; the last one counts even without its blank line."""
    error: str | None = None
    """Why the exchange ended early (see `RecordedExchange.error`), or why a body could not be decompressed."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Values that the client asked to store: `{"dev_run_id": …}` (header x-hyp-dev-run-id)."""

    @property
    def is_sse(self) -> bool:
        return self.events is not None
