"""Where a session was at work, for rows that were recorded before anybody had said so.

Clients' hooks note it in `<HYP_HOME>/clients/<name>/session-context.jsonl` (`clients.session_notes` writes it), often
only after the first exchange has passed. Rows that waited in the spool get it when they are built, as far as their own
columns are empty. The first note of a session counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from hypaware import session_context
from hypaware.home import Home
from hypaware.model.datasets import Dataset, Row

Facts = Mapping[str, Mapping[str, str]]
"""Session → columns."""


def read(home: Home) -> Facts:
    """What cannot be read is not known; rows never wait for it."""
    found: dict[str, dict[str, str]] = {}
    for path in session_context.paths(home.root):
        with suppress(OSError):
            for session, note in session_context.notes(path):
                found.setdefault(session, session_context.facts_of(note))
    return found


def fill(dataset: Dataset, row: Row, facts: Facts) -> None:
    """Only a row without its own id: a native one says where it was, or its client did not know."""
    told = facts.get(row.get("session_id", ""))
    if told and not row.get("cwd") and dataset.settling is not None and dataset.settling.may_be_fallback(row):
        for name, value in told.items():
            if name in dataset.coercers and not row.get(name):
                row[name] = value
