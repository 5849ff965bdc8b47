"""Claude Code's history provider: its files, their order, and the exchanges in each."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hypaware.backfill.provider import Environment, Event, Found, Item, Provenance
from hypaware.backfill.reading import Reading
from hypaware.clients.claude import files, session_context
from hypaware.clients.claude.exchange import exchange_of, is_fresh
from hypaware.clients.claude.lines import Index
from hypaware.model.expand import utc_text

_TIMESTAMP = re.compile(rb'"timestamp":\s?"([0-9TZ:.+-]{10,40})"')


class ClaudeHistory:
    name = "claude"
    summary = "Claude Code transcripts: every .jsonl under ~/.claude/projects, including subagents"
    datasets = ("ai_gateway_messages",)
    environment = ("CLAUDE_CONFIG_DIR", "HOME", "HYP_HOME")

    def find(self, environment: Environment) -> Iterator[Found | Event]:
        return files.find(environment)

    def first_time(self, head: bytes) -> str | None:
        times = (utc_text(found.decode("ascii")) for found in _TIMESTAMP.findall(head))
        return min((time for time in times if time is not None), default=None)

    def read(self, reading: Reading, environment: Environment) -> Iterator[Item | Event]:
        source = reading.source
        index = Index(reading)
        records = session_context.records(environment)
        for session in index.sessions.values():
            if not any(is_fresh(entry) for entry in session.entries):
                continue
            exchange = exchange_of(
                session,
                index=index,
                record=records.get(session.id, {}),
                path=source.path,
                mtime_ns=source.mtime_ns,
            )
            provenance = Provenance(client_name="claude", source_path=str(source.path), native_id=session.id)
            yield Item("ai_gateway_messages", "ai_gateway.projected_exchange", exchange, provenance)
