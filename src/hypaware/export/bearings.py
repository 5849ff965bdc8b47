"""Where a stream stands before anything is sent: at the right destination, and from which sequence on.

A stream is bound to its destination. A sink that points elsewhere now, or one whose past nobody can tell, is held for
its user. A missing watermark is asked from the destination, under every incarnation that may have delivered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hypaware.export import locks, plan
from hypaware.export.shipping import Held
from hypaware.export.sink import Delivered, Destination, Sink
from hypaware.export.supply import ready
from hypaware.export.waiting import GaveUp, Patience
from hypaware.state import dead_letters, intents, mirror, streams
from hypaware.state.identity import Identity
from hypaware.state.intents import Intent, PlannedChunk
from hypaware.state.stream_key import StreamKey
from hypaware.state.streams import LOST, Stream

Declared = Mapping[tuple[str, str], str | None]
"""Where the config says that the rows of each (sink, dataset) go; None where nothing can tell."""

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from sqlalchemy import Connection

    from hypaware.export.clearance import Clearance
    from hypaware.export.rows import Lake
    from hypaware.home import Home
    from hypaware.state.store import Store


def known_stream(home: Home, store: Store, key: StreamKey, destination: Destination, declared: Declared) -> Stream:
    """The stream's state. Streams follow their destination: one of the same rows to this one, whose sink the config no
    longer has or points elsewhere, is this one under another name. It is taken over, under its lock.

    Raises GaveUp where a sink that the config still has there delivers the same rows: they would arrive twice.
    """
    with store.reading() as connection:
        known = streams.load(connection, key)
        others = [each for each in streams.all_streams(connection) if _same_rows(each, key, destination)]
    for other in others:
        if _still_there(other, declared):
            raise GaveUp(
                "destination_taken",
                f"the sink {other.key.sink} delivers these rows to {_shown(destination)} already: two sinks to one "
                "destination would deliver each row twice",
                repair="hyp config show",
            )
    if known and (not others or not _changed_names(known, destination, declared)):
        return known
    if not others:
        return _created(store, key, destination)
    # Of several that were there one after the other, the one that came furthest.
    other = max(others, key=lambda each: each.watermark or 0)
    lock = locks.try_lock(home, other.key)
    if lock is None:
        raise locks.busy(home, other.key)
    with lock, store.transaction() as connection:
        if known:
            # It belongs where this sink pointed before: whoever points there now finds it under the other's name.
            streams.exchange(connection, key, other.key)
        elif streams.load(connection, other.key):
            streams.rename(connection, other.key, key.sink)
    mirror.write(home.mirror, store)
    return known_stream(home, store, key, destination, declared)


def _changed_names(known: Stream, destination: Destination, declared: Declared) -> bool:
    """Whether another sink delivers now to where this one's stream belongs; else this one only points elsewhere."""
    if destination.is_same(Destination(known.address, known.destination_id)):
        return False
    return any(dataset == known.key.dataset and to == known.address for (_, dataset), to in declared.items())


def _still_there(other: Stream, declared: Declared) -> bool:
    where = (other.key.sink, other.key.dataset)
    return where in declared and declared[where] in (other.address, None)


def _same_rows(other: Stream, key: StreamKey, destination: Destination) -> bool:
    rows = (other.key.dataset, other.key.source) == (key.dataset, key.source)
    bound = Destination(other.address, other.destination_id)
    return rows and other.key.sink != key.sink and destination.is_same(bound)


def _created(store: Store, key: StreamKey, destination: Destination) -> Stream:
    with store.transaction() as connection:
        if found := streams.load(connection, key):
            return found
        streams.create(connection, key, destination.address)
        streams.bind(connection, key, destination.address, destination.id)
        found = streams.load(connection, key)
    assert found is not None
    return found


def remember_failure(
    store: Store, keys: Iterable[StreamKey], declared: Declared, message: str, retry_at: datetime | None, attempts: int
) -> None:
    """Of all streams of a sink that could not be reached; one that may have to take over another stays unmade."""
    with store.transaction() as connection:
        known = {stream.key: stream for stream in streams.all_streams(connection)}
        left = {(each.key.dataset, each.key.source) for each in known.values() if not _still_there(each, declared)}
        for key in keys:
            address = declared.get((key.sink, key.dataset))
            if key not in known and (key.dataset, key.source) not in left and address:
                streams.create(connection, key, address)
            streams.failed(connection, key, message, retry_at, attempts)


