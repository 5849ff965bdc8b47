"""The old form of a rollout: one JSON document `{session, items}` per file, without times or token counts.

Such a file does not grow; it is rewritten. Every import therefore reads all items, and the key index drops the known
ones.
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
    """The whole document as one line."""


def read_document(reading: Reading) -> Document | None:
    """Return the file as a document of the old form, or None if it has another form."""
    head = reading.bytes_at(0, min(_HEAD_BYTES, reading.source.size))
    first, newline, rest = head.partition(b"\n")
    # A complete object on the first line, followed by more lines, is the new form.
    if not head.lstrip().startswith(b"{") or (newline and rest.strip() and _parsed(first) is not None):
        return None
    whole = reading.read_all()
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
