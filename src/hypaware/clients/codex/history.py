"""Codex's history provider: one item per rollout file, which holds one thread."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hypaware.backfill.provider import Environment, Event, Found, Item
from hypaware.backfill.reading import Reading
from hypaware.clients.codex import files
from hypaware.clients.codex.document import read_document
from hypaware.clients.codex.exchange import item_of_document, item_of_thread
from hypaware.clients.codex.rollout import read_thread
from hypaware.model.storable import utc_text

# Quotes inside a string are escaped, so this matches only keys.
_TIMESTAMP = re.compile(rb'"timestamp"\s*:\s*"([0-9TZ:.+-]{16,40})"')


class CodexHistory:
    name = "codex"
    summary = "Codex sessions: ~/.codex/sessions (or CODEX_HOME)"
    datasets = ("ai_gateway_messages",)
    environment = ("CODEX_HOME", "HOME")

    def find(self, environment: Environment) -> Iterator[Found | Event]:
        return files.find(environment)

    def first_time(self, head: bytes) -> str | None:
        times = (utc_text(found[1].decode("ascii")) for found in _TIMESTAMP.finditer(head))
        return min((time for time in times if time is not None), default=None)

    def read(self, reading: Reading, environment: Environment) -> Iterator[Item | Event]:
        document = read_document(reading)
        if document is not None:
            yield item_of_document(reading, document)
        else:
            yield item_of_thread(reading, read_thread(reading))
