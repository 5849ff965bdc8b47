"""The mirror: a small, fsynced JSON file next to the state, from which a lost state can be rebuilt.

`state.mirror.json` contains the identity, the next sequence and the high water as of the last recorded flush, and the
deliveries as of the last intent: every stream with its watermark, its intent and its dead letters. It is written after
the state and is never ahead of it, so a state that is behind its mirror was restored from an older copy. A lock keeps a
writer from replacing the mirror with an older one.

The mirror is written after an intent and before the first byte of its chunks is sent. The deliveries have a `step`,
which increases with every intent, so a state with a lower step is older than the mirror. Chunks that were acknowledged
since then are sent again under the same ids, or the destination is asked for them.

A shared lake has a second mirror in its bucket (`shared_mirror`). The mirror of a home shows a database that was
restored from an earlier copy only to a machine that has seen a later one; the other shows it to every machine.

Producers read the mirror, so importing this module does not import the database.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypaware import faults
from hypaware.config.shared_lake import find_shared_lake
from hypaware.home import Home, durable_files
from hypaware.home.identity import Identity, parse_identity
from hypaware.home.locks import locked
from hypaware.home.storage import ObjectPath, write_object
from hypaware.state import dead_letters, flushes, inherited_segments, streams
from hypaware.state.dead_letters import DeadLetter
from hypaware.state.streams import Intent, PlannedChunk, Stream, key_of

if TYPE_CHECKING:
    from hypaware.state.store import Connection, StateStore

MIRROR_VERSION = 1
GATEWAY_FILE = "gateway.id"
_SHARED_MIRROR = "_hypaware/state.mirror.json"
_before_write = faults.crash_point(
    "state.mirror.before-write", "the state is committed and its mirror is one step behind"
)
_after_write = faults.crash_point("state.mirror.after-write", "the mirror is up to date with the state")
_LETTER_FIELDS = ("incarnation", "after", "last", "rows", "reason", "at")


@dataclass(frozen=True)
class Mirror:
    identity: Identity
    next_seq: int
    high_water: dict[str, dict[str, int]]
    deliveries: dict[str, Any] | None = None
    """As `read_deliveries` returns them."""

    @property
    def step(self) -> int:
        return int(self.deliveries["step"]) if self.deliveries else 0


def read_mirror(path: Path) -> Mirror | None:
    """Return the mirror, or None if it is missing or damaged. The state is then rebuilt from the lake alone."""
    try:
        held = json.loads(path.read_bytes())
        if held["version"] != MIRROR_VERSION:
            return None
        high_water = {
            dataset: {source: int(seq) for source, seq in by_source.items()}
            for dataset, by_source in held["high_water"].items()
        }
        return Mirror(parse_identity(held["identity"]), int(held["next_seq"]), high_water, held.get("deliveries"))
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_mirror(path: Path, store: StateStore) -> None:
    from hypaware.state.store import load_identity

    with locked(path.with_name(f"{path.name}.lock")):
        with store.reading() as connection:
            identity = load_identity(connection)
            body = {
                "version": MIRROR_VERSION,
                "identity": asdict(identity) if identity else None,
                "next_seq": flushes.next_sequence(connection),
                "high_water": flushes.load_high_water(connection),
                "deliveries": read_deliveries(connection),
            }
        # Rows in the spool carry the gateway's id, so it is stored a third time. It never changes.
        gateway_file = path.with_name(GATEWAY_FILE)
        if identity and not gateway_file.exists():
            durable_files.write_atomic(gateway_file, identity.gateway_id.encode())
        content = json.dumps(body, indent=1).encode()
        _before_write()
        durable_files.write_atomic(path, content)
        if identity and identity.is_shared and (shared := shared_mirror(Home(path.parent))):
            write_object(shared, content)
        _after_write()


def shared_mirror(home: Home) -> ObjectPath | None:
    """Return the mirror in the bucket of a shared lake, or None if the lake is embedded."""
    shared = find_shared_lake(home)
    return None if shared is None else shared.root / _SHARED_MIRROR


def read_deliveries(connection: Connection) -> dict[str, Any]:
    """Return the deliveries in the format of the mirror."""
    planned = [streams.load_intent(connection, key) for key in sorted(streams.streams_with_intent(connection))]
    return {
        "step": streams.delivery_step(connection),
        "lost": streams.is_history_lost(connection),
        "rolled_back": streams.was_rolled_back(connection),
        "inherited": inherited_segments.list_inherited(connection),
        "streams": [
            {**asdict(stream.key), **{name: getattr(stream, name) for name in streams.MIRRORED_FIELDS}}
            for stream in streams.list_streams(connection)
        ],
        "intents": [
            {
                **asdict(intent.key),
                "after": intent.after,
                "last": intent.last,
                "chunks": [[c.id, c.incarnation, c.after, c.last, c.rows, c.acked] for c in intent.chunks],
            }
            for intent in filter(None, planned)
        ],
        "dead_letters": [
            {**letter.as_json(), "incarnation": letter.incarnation} for letter in dead_letters.list_letters(connection)
        ],
    }


def restore_deliveries(connection: Connection, held: Mapping[str, Any]) -> None:
    """Replace the deliveries in a stale or new state with those in the mirror, which are newer.

    A stream or a dead letter that only the state has was renamed, delivered or dropped since.
    """
    letters = [
        DeadLetter(each["id"], key_of(each), **{name: each[name] for name in _LETTER_FIELDS})
        for each in held["dead_letters"]
    ]
    payloads = {letter.id: dead_letters.load_payload(connection, letter.id) for letter in letters}
    for stream in streams.list_streams(connection):
        streams.cancel_intent(connection, stream.key)
        dead_letters.drop_stream_letters(connection, stream.key)
        streams.forget_stream(connection, stream.key)
    planned = {key_of(each): each for each in held["intents"]}
    for each in held["streams"]:
        key = key_of(each)
        # A mirror of an older version lacks some of the fields.
        fields = {name: each[name] for name in streams.MIRRORED_FIELDS if name in each}
        streams.restore_stream(connection, Stream(key, **fields))
        if intent := planned.get(key):
            chunks = tuple(PlannedChunk(*chunk) for chunk in intent["chunks"])
            streams.save_intent(connection, Intent(key, intent["after"], intent["last"], chunks))
    for letter in letters:
        dead_letters.add_letter(connection, letter, payloads[letter.id])
    if held.get("lost"):
        streams.mark_history_lost(connection)
    if held.get("rolled_back"):
        streams.note_rollback(connection)
    inherited_segments.add_inherited(connection, held.get("inherited", {}))
    streams.advance_delivery_step(connection, at_least=int(held["step"]))


def mark_unknown(connection: Connection, of_streams: Iterable[Stream]) -> None:
    """Mark the watermarks of streams as unknown: each asks its destination, or waits for the user.

    Except after a rollback, when the destination may report other rows under the same sequences.
    """
    streams.mark_history_lost(connection)
    for stream in of_streams:
        if stream.history in streams.AFTER_ROLLBACK:
            continue
        streams.cancel_intent(connection, stream.key)
        streams.restore_stream(connection, replace(stream, watermark=None, history=streams.HISTORY_LOST))
    streams.advance_delivery_step(connection)