def check_binding(home: Home, store: Store, stream: Stream, destination: Destination) -> None:
    """Raises Held if the stream belongs to another destination."""
    bound = Destination(stream.address, stream.destination_id)
    if not destination.is_same(bound):
        raise Held(
            streams.ELSEWHERE,
            f"the sink points at {_shown(destination)} now, and this stream was delivered to {_shown(bound)}: "
            f"`hyp export adopt {stream.key.sink}` goes on from here, `hyp export resend {stream.key.sink}` sends all",
        )
    if bound != destination:
        with store.transaction() as connection:
            streams.bind(connection, stream.key, destination.address, destination.id or bound.id)
        mirror.write(home.mirror, store)


async def find_watermark(
    store: Store, lake: Lake, clearance: Clearance, sink: Sink, identity: Identity, stream: Stream, high_water: int,
    patience: Patience,
) -> int:  # fmt: skip
    """The stream's watermark where the state does not know it."""
    asked = await _asked(sink, identity, stream.key, patience)
    if asked is None:
        return _without_asking(store, lake, identity, stream, high_water)
    # Below the last fork another home, with the same past, may have delivered rows that this one never had.
    if asked.last > max(high_water, identity.epochs()[-1].after):
        raise GaveUp(
            "destination_ahead",
            f"the destination has rows up to {asked.last}, and the lake ends at {high_water}: it was rolled back or "
            "restored without its state",
            repair="hyp verify",
        )
    asked = _as_far_as(asked, high_water)
    holes = await _plan_of_holes(lake, clearance, sink, identity, stream.key, asked)
    with store.transaction() as connection:
        _drop_told_letters(connection, stream.key, asked, holes)
        if holes:
            intents.plan(connection, Intent(stream.key, 0, asked.last, tuple(holes)))
        else:
            streams.raise_watermark(connection, stream.key, asked.last)
    return asked.last


def _as_far_as(asked: Delivered, high_water: int) -> Delivered:
    holes = tuple((after, min(last, high_water)) for after, last in asked.holes if after < high_water)
    return Delivered(min(asked.last, high_water), holes)


def _drop_told_letters(
    connection: Connection, key: StreamKey, asked: Delivered, planned: Sequence[PlannedChunk]
) -> None:
    """The destination has them, or they go again. What only a letter holds any more is kept."""
    for letter in dead_letters.of_stream(connection, key):
        in_hole = any(after < letter.last and letter.after < last for after, last in asked.holes)
        goes_again = any(each.after < letter.last and letter.after < each.last for each in planned)
        if goes_again or not in_hole:
            dead_letters.drop(connection, letter.id)


async def _asked(sink: Sink, identity: Identity, key: StreamKey, patience: Patience) -> Delivered | None:
    """Under every incarnation, about the sequences that belong to it: beyond a fork another home may have delivered
    its own rows under the same name. What an earlier one lacks below what a later one has is a hole as well."""
    last, holes = 0, []
    for epoch in identity.epochs():

        async def ask(incarnation: str = epoch.incarnation) -> Delivered | None:
            return await sink.delivered(key, identity.gateway_id, incarnation)

        found = await patience.until_answered(ask)
        if found is None:
            return None
        through = found.last if epoch.through is None else min(found.last, epoch.through)
        if through <= epoch.after:
            continue
        if last < epoch.after:
            holes.append((last, epoch.after))
        holes += [(max(after, epoch.after), min(until, through)) for after, until in found.holes]
        last = through
    return Delivered(last, tuple(hole for hole in holes if hole[0] < hole[1]))


async def _plan_of_holes(
    lake: Lake, clearance: Clearance, sink: Sink, identity: Identity, key: StreamKey, asked: Delivered
) -> list[PlannedChunk]:
    """Refused once, and who knows whether anybody kept them: they are offered again. A hole may be large, where a user
    had rows taken as delivered: it is cut as anything else is."""
    found = []
    for after, last in asked.holes:
        while after < last:
            page = await lake.page(key.dataset, key.source, after, last, sink.limits.rows)
            supply = await ready(clearance, sink, key.dataset, page.table, after, page.reached)
            found += plan.cut(key, identity, after, page.reached, supply.seqs, supply.payload, sink.limits)
            after = page.reached
    return found


def _without_asking(store: Store, lake: Lake, identity: Identity, stream: Stream, high_water: int) -> int:
    fork = identity.epochs()[-1].after
    start = 0
    if stream.history == LOST:
        if lake.count(stream.key.dataset, stream.key.source, 0, fork):
            raise Held(
                streams.HISTORY,
                "nobody knows what was delivered: this home lost its memory of it, or is a copy of one that may have "
                "gone on, and the destination cannot be asked. "
                f"`hyp export adopt {stream.key.sink}` takes everything as delivered, "
                f"`hyp export resend {stream.key.sink}` sends all of it",
            )
        start = min(fork, high_water)
    with store.transaction() as connection:
        streams.raise_watermark(connection, stream.key, start)
    return start


def _shown(destination: Destination) -> str:
    return f"{destination.address} ({destination.id})" if destination.id else destination.address
