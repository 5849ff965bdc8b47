"""Where attached clients sent their requests before: a proxy of the user's own, which stays in the way.

Read from the undo records that attach keeps (`clients.undo`); the gateway and `fallback` put these in front of the
presets: `Routes([*config.gateway.upstreams, *own_upstreams.read(home)])`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from hypaware.home import Home


@dataclass(frozen=True)
class OwnUpstream:
    """An upstream as the config has them (`routes.Upstream`)."""

    name: str
    path_prefix: str
    base_url: str
    provider: str
    strip_prefix: bool = True


_PROVIDERS = {"claude": "anthropic", "codex": "openai"}


def read(home: Home) -> tuple[OwnUpstream, ...]:
    found = []
    for path in sorted((home.root / "clients").glob("*/attach.json")):
        try:
            record = json.loads(path.read_bytes())
            client, upstream = record["client"], record["upstream"]
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


def attached(home: Home) -> bool:
    """Whether any client points at the gateway."""
    return any((home.root / "clients").glob("*/attach.json"))
