"""The attach status of a client, from its settings, a probe of the address it calls, and what the gateway has seen.

| state | meaning |
|---|---|
| `detached` | it is not attached |
| `recording` | the gateway answers, and has seen the client since it was attached |
| `attached` | the gateway answers, but has not seen the client yet |
| `passing` | no daemon answers at its address: requests reach the provider, but nothing is recorded |
| `broken` | nothing answers at the address that the client calls |
| `changed` | the client was attached, and its settings have been changed since |

The gateway identifies itself at `GET /_hypaware/health` (`handover.describe_health`) and writes when it last saw each
client to `run/gateway.json`:

    {listen, pid, clients: {name: {last_seen_at, exchanges}}}

That file is replaced atomically and not synced, because it is worthless after a power failure. Each gateway starts the
counts at zero and takes over the last-seen times from the previous file.
"""

from __future__ import annotations

import json
import os
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hypaware.clients import attach, settings_file
from hypaware.clients.attach import ClientSettings, Environment
from hypaware.clients.settings_file import SettingsRefused
from hypaware.gateway import handover
from hypaware.home import Home, durable_files

_SECONDS = 3.0
REPAIR = {
    "passing": "hyp daemon start",
    "broken": "hyp daemon start",
    "changed": "hyp client attach {client}",
}


@dataclass(frozen=True)
class AttachStatus:
    client: str
    state: str
    path: Path
    base_url: str | None
    upstream: str | None
    answered_by: str | None
    last_seen_at: str | None = None
    exchanges: int = 0
    attached_at: str | None = None
    problem: str | None = None

    @property
    def repair(self) -> str | None:
        command = REPAIR.get(self.state)
        return command.format(client=self.client) if command else None

    def calls(self, listen: str) -> bool:
        """Return whether the client calls the port of `gateway.listen`, which may have changed since the attach."""
        return urlsplit(self.base_url or "").port == int(listen.rpartition(":")[2])

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path)}


def attach_status(home: Home, client: ClientSettings, environment: Environment) -> AttachStatus:
    record = attach.read_record(home, client.name)
    path = Path(record.path) if record else client.path(environment)
    try:
        with settings_file.name_refused_file(path):
            current = settings_file.read_settings(path)
            base_url, problem = client.base_url(current.text), None
    except SettingsRefused as reason:
        # Nothing was to be written here.
        base_url, problem = None, reason.message.removesuffix(". Nothing was written")
    # An address that attach did not write belongs to someone else, for example to a proxy of the user.
    answered_by = probe_gateway(home, record.base_url) if record and base_url == record.base_url else None
    seen = read_activity(home).get(client.name, {})
    last_seen = seen.get("last_seen_at")
    exchanges = seen.get("exchanges")
    if record is None:
        state = "detached"
    elif base_url != record.base_url:
        state = "changed"
    elif answered_by == "gateway":
        state = "recording" if last_seen and str(last_seen) >= record.at else "attached"
    else:
        state = "passing" if answered_by else "broken"
    return AttachStatus(
        client=client.name,
        state=state,
        path=path,
        base_url=base_url,
        upstream=attach.name_upstreams(record.upstreams) if record else None,
        answered_by=answered_by,
        last_seen_at=str(last_seen) if last_seen else None,
        exchanges=exchanges if isinstance(exchanges, int) else 0,
        attached_at=record.at if record else None,
        problem=problem,
    )


def probe_gateway(home: Home, base_url: str) -> str | None:
    """Return which process of this home answers at the client's address: gateway, fallback, or None."""
    parts = urlsplit(base_url)
    if parts.scheme != "http" or not parts.hostname or not parts.port:
        return None
    try:
        with closing(HTTPConnection(parts.hostname, parts.port, timeout=_SECONDS)) as connection:
            connection.request("GET", handover.HEALTH_PATH)
            found = json.loads(connection.getresponse().read(4096))
    except (OSError, HTTPException, ValueError):
        return None
    if not isinstance(found, dict) or found.get("home") != handover.home_fingerprint(home):
        return None
    role = found.get("hypaware")
    return role if role in ("gateway", "fallback") else None


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
