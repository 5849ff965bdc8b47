"""Where a session was at work, for rows that were recorded before anybody had said so.

Clients' hooks note it in `<HYP_HOME>/clients/<name>/session-context.jsonl` (`clients.session_notes` writes it), often
only after the first exchange has passed. Rows that waited in the spool get it when they are built, as far as their own
columns are empty. The first note of a session counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypaware.home import Home
from hypaware.model import canonical
from hypaware.model.datasets import Dataset, Row
from hypaware.regular import open_regular

Facts = Mapping[str, Mapping[str, str]]
"""Session → columns."""

_SESSION = "session_id"
_COLUMNS = ("cwd", "git_branch", "git_remote", "head_sha", "repo_root")
_MOST_BYTES = 4 << 20


def read(home: Home) -> Facts:
    """What cannot be read is not known; rows never wait for it."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted((home.root / "clients").glob("*/session-context.jsonl")):
        try:
            with open_regular(path) as file:
                lines = file.read(_MOST_BYTES).splitlines()
        except OSError:
            continue
        for line in lines:
            told = _parsed(line)
            if isinstance(session := told.get(_SESSION), str) and session not in found:
                found[session] = {
                    name: value for name in _COLUMNS if isinstance(value := told.get(name), str) and value
                }
    return found


def fill(dataset: Dataset, row: Row, facts: Facts) -> None:
    """Only a row without its own id: a native one says where it was, or its client did not know."""
    told = facts.get(row.get(_SESSION, ""))
    if told and not row.get("cwd") and dataset.settling is not None and dataset.settling.may_be_fallback(row):
        for name, value in told.items():
            if name in dataset.coercers and not row.get(name):
                row[name] = value


def _parsed(line: bytes) -> Mapping[str, Any]:
    try:
        found = canonical.parse(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
