"""The attach record: what attach changed, so that detach can revert it.

`<HYP_HOME>/clients/<name>/attach.json`, readable only by its owner:

    {v, client, path, existed, original_sha256, written_sha256, splices: [[at, removed, inserted]…],
     ours: {…}, before: {…}, base_url, upstream: {path_prefix, base_url} | null, at}

The record becomes durable before the client's file changes, so both versions of that file are always known by their
hashes. It contains nothing of the file except the changed parts. `upstream` is the URL that the client used before,
if it was not the provider's own: the gateway forwards the client's requests to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hypaware import durable
from hypaware.capture import own_upstreams
from hypaware.clients.splice import Splice
from hypaware.home import Home

VERSION = 1


@dataclass(frozen=True)
class OwnUpstream:
    """Requests under the prefix are forwarded to this URL, without the prefix."""

    path_prefix: str
    base_url: str


@dataclass(frozen=True)
class Record:
    client: str
    path: str
    existed: bool
    original_sha256: str
    written_sha256: str
    splices: Sequence[Splice]
    base_url: str
    ours: Mapping[str, Any] = field(default_factory=dict)
    """The values that the client's module wrote, to find them in a file that was changed since."""
    before: Mapping[str, Any] = field(default_factory=dict)
    """The values before attach."""
    upstream: OwnUpstream | None = None
    at: str = ""


def path_of(home: Home, client: str) -> Path:
    return home.root / "clients" / client / "attach.json"


def read(home: Home, client: str) -> Record | None:
    """Return the record; None if it does not exist or cannot be read. Detach then relies on the file alone."""
    try:
        found = json.loads(path_of(home, client).read_bytes())
        if found.pop("v") != VERSION:
            return None
        upstream = found.pop("upstream")
        splices = tuple(Splice(int(at), str(removed), str(inserted)) for at, removed, inserted in found.pop("splices"))
        return Record(**found, splices=splices, upstream=OwnUpstream(**upstream) if upstream else None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write(home: Home, record: Record) -> None:
    path = path_of(home, record.client)
    durable.make_dir(path.parent)
    durable.write_file(path, json.dumps({"v": VERSION, **asdict(record)}, indent=1).encode())


def put_back(home: Home, client: str, earlier: Record | None) -> None:
    """Restore the earlier record, or remove the current one if there was none."""
    if earlier is None:
        durable.remove(path_of(home, client))
    else:
        write(home, earlier)


def remove(home: Home, client: str) -> None:
    """Remove the record, but keep its upstream in a file next to it: open sessions still call the gateway."""
    path, left = path_of(home, client), own_upstreams.left_path(path_of(home, client))
    if not path.exists():
        return
    record = read(home, client)
    if record and record.upstream:
        durable.write_file(left, json.dumps({"client": client, "upstream": asdict(record.upstream)}).encode())
    elif left.exists():
        durable.remove(left)
    durable.remove(path)
