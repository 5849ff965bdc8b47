"""The old form of a rollout: one document `{session, items}` for the whole file; no times, no token counts.

Such a file does not grow, it is written anew. So all of its items are taken each time, and those that are known are
met again by their keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypaware.backfill.reading import Line, Reading
from hypaware.model import canonical

_HEAD_BYTES = 64 << 10


@dataclass(frozen=True)
class Document:
    session: dict[str, Any]
    items: list[Any]
    line: Line
    """All of it."""


def read_document(reading: Reading) -> Document | None:
    """The whole file as the one object of the old form, if that is what it is."""
    head = reading.bytes_at(0, min(_HEAD_BYTES, reading.source.size))
    first, newline, rest = head.partition(b"\n")
    # An object on a line of its own, with more to come, is not the beginning of one document.
    if not head.lstrip().startswith(b"{") or (newline and rest.strip() and _parsed(first) is not None):
        return None
    whole = reading.whole()
    found = None if whole is None else _parsed(whole)
    if not isinstance(found, dict) or not isinstance(found.get("items"), list):
        return None
    session = found.get("session")
    line = Line(reading, 0, reading.source.size, found)
    return Document(session if isinstance(session, dict) else {}, found["items"], line)


def _parsed(data: bytes) -> Any:
    try:
        return canonical.parse(data)
    except (ValueError, RecursionError):
        return None
