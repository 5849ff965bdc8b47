"""The daemon's status file, `run/daemon.json`:

    {pid, started_at, version,
     gateway: {listen, state, error, since, exchanges, recorded, incomplete, dropped, ignored, unknown, without_row,
               rejected_rows, redacted, last_exchange_at},
     sinks: {name: {next_round, last_round, last_status}}, flush: {last_flush, last_status},
     catch_up: {last_run, last_status, next_look}, maintain: {next_look, waits, last_run, last_status}}

The gateway's state is `listening`, `down` or `off`. `unknown` counts paths, `without_row` kinds of items and `redacted`
rules. All counts start at zero with the daemon.

The file is replaced atomically but not synced: it is meaningless after a power cut, and without the daemon's lock.
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
    """Return the file's contents, or an empty dict if the daemon has not written it yet."""
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
        self._import: dict[str, str | None] = dict.fromkeys(("last_run", "last_status", "next_look"))
        self._head = {"pid": os.getpid(), "started_at": _text(started_at), "version": __version__}
        self._written: bytes | None = None

    def set_next_round(self, sink: str, next_round: datetime) -> None:
        self._sink(sink)["next_round"] = _text(next_round)
        self.write()

    def record_round(self, sink: str, at: datetime, status: str) -> None:
        self._sink(sink).update(last_round=_text(at), last_status=status)
        self.write()

    def record_flush(self, at: datetime, status: str) -> None:
        self._flush = {"last_flush": _text(at), "last_status": status}
        self.write()

    def set_next_maintenance(self, at: datetime | None, reason_to_wait: str | None = None) -> None:
        self._maintain.update(next_look=_text(at) if at else None, waits=reason_to_wait)
        self.write()

    def record_maintenance(self, at: datetime, status: str) -> None:
        self._maintain.update(last_run=_text(at), last_status=status)
        self.write()

    def set_gateway(self, facts: Mapping[str, Any]) -> None:
        """Replace the whole `gateway` object."""
        self._gateway = {name: _text(value) if isinstance(value, datetime) else value for name, value in facts.items()}
        self.write()

    def set_next_import(self, at: datetime) -> None:
        self._import["next_look"] = _text(at)
        self.write()

    def record_import(self, at: datetime, status: str) -> None:
        self._import.update(last_run=_text(at), last_status=status)
        self.write()

    def remove_sink(self, sink: str) -> None:
        self._sinks.pop(sink, None)
        self.write()

    def write(self) -> None:
        """Write the file. A failure, such as a full disk, is only logged: the daemon's work does not depend on it."""
        parts = {
            "gateway": self._gateway,
            "sinks": self._sinks,
            "flush": self._flush,
            "catch_up": self._import,
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
            log.warning("cannot write %s: %s", self._path, error)

    def remove(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _sink(self, sink: str) -> dict[str, str | None]:
        return self._sinks.setdefault(sink, {"next_round": None, "last_round": None, "last_status": None})


def _text(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")
