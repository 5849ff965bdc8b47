"""One exchange as it went over the wire: the gateway makes it, everything after it reads it. Bytes as they passed.

The gateway passes a request and its answer on untouched and keeps a copy beside them. When the answer has ended, in
whatever way, the copy is a `Recording`. It holds secrets: it is never stored, logged or shown before `redact` had it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

Headers = Sequence[tuple[str, str]]
"""In their order, as they were written; a name may come twice."""

_BLOCK = 1 << 16


@dataclass(frozen=True)
class Body:
    """The bytes of one direction, still encoded: in memory, or, when there are many, in a private file (0600)."""

    held: bytes | Path = b""
    size: int = 0
    """How many bytes passed; more than are held, if the recorder gave up keeping them."""
    complete: bool = True
    """Whether all that passed is held."""

    def blocks(self) -> Iterator[bytes]:
        if isinstance(self.held, bytes):
            yield self.held
            return
        with open(self.held, "rb") as file:
            while block := file.read(_BLOCK):
                yield block

    def forget(self) -> None:
        if isinstance(self.held, Path):
            self.held.unlink(missing_ok=True)


@dataclass(frozen=True)
class Recording:
    exchange_id: str
    started_at: datetime
    """UTC; when the request's head was read."""
    ended_at: datetime
    first_byte_ms: int | None
    """From the start to the first byte of the answer's body; None if there was none."""
    upstream: str
    """Name of the route that was taken."""
    provider: str
    """Whose dialect the route speaks, for example anthropic or openai."""
    client_name: str | None
    """The client whose preset made the route, where one did."""
    method: str
    path: str
    """As the client wrote it, with its query, not redacted; without what only the gateway's routes are told by."""
    request_headers: Headers
    request: Body
    status: int | None
    """None if no answer came."""
    response_headers: Headers
    response: Body
    error: str | None = None
    """None, or how it ended before its time: upstream_down, upstream_cut, client_abort, recorder_behind, …"""

    def forget(self) -> None:
        """Removes what it keeps on disk."""
        self.request.forget()
        self.response.forget()
