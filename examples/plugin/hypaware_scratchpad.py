"""Import the notes of Scratchpad, an imaginary client.

Its files are `~/.scratchpad/<name>.jsonl`, or below SCRATCHPAD_HOME, with one note per line:
`{"at": "2026-11-15T08:00:00Z", "who": "me", "text": "…"}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from hypaware.backfill.provider import Environment, Found, Item, Provenance
from hypaware.backfill.reading import Reading
from hypaware.clients.client import Client
from hypaware.model.exchange import Exchange, Message
from hypaware.model.storable import utc_text

ROLES = {"me": "user"}


class Notes:
    name = "scratchpad"
    summary = "the notes of ~/.scratchpad, or of SCRATCHPAD_HOME"
    datasets = ("ai_gateway_messages",)
    environment = ("SCRATCHPAD_HOME",)

    def find(self, environment: Environment) -> Iterator[Found]:
        """Yield the files to import. Looks at names, not at contents."""
        folder = environment.get("SCRATCHPAD_HOME") or Path(environment["HOME"]) / ".scratchpad"
        yield from (Found(path) for path in sorted(Path(folder).glob("*.jsonl")))

    def first_time(self, head: bytes) -> str | None:
        """Return the time of the first note, from the first bytes of a file. Files are imported in this order."""
        try:
            return utc_text(json.loads(head.partition(b"\n")[0])["at"])
        except (ValueError, KeyError, TypeError):
            return None

    def read(self, reading: Reading, environment: Environment) -> Iterator[Item]:
        """Read a file from its beginning. Only notes that are new and in the time window are fresh and become rows."""
        source, messages = reading.source, []
        for line in reading.lines():
            note = line.value
            who, at = str(note.get("who")), note.get("at")
            fresh = reading.wants(line, utc_text(at), new=reading.is_new(line.offset))
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
        yield Item("ai_gateway_messages", "ai_gateway.projected_exchange", exchange, provenance)


CLIENT = Client("scratchpad", "Notes, as an example of a plugin", backfill=Notes())
