"""The mirror: a small, fsynced JSON file next to the state, from which a lost state can be rebuilt.

`state.mirror.json` contains the identity, the next sequence and the high water as of the last recorded flush, and the
deliveries as of the last intent: every stream with its watermark, its intent and its dead letters. It is written after
the state and is never ahead of it, so a state that is behind its mirror was restored from an older copy. A lock keeps a
writer from replacing the mirror with an older one.

The mirror is written after an intent and before the first byte of its chunks is sent. The deliveries have a `step`,
which increases with every intent, so a state with a lower step is older than the mirror. Chunks that were acknowledged
since then are sent again under the same ids, or the destination is asked for them.

Producers read the mirror, so importing this module does not import the database.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypaware import faults
from hypaware.home import durable_files
from hypaware.home.identity import Identity, parse_identity
from hypaware.home.locks import locked
from hypaware.state import dead_letters, flushes, intents, streams
from hypaware.state.dead_letters import DeadLetter
from hypaware.state.intents import Intent, PlannedChunk
from hypaware.state.streams import Stream, key_of

if TYPE_CHECKING:
    from hypaware.state.store import Connection, StateStore

MIRROR_VERSION = 1
GATEWAY_FILE = "gateway.id"
_before_write = faults.crash_point(
    "state.mirror.before-write", "the state is committed and its mirror is one step behind"
)
_after_write = faults.crash_point("state.mirror.after-write", "the mirror is up to date with the state")
_STREAM_FIELDS = ("address", "destination_id", "watermark", "history", "exported_rows", "held")


@dataclass(frozen=True)
class Mirror:
    identity: Identity
    next_seq: int
    high_water: dict[str, dict[str, int]]
    deliveries: dict[str, Any] | None = None
    """As written by `deliveries_to_json`. Parsed only when a state is rebuilt."""

    @property
    def step(self) -> int:
        return int(self.deliveries["step"]) if self.deliveries else 0


@dataclass(frozen=True)
class Deliveries:
    step: int
    streams: tuple[Stream, ...]
    intents: tuple[Intent, ...]
    letters: tuple[DeadLetter, ...]
    lost: bool = False
    """Whether rows were sent of which the record was lost."""


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
                "deliveries": deliveries_to_json(read_deliveries(connection)),
            }
        # Rows in the spool carry the gateway's id, so it is stored a third time. It never changes.
        gateway_file = path.with_name(GATEWAY_FILE)
        if identity and not gateway_file.exists():
            durable_files.write_atomic(gateway_file, identity.gateway_id.encode())
        _before_write()
        durable_files.write_atomic(path, json.dumps(body, indent=1).encode())
        _after_write()


def read_deliveries(connection: Connection) -> Deliveries:
    planned = [intents.load_intent(connection, key) for key in sorted(intents.streams_with_intent(connection))]
    return Deliveries(
        streams.delivery_step(connection),
        tuple(streams.list_streams(connection)),
        tuple(filter(None, planned)),
        tuple(dead_letters.list_letters(connection)),
        streams.is_history_lost(connection),
    )


def restore_deliveries(connection: Connection, held: Deliveries) -> None:
    """Replace the deliveries in a stale or new state with those in the mirror, which are newer.

    A stream or a dead letter that only the state has was renamed, delivered or dropped since.
    """
    payloads = {letter.id: dead_letters.load_payload(connection, letter.id) for letter in held.letters}
    for stream in streams.list_streams(connection):
        intents.cancel_intent(connection, stream.key)
        dead_letters.drop_stream_letters(connection, stream.key)
        streams.forget_stream(connection, stream.key)
    planned = {intent.key: intent for intent in held.intents}
    for stream in held.streams:
        streams.restore_stream(connection, stream)
        if stream.key in planned:
            intents.save_intent(connection, planned[stream.key])
    for letter in held.letters:
        dead_letters.add_letter(connection, letter, payloads[letter.id])
    if held.lost:
        streams.mark_history_lost(connection)
    streams.advance_delivery_step(connection, at_least=held.step)


def mark_watermark_unknown(connection: Connection, stream: Stream) -> None:
    """Cancel the intent of a stream whose watermark is unknown. It asks its destination, or waits for the user."""
    intents.cancel_intent(connection, stream.key)
    streams.restore_stream(connection, replace(stream, watermark=None, history=streams.HISTORY_LOST))


def mark_all_unknown(connection: Connection) -> None:
    """Mark the watermark of every stream as unknown."""
    streams.mark_history_lost(connection)
    for stream in streams.list_streams(connection):
        mark_watermark_unknown(connection, stream)
    streams.advance_delivery_step(connection)


def deliveries_to_json(held: Deliveries) -> dict[str, Any]:
    return {
        "step": held.step,
        "lost": held.lost,
        "streams": [
            {**asdict(stream.key), **{name: getattr(stream, name) for name in _STREAM_FIELDS}}
            for stream in held.streams
        ],
        "intents": [
            {
                **asdict(intent.key),
                "after": intent.after,
                "last": intent.last,
                "chunks": [[c.id, c.incarnation, c.after, c.last, c.rows, c.acked] for c in intent.chunks],
            }
            for intent in held.intents
        ],
        "dead_letters": [{**letter.as_json(), "incarnation": letter.incarnation} for letter in held.letters],
    }


def parse_deliveries(held: dict[str, Any]) -> Deliveries:
    letter_fields = ("incarnation", "after", "last", "rows", "reason", "at")
    return Deliveries(
        int(held["step"]),
        tuple(Stream(key_of(each), **{name: each[name] for name in _STREAM_FIELDS}) for each in held["streams"]),
        tuple(
            Intent(key_of(each), each["after"], each["last"], tuple(PlannedChunk(*chunk) for chunk in each["chunks"]))
            for each in held["intents"]
        ),
        tuple(
            DeadLetter(each["id"], key_of(each), **{name: each[name] for name in letter_fields})
            for each in held["dead_letters"]
        ),
        bool(held.get("lost")),
    )
