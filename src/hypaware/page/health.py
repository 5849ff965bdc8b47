"""The health of the home: what `hyp status` says, dead letters, the disk, the index, and each problem's command.

The parts are read apart from each other, so that a sick home (a disk that does not answer, a database in use) delays
neither the rest of the page nor the other parts. A part that takes longer than a moment is shown as it was last known.

Names and messages come from configs, other programs and other machines: control characters are escaped and what looks
like a secret is masked, before the templates escape them for HTML.
"""

from __future__ import annotations

import asyncio
import platform
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from hypaware import __version__
from hypaware.home import Home
from hypaware.index.builder import read_index_status
from hypaware.page.context import PageContext
from hypaware.page.early_head import discard, send_early
from hypaware.page.part_reader import PartReader, Reading
from hypaware.privacy.redact import mask_secrets
from hypaware.state import dead_letters
from hypaware.state.location import has_state, open_store
from hypaware.status.session_expiry import describe_history
from hypaware.status.snapshot import collect_snapshot
from hypaware.text import (
    escape_cell,
    format_ago,
    format_count,
    format_duration,
    format_size,
    strip_url_credentials,
)

_FIRST_SECONDS = 0.5
"""How long the view waits for a part, with its head already on the screen. What takes longer follows in its body."""
_SECONDS = 3.0
"""How long the body of the view waits."""
_MAX_LETTERS = 5
_ID_PREFIX = 12
_VERDICTS = {"ok": "Everything is working", "degraded": "{} found", "down": "Nothing is recorded automatically"}
Document = dict[str, Any]


class HealthReader:
    """Reads all parts of the health at the same time."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._status = PartReader[Document]("status")
        self._letters = PartReader[list[Document]]("dead letters")
        self._index = PartReader[Document]("index")

    async def read(self, seconds: float) -> Document:
        """Return the values of the template: what is read within this time, or was read last."""
        home = self._home
        status, letters, index = await asyncio.gather(
            self._status.get(lambda: read_status(home), seconds),
            self._letters.get(lambda: read_letters(home), seconds),
            self._index.get(lambda: read_index_status(home), seconds),
        )
        return describe_health(status, letters, index, datetime.now(UTC))


def read_status(home: Home) -> Document:
    """Return the document of `hyp status --json`, cleaned."""
    cleaned: Document = clean(collect_snapshot(home).as_json())
    return cleaned


def read_letters(home: Home) -> list[Document]:
    """Return the newest dead letters, newest first, without their rows."""
    if not has_state(home):
        return []
    with closing(open_store(home, read_only=True)) as store, store.reading() as connection:
        if not connection.has_table("dead_letters"):
            return []
        found = dead_letters.list_letters(connection)
    newest = sorted(found, key=lambda letter: letter.at, reverse=True)[:_MAX_LETTERS]
    return [clean({**letter.as_json(), "id": letter.id[:_ID_PREFIX]}) for letter in newest]


def clean(value: Any) -> Any:
    """Return the value with every text in it on one line, without escapes, credentials of URLs and secrets."""
    if isinstance(value, str):
        return escape_cell(mask_secrets(strip_url_credentials(value)))
    if isinstance(value, dict):
        return {clean(name): clean(each) for name, each in value.items()}
    return [clean(each) for each in value] if isinstance(value, list | tuple) else value


def describe_health(
    status: Reading[Document], letters: Reading[list[Document]], index: Reading[Document], now: datetime
) -> Document:
    """Return the values of the template. Parts that are not known are None."""
    found = status.value
    return {
        "status": found,
        "verdict": _verdict(found) if found else "Not known yet",
        "gateway": next((each for each in found["sources"] if each["kind"] == "live"), None) if found else None,
        "history": [each for each in found["sources"] if each["kind"] == "history"] if found else [],
        "expiring": _expiring(found) if found else [],
        "letters": letters.value,
        "index": index.value,
        "versions": _versions(found, index.value),
        "readings": {
            "status": replace(status, error=clean(status.error)),
            "letters": replace(letters, error=clean(letters.error)),
            "index": replace(index, error=clean(index.error)),
        },
        "is_late": any(each.is_late for each in (status, letters, index)),
        "since": lambda text: format_ago(text, now),
        "size": format_size,
        "counted": format_count,
        "lasting": format_duration,
    }


def _verdict(status: Document) -> str:
    problems = sum(each["severity"] != "info" for each in status["diagnostics"])
    return _VERDICTS[status["overall"]].format(format_count(problems, "problem"))


def _expiring(status: Document) -> list[Document]:
    """Return each client that deletes sessions soon, or has deleted some that this home keeps."""
    return [
        {**client["history"], "client": client["client"], "text": text}
        for client in status["clients"]
        if client.get("history") and (text := describe_history(client["history"], client["client"]))
    ]


def _versions(status: Document | None, index: Document | None) -> list[tuple[str, str]]:
    found = [("HypAware", __version__), ("Python", platform.python_version())]
    for name, facts in (("Daemon", (status or {}).get("daemon")), ("Engine", (status or {}).get("engine"))):
        if facts and facts.get("version"):
            found.append((name, str(facts["version"])))
    if index and index["version"] is not None:
        found.append(("Format of the index", str(index["version"])))
    return found


def routes(context: PageContext) -> list[web.RouteDef]:
    if context.access.is_team:
        return []
    reader = HealthReader(context.home)

    async def health(request: web.Request) -> web.StreamResponse:
        content = asyncio.create_task(reader.read(_FIRST_SECONDS))
        try:
            return await send_early(context, request, "health.html", {}, content)
        finally:
            discard(content)

    async def body(request: web.Request) -> web.Response:
        return context.render(request, "health_body.html", await reader.read(_SECONDS))

    return [web.get("/health", health), web.get("/health/body", body)]
