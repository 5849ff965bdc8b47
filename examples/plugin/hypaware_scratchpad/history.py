"""Import the notes of Scratchpad.

Its files are `~/.scratchpad/<name>.jsonl`, or below SCRATCHPAD_HOME, with one note per line:
`{"at": "2026-11-15T08:00:00Z", "who": "me", "text": "…"}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from hypaware.clients.client import Environment, ImportItem, Provenance, Source
from hypaware.clients.reader import SourceReader
from hypaware.model.expand import Exchange, Message
from hypaware.model.sanitize import to_utc_text

ROLES = {"me": "user"}


def find_folder(environment: Environment) -> Path:
    return Path(environment.get("SCRATCHPAD_HOME") or Path(environment["HOME"]) / ".scratchpad")


class Notes:
    name = "scratchpad"
    summary = "the notes of ~/.scratchpad, or of SCRATCHPAD_HOME"
    datasets = ("ai_gateway_messages",)
    environment = ("SCRATCHPAD_HOME",)

    def find(self, environment: Environment) -> Iterator[Source]:
        """Yield the files to import. Looks at names, not at contents."""
        yield from (Source(path) for path in sorted(find_folder(environment).glob("*.jsonl")))

    def first_time(self, head: bytes) -> str | None:
        """Return the time of the first note, from the first bytes of a file. Files are imported in this order."""
        try:
            return to_utc_text(json.loads(head.partition(b"\n")[0])["at"])
        except (ValueError, KeyError, TypeError):
            return None

    def read(self, reader: SourceReader, environment: Environment) -> Iterator[ImportItem]:
        """Read a file from its beginning. Only notes that are new and in the time window are fresh and become rows."""
        source, messages = reader.source, []
        for line in reader.lines():
            note = line.value
            who, at = str(note.get("who")), note.get("at")
            fresh = reader.wants(line, to_utc_text(at), new=reader.is_new(line.offset))
            messages.append(
                Message(role=ROLES.get(who, "assistant"), content=note.get("text"), created_at=at, fresh=fresh)
            )
        session = source.path.stem
        written = datetime.fromtimestamp(source.mtime_ns // 10**9, UTC).isoformat()
        exchange = Exchange(
            provider="scratchpad",
            client_name="scratchpad",
            session_id=session,
            messages=messages,
            started_at=messages[0].created_at if messages else None,
            fallback_time=(written, "file_mtime"),
            columns={"conversation_source": "scratchpad"},
        )
        provenance = Provenance("scratchpad", str(source.path), session)
        yield ImportItem("ai_gateway_messages", "ai_gateway.projected_exchange", exchange, provenance)


HISTORY = Notes()
