"""The side file: what must survive the loss of the state, as small fsynced JSON beside it.

`state.mirror.json` holds the identity, the next sequence and the high waters as of the last recorded flush, and the
deliveries as of the last plan. It is written after the state, so it is never ahead of it: a state that is behind its
mirror was restored from an older copy. Writers take turns, so that it never goes back.
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
_before_write = faults.point("state.mirror.before-write", "the state is committed and its mirror is a step behind")
_after_write = faults.point("state.mirror.after-write", "the mirror is as new as the state")


@dataclass(frozen=True)
class Mirror:
    identity: Identity
    next_seq: int
    high_water: dict[str, dict[str, int]]
    deliveries: dict[str, Any] | None = None
    """As `deliveries.as_json` wrote them; taken apart only where a state is rebuilt."""

    @property
    def step(self) -> int:
        return int(self.deliveries["step"]) if self.deliveries else 0


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
        known = identity.from_json(held["identity"])
        return Mirror(known, int(held["next_seq"]), high_water, held.get("deliveries"))
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write(path: Path, store: Store) -> None:
    # Producers read the mirror to know whose home this is; they need no database for it.
    from hypaware.state import deliveries, flushes, whose

    with _turn(path):
        with store.reading() as connection:
            known = whose.load(connection)
            body = {
                "version": VERSION,
                "identity": asdict(known) if known else None,
                "next_seq": flushes.next_seq(connection),
                "high_water": flushes.high_water(connection),
                "deliveries": deliveries.as_json(deliveries.of_state(connection)),
            }
        # A third place for what never changes: rows on their way carry the gateway's id.
        noted = path.with_name(GATEWAY_FILE)
        if known and not noted.exists():
            durable.write_file(noted, known.gateway_id.encode())
        _before_write()
        durable.write_file(path, json.dumps(body, indent=1).encode())
        _after_write()


@contextmanager
def _turn(path: Path) -> Iterator[None]:
    """Another writer that read an older state must not write after us."""
    fd = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
