"""The mirror: a small, fsynced JSON file next to the state, from which a lost state can be rebuilt.

`state.mirror.json` contains the identity, the next sequence and the high water as of the last recorded flush, and the
deliveries as of the last intent. It is written after the state and is never ahead of it, so a state that is behind its
mirror was restored from an older copy. A lock keeps a writer from replacing the mirror with an older one.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypaware import durable, faults
from hypaware.state import identity
from hypaware.state.identity import Identity

if TYPE_CHECKING:
    from hypaware.state.store import Store

VERSION = 1
GATEWAY_FILE = "gateway.id"
_before_write = faults.point("state.mirror.before-write", "the state is committed and its mirror is one step behind")
_after_write = faults.point("state.mirror.after-write", "the mirror is up to date with the state")


@dataclass(frozen=True)
class Mirror:
    identity: Identity
    next_seq: int
    high_water: dict[str, dict[str, int]]
    deliveries: dict[str, Any] | None = None
    """As written by `deliveries.as_json`. Parsed only when a state is rebuilt."""

    @property
    def step(self) -> int:
        return int(self.deliveries["step"]) if self.deliveries else 0


def read(path: Path) -> Mirror | None:
    """Return the mirror, or None if it is missing or damaged. The state is then rebuilt from the lake alone."""
    try:
        held = json.loads(path.read_bytes())
        if held["version"] != VERSION:
            return None
        high_water = {
            dataset: {source: int(seq) for source, seq in by_source.items()}
            for dataset, by_source in held["high_water"].items()
        }
        known = identity.from_json(held["identity"])
        return Mirror(known, int(held["next_seq"]), high_water, held.get("deliveries"))
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write(path: Path, store: Store) -> None:
    # Imported here, because producers read the mirror and must not pay for importing the database.
    from hypaware.state import deliveries, flushes, whose

    with _locked(path):
        with store.reading() as connection:
            known = whose.load(connection)
            body = {
                "version": VERSION,
                "identity": asdict(known) if known else None,
                "next_seq": flushes.next_seq(connection),
                "high_water": flushes.high_water(connection),
                "deliveries": deliveries.as_json(deliveries.of_state(connection)),
            }
        # Rows in the spool carry the gateway's id, so it is stored a third time. It never changes.
        gateway_file = path.with_name(GATEWAY_FILE)
        if known and not gateway_file.exists():
            durable.write_file(gateway_file, known.gateway_id.encode())
        _before_write()
        durable.write_file(path, json.dumps(body, indent=1).encode())
        _after_write()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep a writer that has read an older state from writing after this one."""
    fd = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
