"""The side file: what must survive the loss of the state, as small fsynced JSON beside it.

`state.mirror.json` holds the identity, the next sequence and the high waters as of the last recorded flush. It is
written after the state, so it is never ahead of it: a state that is behind its mirror was restored from an older copy.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hypaware import durable, faults
from hypaware.state import identity
from hypaware.state.identity import Identity

if TYPE_CHECKING:
    from hypaware.state.store import Store

VERSION = 1
_before_write = faults.point("state.mirror.before-write", "the state is committed and its mirror is a step behind")
_after_write = faults.point("state.mirror.after-write", "the mirror is as new as the state")


@dataclass(frozen=True)
class Mirror:
    identity: Identity
    next_seq: int
    high_water: dict[str, dict[str, int]]


def read(path: Path) -> Mirror | None:
    """None if there is none, or it is damaged: the lake itself then says what it knows."""
    try:
        held = json.loads(path.read_bytes())
        if held["version"] != VERSION:
            return None
        high_water = {
            dataset: {source: int(seq) for source, seq in by_source.items()}
            for dataset, by_source in held["high_water"].items()
        }
        return Mirror(identity.from_json(held["identity"]), int(held["next_seq"]), high_water)
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write(path: Path, store: Store) -> None:
    # Producers read the mirror to know whose home this is; they need no database for it.
    from hypaware.state import flushes, whose

    with store.reading() as connection:
        known = whose.load(connection)
        body = {
            "version": VERSION,
            "identity": asdict(known) if known else None,
            "next_seq": flushes.next_seq(connection),
            "high_water": flushes.high_water(connection),
        }
    _before_write()
    durable.write_file(path, json.dumps(body, indent=1).encode())
    _after_write()
