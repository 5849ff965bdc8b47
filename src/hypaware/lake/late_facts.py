"""Working directory and git facts of sessions, for rows that were recorded before these were known.

Client hooks write them to `<HYP_HOME>/clients/<name>/session-context.jsonl` (`clients.session_notes`), often after the
first exchange. When deferred rows are built, their empty columns are filled from the first note of their session.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from hypaware import session_context
from hypaware.home import Home
from hypaware.model.datasets import Dataset, Row

Facts = Mapping[str, Mapping[str, str]]
"""Session id → columns."""


def read(home: Home) -> Facts:
    """Read the facts of all sessions. A file that cannot be read is skipped: rows do not wait for it."""
    found: dict[str, dict[str, str]] = {}
    for path in session_context.paths(home.root):
        with suppress(OSError):
            for session, note in session_context.notes(path):
                found.setdefault(session, session_context.facts_of(note))
    return found


def fill(dataset: Dataset, row: Row, facts: Facts) -> None:
    """Fill the empty columns of a live row. A native row already has all facts that its client knew."""
    known = facts.get(row.get("session_id", ""))
    if known and not row.get("cwd") and dataset.match_rules is not None and dataset.match_rules.may_be_live(row):
        for name, value in known.items():
            if name in dataset.coercers and not row.get(name):
                row[name] = value
