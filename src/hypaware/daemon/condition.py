"""How the daemon is, for those who ask: `run/daemon.json`.

    {pid, started_at, version,
     gateway: {listen, state, error, since, exchanges, recorded, incomplete, dropped, ignored, unknown, without_row,
               rejected_rows, redacted, last_exchange_at},
     sinks: {name: {next_round, last_round, last_status}}, flush: {last_flush, last_status},
     catch_up: {last_run, last_status, next_look}, maintain: {next_look, waits, last_run, last_status}}

The gateway's state is listening, down or off; `unknown` has paths, `without_row` kinds of items,
`redacted` rules, each with a count. Its counts are those of this daemon's life.

Replaced in one step and not synced: it means nothing after a power cut, and nothing without the daemon's lock.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from hypaware import __version__
from hypaware.home import Home

log = logging.getLogger("hypaware.daemon")


def path_of(home: Home) -> Path:
    return home.run / "daemon.json"


def read(home: Home) -> dict[str, Any]:
    """What the daemon wrote last; nothing if it has not come to it yet."""
    try:
        found = json.loads(path_of(home).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


class Condition:
    def __init__(self, home: Home, started_at: datetime) -> None:
        self._path = path_of(home)
        self._flush: dict[str, str | None] = {"last_flush": None, "last_status": None}
        self._maintain: dict[str, str | None] = dict.fromkeys(("next_look", "waits", "last_run", "last_status"))
        self._sinks: dict[str, dict[str, str | None]] = {}
        self._gateway: dict[str, Any] = {}
        self._catch_up: dict[str, str | None] = dict.fromkeys(("last_run", "last_status", "next_look"))
        self._head = {"pid": os.getpid(), "started_at": _text(started_at), "version": __version__}
        self._written: bytes | None = None

    def awaits(self, sink: str, next_round: datetime) -> None:
        self._of(sink)["next_round"] = _text(next_round)
        self.write()

    def had_round(self, sink: str, at: datetime, status: str) -> None:
        self._of(sink).update(last_round=_text(at), last_status=status)
        self.write()

    def flushed(self, at: datetime, status: str) -> None:
        self._flush = {"last_flush": _text(at), "last_status": status}
        self.write()

    def awaits_upkeep(self, next_look: datetime | None, waits: str | None = None) -> None:
        """`waits` says why there is no time for it."""
        self._maintain.update(next_look=_text(next_look) if next_look else None, waits=waits)
        self.write()

    def had_upkeep(self, at: datetime, status: str) -> None:
        self._maintain.update(last_run=_text(at), last_status=status)
        self.write()

    def gateway(self, found: Mapping[str, Any]) -> None:
        """All of it, as it is now."""
        self._gateway = {name: _text(value) if isinstance(value, datetime) else value for name, value in found.items()}
        self.write()

    def awaits_catch_up(self, next_look: datetime) -> None:
        self._catch_up["next_look"] = _text(next_look)
        self.write()

    def caught_up(self, at: datetime, status: str) -> None:
        self._catch_up.update(last_run=_text(at), last_status=status)
        self.write()

    def forget(self, sink: str) -> None:
        self._sinks.pop(sink, None)
        self.write()

    def write(self) -> None:
        """A full disk must not end the daemon: its work does not depend on this file."""
        parts = {
            "gateway": self._gateway,
            "sinks": self._sinks,
            "flush": self._flush,
            "catch_up": self._catch_up,
            "maintain": self._maintain,
        }
        body = json.dumps({**self._head, **parts}, indent=1).encode()
        if body == self._written:
            return
        temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}.tmp")
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(body)
            temporary.replace(self._path)
            self._written = body
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            log.warning("%s could not be written: %s", self._path, error)

    def remove(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _of(self, sink: str) -> dict[str, str | None]:
        return self._sinks.setdefault(sink, {"next_round": None, "last_round": None, "last_status": None})


def _text(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")
