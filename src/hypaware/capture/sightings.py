"""When the gateway last saw each client: `run/gateway.json`.

    {listen, pid, clients: {name: {last_seen_at, exchanges}}}

The file is replaced atomically and not synced, because it is worthless after a power failure. Each gateway starts the
counts at zero and takes over the last-seen times from the previous file.
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
            name: {"last_seen_at": previous.get("last_seen_at"), "exchanges": 0}
            for name, previous in _before(self._path)
        }
        self._is_written = False

    def record(self, client: str, at: datetime) -> None:
        activity = self._clients.setdefault(client, {"last_seen_at": None, "exchanges": 0})
        activity["last_seen_at"] = at.isoformat(timespec="seconds").replace("+00:00", "Z")
        activity["exchanges"] += 1
        self._is_written = False

    def write(self) -> None:
        """Write the file if anything changed. Errors such as a full disk are ignored; the gateway must not stop."""
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
