"""The purged sessions and the time before which everything is purged, as a small value that is sent to tasks.

Sessions are stored as half a sha256, so that the id of a purged session is nowhere on disk. The filter applies to every
dataset: it checks the row's `session_id`, if the dataset has that column, and its time.
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
"""Tells whether a coerced row is purged."""


def mark_of(kind: str, value: str) -> bytes:
    """Hash the value that a purge names; only the hash is stored."""
    return sha256(f"{kind}:{value}".encode("utf-8", "surrogatepass")).digest()[:MARK_BYTES]


@dataclass(frozen=True)
class Closed:
    sessions: frozenset[bytes] = frozenset()
    before: str | None = None
    """In the form of `timestamp_text`, which sorts by time."""

    def predicate(self, dataset: Dataset) -> Bar | None:
        """Return the check for rows of a dataset, or None if it has nothing to check."""
        sessions = self.sessions if SESSION in dataset.coercers else frozenset[bytes]()
        before, time_column = self.before, dataset.time_column
        if not sessions and before is None:
            return None
        # Rows of a session are adjacent: hash each session once, not each row.
        known: dict[Any, bool] = {}

        def is_purged(row: Mapping[str, Any]) -> bool:
            if sessions:
                session = row.get(SESSION)
                if session not in known:
                    known[session] = mark_of("session", str(session)) in sessions
                if known[session]:
                    return True
            return before is not None and (at := row.get(time_column)) is not None and at < before

        return is_purged


NOTHING = Closed()
