"""How much the server takes, from one request, one gateway, and all of them together. Senders are told the first four.

A batch within the limits of our own client (5,000 rows, 4 MiB) is far within these.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    max_body_bytes: int = 8 * MIB
    """As it travels."""
    max_decompressed_bytes: int = 64 * MIB
    max_rows: int = 10_000
    max_line_bytes: int = 8 * MIB

    requests_at_once: int = 16
    """Of one gateway; more are told to wait."""
    requests_per_second: float = 1_000.0
    """Of one gateway, over some time; twice as many at once."""
    enrolments_per_minute: float = 60.0
    """From one address."""
    held_bytes: int = 256 * MIB
    """Of bodies in memory, of all gateways together."""
    keep_free_bytes: int = 256 * MIB
    """Room on the disk that batches leave to the flush which makes them small."""

    idle_seconds: float = 30.0
    """A body of which nothing comes for so long is given up."""
    quiet_seconds: float = 75.0
    """A connection on which nobody asks anything for so long is closed."""
    body_seconds: float = 300.0
    """And one that is not complete after so long."""
    drain_seconds: float = 30.0
    """What is under way when the server stops has so long to finish."""

    def told(self) -> dict[str, int]:
        return {
            "max_body_bytes": self.max_body_bytes,
            "max_decompressed_bytes": self.max_decompressed_bytes,
            "max_rows": self.max_rows,
            "max_line_bytes": self.max_line_bytes,
        }
