"""The server's limits per request, per gateway and in total. `/v1/capabilities` publishes the first four.

They are far above the limits of our own client (5,000 rows, 4 MiB).
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    max_body_bytes: int = 8 * MIB
    """The size before decompression."""
    max_decompressed_bytes: int = 64 * MIB
    max_rows: int = 10_000
    max_line_bytes: int = 8 * MIB

    requests_at_once: int = 16
    """Concurrent requests of one gateway; further ones get 429."""
    requests_per_second: float = 1_000.0
    """The average rate of one gateway; bursts may be twice as large."""
    enrolments_per_minute: float = 60.0
    """The rate of one address."""
    held_bytes: int = 256 * MIB
    """Request bodies in memory, of all gateways together."""
    keep_free_bytes: int = 256 * MIB
    """Disk space that batches leave free for the flush, which then frees theirs."""

    idle_seconds: float = 30.0
    """The longest pause within a request body."""
    quiet_seconds: float = 75.0
    """How long an idle connection is kept open."""
    body_seconds: float = 300.0
    """The longest time to receive a whole body."""
    drain_seconds: float = 30.0
    """How long requests in progress may take to finish when the server stops."""

    def published(self) -> dict[str, int]:
        return {
            "max_body_bytes": self.max_body_bytes,
            "max_decompressed_bytes": self.max_decompressed_bytes,
            "max_rows": self.max_rows,
            "max_line_bytes": self.max_line_bytes,
        }
