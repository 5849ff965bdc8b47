"""Deliveries in the mirror: every stream with its watermark, its intent and its dead letters.

`step` increases with every intent. The mirror is written after an intent and before its first byte is sent. So a state
with a lower `step` was restored from an older copy, and a lost state can be restored with the watermark of each stream.
Chunks that were acknowledged since then are sent again under the same ids, or the destination is asked for them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import Connection

from hypaware.state import dead_letters, intents, streams
from hypaware.state.dead_letters import DeadLetter
from hypaware.state.intents import Intent, PlannedChunk
from hypaware.state.stream_key import StreamKey
from hypaware.state.streams import Stream

_KEPT = ("address", "destination_id", "watermark", "history", "exported_rows", "held")


@dataclass(frozen=True)
class Deliveries:
    step: int
    streams: tuple[Stream, ...]
    intents: tuple[Intent, ...]
    letters: tuple[DeadLetter, ...]
    lost: bool = False
    """Whether rows were sent of which the record was lost."""


def of_state(connection: Connection) -> Deliveries:
    all_streams = streams.all_streams(connection)
    planned = [intents.pending(connection, key) for key in sorted(intents.with_pending(connection))]
    letters = dead_letters.all_letters(connection)
    step, lost = streams.step(connection), streams.is_memory_lost(connection)
    return Deliveries(step, tuple(all_streams), tuple(filter(None, planned)), tuple(letters), lost)


def restore(connection: Connection, held: Deliveries) -> None:
    """Replace the deliveries in a stale or new state with those in the mirror, which are newer.

    A stream or a dead letter that only the state has was renamed, delivered or dropped since.
    """
    payloads = {letter.id: dead_letters.payload(connection, letter.id) for letter in held.letters}
    for stream in streams.all_streams(connection):
        intents.cancel(connection, stream.key)
        dead_letters.drop_of(connection, stream.key)
        streams.forget(connection, stream.key)
    planned = {intent.key: intent for intent in held.intents}
    for stream in held.streams:
        streams.restore(connection, stream)
        if stream.key in planned:
            intents.plan(connection, planned[stream.key])
    for letter in held.letters:
        dead_letters.bury(connection, letter, payloads[letter.id])
    if held.lost:
        streams.lost_memory(connection)
    streams.stepped(connection, at_least=held.step)


def distrust(connection: Connection) -> None:
    """Mark the watermark of every stream as unknown: each asks its destination, or waits for the user."""
    streams.lost_memory(connection)
    for stream in streams.all_streams(connection):
        intents.cancel(connection, stream.key)
        streams.restore(connection, replace(stream, watermark=None, history=streams.LOST))
    streams.stepped(connection)


def as_json(held: Deliveries) -> dict[str, Any]:
    return {
        "step": held.step,
        "lost": held.lost,
        "streams": [
            {**asdict(stream.key), **{name: getattr(stream, name) for name in _KEPT}} for stream in held.streams
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


def from_json(held: dict[str, Any]) -> Deliveries:
    return Deliveries(
        int(held["step"]),
        tuple(Stream(_key(each), **{name: each[name] for name in _KEPT}) for each in held["streams"]),
        tuple(
            Intent(_key(each), each["after"], each["last"], tuple(PlannedChunk(*chunk) for chunk in each["chunks"]))
            for each in held["intents"]
        ),
        tuple(
            DeadLetter(
                each["id"],
                _key(each),
                each["incarnation"],
                each["after"],
                each["last"],
                each["rows"],
                each["reason"],
                each["at"],
            )
            for each in held["dead_letters"]
        ),
        bool(held.get("lost")),
    )


def _key(held: dict[str, Any]) -> StreamKey:
    return StreamKey(held["sink"], held["dataset"], held["source"])
