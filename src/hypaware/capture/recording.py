"""A recorded exchange: the bytes of one request and its response, exactly as they passed the gateway.

It holds secrets. Never store, log or show any of it before it has been redacted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

Headers = Sequence[tuple[str, str]]
"""Name and value pairs in their original order and spelling; a name may occur twice."""

_BLOCK = 1 << 16


@dataclass(frozen=True)
class Body:
    """The bytes of one direction, still encoded: in memory or, if large, in a private file (mode 0600)."""

    content: bytes | Path = b""
    size: int = 0
    """Bytes that passed; more than were kept if the recorder stopped keeping them."""
    complete: bool = True
    """Whether all bytes that passed were kept."""

    def blocks(self) -> Iterator[bytes]:
        if isinstance(self.content, bytes):
            yield self.content
            return
        with open(self.content, "rb") as file:
            while block := file.read(_BLOCK):
                yield block

    def delete(self) -> None:
        if isinstance(self.content, Path):
            self.content.unlink(missing_ok=True)


@dataclass(frozen=True)
class Recording:
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
    request: Body
    status: int | None
    """None if there was no response."""
    response_headers: Headers
    response: Body
    error: str | None = None
    """None, or why the exchange ended early: upstream_down, upstream_cut, client_abort, recorder_behind, …"""

    def delete_files(self) -> None:
        """Remove the files of spilled bodies."""
        self.request.delete()
        self.response.delete()
