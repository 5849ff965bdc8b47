"""Which clients the gateway has seen, for those who ask: `run/gateway.json`.

    {listen, pid, clients: {name: {last_seen_at, exchanges}}}

Replaced in one step and not synced: it means nothing after a power cut. The counts begin anew with each gateway, the
time of the last sighting is taken over from the one before.
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from hypaware.home import Home


def path_of(home: Home) -> Path:
    return home.run / "gateway.json"


class Sightings:
    def __init__(self, home: Home, listen: str) -> None:
        self._path = path_of(home)
        self._head = {"listen": listen, "pid": os.getpid()}
        self._clients: dict[str, dict[str, Any]] = {
            name: {"last_seen_at": each.get("last_seen_at"), "exchanges": 0} for name, each in _before(self._path)
        }
        self._is_written = False

    def saw(self, client: str, at: datetime) -> None:
        found = self._clients.setdefault(client, {"last_seen_at": None, "exchanges": 0})
        found["last_seen_at"] = at.isoformat(timespec="seconds").replace("+00:00", "Z")
        found["exchanges"] += 1
        self._is_written = False

    def write(self) -> None:
        """Called now and then: nothing is done when nothing is new. A full disk must not end the gateway."""
        if self._is_written:
            return
        temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}.tmp")
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(json.dumps({**self._head, "clients": self._clients}, indent=1).encode())
            temporary.replace(self._path)
            self._is_written = True
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def _before(path: Path) -> list[tuple[str, dict[str, Any]]]:
    try:
        clients = json.loads(path.read_bytes())["clients"]
        return [(str(name), each) for name, each in clients.items() if isinstance(each, dict)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
