"""What attach did to a client, so that it can be taken back: `<HYP_HOME>/clients/<name>/attach.json`, private.

    {v, client, path, existed, original_sha256, written_sha256, splices: [[at, removed, inserted]…],
     ours: {…}, before: {…}, base_url, upstream: {path_prefix, base_url} | null, at}

It is durable before the client's file changes: whatever happens then, both states of that file are known by their
hashes. Of the file itself it holds nothing but the places that were changed. `upstream` is where the client's requests
went before, where that was not the provider itself: the gateway sends them there.
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
    """Requests under the prefix go there, without the prefix."""

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
    """What the client's own module wrote, to find it again in a file that was changed since."""
    before: Mapping[str, Any] = field(default_factory=dict)
    """What stood there before."""
    upstream: OwnUpstream | None = None
    at: str = ""


def path_of(home: Home, client: str) -> Path:
    return home.root / "clients" / client / "attach.json"


def read(home: Home, client: str) -> Record | None:
    """None where there is none, and where it cannot be read: the client's module then goes by what it sees."""
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
    """What was known before; one that never was in force leaves nothing."""
    if earlier is None:
        durable.remove(path_of(home, client))
    else:
        write(home, earlier)


def remove(home: Home, client: str) -> None:
    """Sessions that are open still call the gateway: where their requests go is kept for them, beside the record."""
    path, left = path_of(home, client), own_upstreams.left_path(path_of(home, client))
    if not path.exists():
        return
    record = read(home, client)
    if record and record.upstream:
        durable.write_file(left, json.dumps({"client": client, "upstream": asdict(record.upstream)}).encode())
    elif left.exists():
        durable.remove(left)
    durable.remove(path)
