"""Where attached clients sent their requests before: a proxy of the user's own, which stays in the way.

Read from the undo records that attach keeps (`clients.undo`); the gateway and `fallback` put these in front of the
presets: `Routes([*config.gateway.upstreams, *own_upstreams.read(home)])`. Of a client that was detached they count for
a week more: its open sessions have the gateway's address, and keys that only the user's proxy is to see.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from hypaware.home import Home


@dataclass(frozen=True)
class OwnUpstream:
    """An upstream as the config has them (`routes.Upstream`)."""

    name: str
    path_prefix: str
    base_url: str
    provider: str
    strip_prefix: bool = True


_LEFT_SECONDS = 7 * 86_400.0
_PROVIDERS = {"claude": "anthropic", "codex": "openai"}


def left_path(record: Path) -> Path:
    """What detach leaves of a record."""
    return record.with_name("upstream.json")


def read(home: Home) -> tuple[OwnUpstream, ...]:
    found = []
    for folder in sorted((home.root / "clients").glob("*")):
        try:
            told = json.loads(_of_client(folder).read_bytes())
            client, upstream = told["client"], told["upstream"]
            if upstream:
                found.append(
                    OwnUpstream(
                        f"{client}-own", upstream["path_prefix"], upstream["base_url"], _PROVIDERS.get(client, client)
                    )
                )
        except (OSError, ValueError, KeyError, TypeError):
            # A record that cannot be read names no other way than the usual one.
            continue
    return tuple(found)


def _of_client(folder: Path) -> Path:
    record = folder / "attach.json"
    left = left_path(record)
    if not record.exists() and left.is_file() and time.time() - left.stat().st_mtime < _LEFT_SECONDS:
        return left
    return record


def attached(home: Home) -> bool:
    """Whether any client points at the gateway."""
    return any((home.root / "clients").glob("*/attach.json"))
