"""What purges have closed for good: sessions, and all time before a moment. A small value that travels to the tasks.

A session is known by its mark, half a sha256: whoever searches the disk for a purged session finds nothing. Whatever
dataset a row belongs to, it is judged by its `session_id`, where there is such a column, and by its time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from hypaware.model.datasets import Dataset

SESSION = "session_id"
MARK_BYTES = 16

Bar = Callable[[Mapping[str, Any]], bool]
"""Whether a coerced row stays out."""


def mark_of(kind: str, value: str) -> bytes:
    """What is kept of a purge's words."""
    return sha256(f"{kind}:{value}".encode("utf-8", "surrogatepass")).digest()[:MARK_BYTES]


@dataclass(frozen=True)
class Closed:
    sessions: frozenset[bytes] = frozenset()
    before: str | None = None
    """As `timestamp_text` writes it, which sorts by time."""

    def bar(self, dataset: Dataset) -> Bar | None:
        """None where nothing is closed to the dataset's rows, so that it costs them nothing."""
        sessions = self.sessions if SESSION in dataset.coercers else frozenset[bytes]()
        before, time_column = self.before, dataset.time_column
        if not sessions and before is None:
            return None
        # Rows of one session follow each other: a hash for each session, not for each row.
        known: dict[Any, bool] = {}

        def bar(row: Mapping[str, Any]) -> bool:
            if sessions:
                session = row.get(SESSION)
                if session not in known:
                    known[session] = mark_of("session", str(session)) in sessions
                if known[session]:
                    return True
            return before is not None and (at := row.get(time_column)) is not None and at < before

        return bar


NOTHING = Closed()
