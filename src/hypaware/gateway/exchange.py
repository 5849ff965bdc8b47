"""One exchange, first as recorded, then as decoded.

A recorded exchange is the bytes of a request and its response, exactly as they passed the gateway. It holds secrets:
never store, log or show any of it. A decoded exchange has decompressed and parsed bodies and no secrets, in the
bodies only if `redaction.kept` is set; `projection` turns it into message rows, and `raw_exchanges` stores it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

Headers = Sequence[tuple[str, str]]
"""Name and value pairs in their original order and spelling; a name may occur twice."""
_BLOCK = 1 << 16


@dataclass
class RecordedBody:
    """The bytes of one direction, still encoded: in memory or, if large, in a private file (mode 0600).

    Not frozen: the recorder adds to it until the exchange has ended.
    """

    content: bytes | bytearray | Path = b""
    size: int = 0
    """Bytes that passed; more than were kept if the recorder stopped keeping them."""
    complete: bool = True
    """Whether all bytes that passed were kept."""

    def blocks(self) -> Iterator[bytes | bytearray]:
        if not isinstance(self.content, Path):
            yield self.content
            return
        with open(self.content, "rb") as file:
            while block := file.read(_BLOCK):
                yield block


@dataclass(frozen=True)
class RecordedExchange:
    exchange_id: str
    started_at: datetime
    """When the header of the request was read, in UTC."""
    ended_at: datetime
    first_byte_ms: int | None
    """Milliseconds from the start to the first byte of the response body; None if there was none."""
    upstream: str
    """Name of the route."""
    provider: str
    """Whose dialect the route uses, for example anthropic or openai."""
    client_name: str | None
    """The client that the path prefix or the route's preset names."""
    method: str
    path: str
    """With its query and not redacted, as the client sent it, except for the prefix that only the gateway uses."""
    request_headers: Headers
    request: RecordedBody
    status: int | None
    """None if there was no response."""
    response_headers: Headers
    response: RecordedBody
    error: str | None = None
    """None, or why the exchange ended early: upstream_down, upstream_cut, client_abort, recorder_behind, …"""


@dataclass(frozen=True)
class SseEvent:
    """One server-sent event: its type, and its data as JSON if it is JSON, else as text."""

    type: str
    data: Any


@dataclass(frozen=True)
class DecodedExchange:
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
    events: tuple[SseEvent, ...] | None = None
    """The response as events, if it is a stream of them; the last one counts even without its blank line."""
    error: str | None = None
    """Why the exchange ended early (see `RecordedExchange.error`), or why a body could not be decompressed."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Values that the client asked to store: `{"dev_run_id": …}` (header x-hyp-dev-run-id)."""
    redacted: Mapping[str, int] = field(default_factory=dict)
    """Rule → how many secrets of the bodies were replaced with markers."""
