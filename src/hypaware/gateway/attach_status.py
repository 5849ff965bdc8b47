"""The attach status of a client, from its settings, a probe of the address it calls, and what the gateway has seen.

| state | meaning |
|---|---|
| `detached` | its settings do not name the gateway, and it is not attached |
| `recording` | the gateway answers, and has seen the client since it was attached |
| `attached` | the gateway answers, but has not seen the client yet |
| `passing` | the daemon is not running: requests reach the provider, but nothing is recorded |
| `broken` | nothing answers at the address that the client calls |
| `changed` | the client was attached, and its settings have been changed since |

The gateway writes when it last saw each client to `run/gateway.json` (`client_activity`) and identifies itself at
`GET /_hypaware/health` (`handover.describe_health`).
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hypaware.clients import attach, settings_file
from hypaware.clients.attach import ClientSettings, Environment
from hypaware.clients.settings_file import SettingsRefused
from hypaware.gateway import client_activity, handover
from hypaware.home import Home

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
    """gateway, fallback, or None."""
    last_seen_at: str | None = None
    exchanges: int = 0
    attached_at: str | None = None
    problem: str | None = None

    @property
    def repair(self) -> str | None:
        command = REPAIR.get(self.state)
        return command.format(client=self.client) if command else None

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
    answered_by = probe_gateway(home, base_url) if base_url else None
    seen = client_activity.read_activity(home).get(client.name, {})
    last_seen = seen.get("last_seen_at")
    exchanges = seen.get("exchanges")
    return AttachStatus(
        client=client.name,
        state=_attach_state(base_url, record, answered_by, str(last_seen or "")),
        path=path,
        base_url=base_url,
        upstream=record.upstream.base_url if record and record.upstream else None,
        answered_by=answered_by,
        last_seen_at=str(last_seen) if last_seen else None,
        exchanges=exchanges if isinstance(exchanges, int) else 0,
        attached_at=record.at if record else None,
        problem=problem,
    )


def _attach_state(
    base_url: str | None, record: attach.AttachRecord | None, answered_by: str | None, last_seen: str
) -> str:
    if record is None and answered_by is None:
        return "detached"
    if record is not None and base_url != record.base_url:
        return "changed"
    if answered_by == "gateway":
        return "recording" if last_seen and last_seen >= (record.at if record else "") else "attached"
    return "passing" if answered_by else "broken"


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
