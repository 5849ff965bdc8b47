"""Custom upstreams: where an attached client sent its requests before, if that was the user's own proxy.

They come from the records that attach keeps. The gateway and its fallback prefer them to the presets:
`Routes([*config.gateway.upstreams, *read_custom_upstreams(home)])`. After a detach they stay valid for a week, because
open sessions keep the gateway's address and use keys that only the user's proxy may see.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from hypaware.home import Home


@dataclass(frozen=True)
class OwnUpstream:
    """An upstream in the form of the config (`routes.Upstream`)."""

    name: str
    path_prefix: str
    base_url: str
    provider: str
    strip_prefix: bool = True


_LEFT_SECONDS = 7 * 86_400.0
_PROVIDERS = {"claude": "anthropic", "codex": "openai"}


def left_path(record: Path) -> Path:
    """Return the path of the file that detach leaves next to the attach record."""
    return record.with_name("upstream.json")


def read(home: Home) -> tuple[OwnUpstream, ...]:
    upstreams = []
    for folder in sorted((home.root / "clients").glob("*")):
        try:
            record = json.loads(_of_client(folder).read_bytes())
            client, upstream = record["client"], record["upstream"]
            if upstream:
                upstreams.append(
                    OwnUpstream(
                        f"{client}-own", upstream["path_prefix"], upstream["base_url"], _PROVIDERS.get(client, client)
                    )
                )
        except (OSError, ValueError, KeyError, TypeError):
            # Without a readable record the client's preset applies.
            continue
    return tuple(upstreams)


def _of_client(folder: Path) -> Path:
    record = folder / "attach.json"
    left = left_path(record)
    if not record.exists() and left.is_file() and time.time() - left.stat().st_mtime < _LEFT_SECONDS:
        return left
    return record


def attached(home: Home) -> bool:
    """Return whether any client is attached to the gateway."""
    return any((home.root / "clients").glob("*/attach.json"))
