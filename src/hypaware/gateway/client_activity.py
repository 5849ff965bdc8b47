"""When the gateway last saw each client: `run/gateway.json`.

    {listen, pid, clients: {name: {last_seen_at, exchanges}}}

The file is replaced atomically and not synced, because it is worthless after a power failure. Each gateway starts the
counts at zero and takes over the last-seen times from the previous file.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from hypaware.home import Home, durable_files


def activity_path(home: Home) -> Path:
    return home.run / "gateway.json"


def read_activity(home: Home) -> dict[str, dict[str, Any]]:
    """Return the last written activity of each client; nothing if the file is missing or damaged."""
    try:
        clients = json.loads(activity_path(home).read_bytes())["clients"]
        return {str(name): each for name, each in clients.items() if isinstance(each, dict)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


class ClientActivity:
    def __init__(self, home: Home, listen: str) -> None:
        self._path = activity_path(home)
        self._head = {"listen": listen, "pid": os.getpid()}
        self._clients: dict[str, dict[str, Any]] = {
            name: {"last_seen_at": previous.get("last_seen_at"), "exchanges": 0}
            for name, previous in read_activity(home).items()
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
        body = json.dumps({**self._head, "clients": self._clients}, indent=1).encode()
        with suppress(OSError):
            durable_files.write_atomic(self._path, body, durable=False)
            self._is_written = True
