"""Find the stored stream, its destination and its watermark before anything is sent.

A stream is bound to its destination. If its sink now points elsewhere, or its delivery record was lost, the stream is
held for the user. A missing watermark is read from the destination, under every incarnation that may have delivered.
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
"""(sink, dataset) → configured address; None if the kind of sink cannot determine it."""

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from sqlalchemy import Connection

    from hypaware.export.clearance import Clearance
    from hypaware.export.rows import Lake
    from hypaware.home import Home
    from hypaware.state.store import Store


def known_stream(home: Home, store: Store, key: StreamKey, destination: Destination, addresses: Declared) -> Stream:
    """Load the stream, or create it.

    Streams follow their destination: a stream of the same rows to this destination whose sink was removed from the
    config, or points elsewhere now, is this stream under another name. It is renamed, under its lock.

    Raises GaveUp if another configured sink delivers the same rows to this destination: they would arrive twice.
    """
    with store.reading() as connection:
        known = streams.load(connection, key)
        others = [each for each in streams.all_streams(connection) if _same_rows(each, key, destination)]
    for other in others:
        if _still_there(other, addresses):
            raise GaveUp(
                "destination_taken",
                f"the sink {other.key.sink} already delivers these rows to {_shown(destination)}: two sinks with one "
                "destination would deliver each row twice",
                repair="hyp config show",
            )
    if known and (not others or not _changed_names(known, destination, addresses)):
        return known
    if not others:
        return _created(store, key, destination)
    # If several sinks delivered there one after the other, take the stream with the highest watermark.
    other = max(others, key=lambda each: each.watermark or 0)
    lock = locks.try_lock(home, other.key)
    if lock is None:
        raise locks.busy(home, other.key)
    with lock, store.transaction() as connection:
        if known:
            # Keep it under the other name: it belongs to the destination that this sink pointed at before.
            streams.exchange(connection, key, other.key)
        elif streams.load(connection, other.key):
            streams.rename(connection, other.key, key.sink)
    mirror.write(home.mirror, store)
    return known_stream(home, store, key, destination, addresses)


def _changed_names(known: Stream, destination: Destination, addresses: Declared) -> bool:
    """Return whether another sink now delivers to the destination that this stream is bound to."""
    if destination.is_same(Destination(known.address, known.destination_id)):
        return False
    return any(dataset == known.key.dataset and to == known.address for (_, dataset), to in addresses.items())


def _still_there(other: Stream, addresses: Declared) -> bool:
    where = (other.key.sink, other.key.dataset)
    return where in addresses and addresses[where] in (other.address, None)


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
    store: Store, keys: Iterable[StreamKey], addresses: Declared, message: str, retry_at: datetime | None, attempts: int
) -> None:
    """Record that the destination of these streams could not be reached.

    Does not create a stream that may turn out to be the continuation of another one.
    """
    with store.transaction() as connection:
        known = {stream.key: stream for stream in streams.all_streams(connection)}
        orphaned = {(each.key.dataset, each.key.source) for each in known.values() if not _still_there(each, addresses)}
        for key in keys:
            address = addresses.get((key.sink, key.dataset))
            if key not in known and (key.dataset, key.source) not in orphaned and address:
                streams.create(connection, key, address)
            streams.failed(connection, key, message, retry_at, attempts)


def check_binding(home: Home, store: Store, stream: Stream, destination: Destination) -> None:
    """Raise Held if the stream is bound to another destination."""
    bound = Destination(stream.address, stream.destination_id)
    if not destination.is_same(bound):
        sink = stream.key.sink
        raise Held(
            streams.ELSEWHERE,
            f"the sink now points at {_shown(destination)}, but this stream was delivered to {_shown(bound)}: "
            f"`hyp export adopt {sink}` continues from here, `hyp export resend {sink}` sends all rows",
        )
    if bound != destination:
        with store.transaction() as connection:
            streams.bind(connection, stream.key, destination.address, destination.id or bound.id)
        mirror.write(home.mirror, store)


async def find_watermark(
    store: Store, lake: Lake, gate: Clearance, sink: Sink, identity: Identity, stream: Stream, high_water: int,
    retries: Patience,
) -> int:  # fmt: skip
    """Return the watermark of a stream whose state does not know it, and record it."""
    covered = await _asked(sink, identity, stream.key, retries)
    if covered is None:
        return _without_asking(store, lake, identity, stream, high_water)
    # Below the last fork, another home with the same past may have delivered rows that this one never had.
    if covered.last > max(high_water, identity.incarnation_ranges()[-1].after):
        raise GaveUp(
            "destination_ahead",
            f"the destination has rows up to {covered.last}, but the lake ends at {high_water}: it was rolled back or "
            "restored without its state",
            repair="hyp verify",
        )
    covered = _as_far_as(covered, high_water)
    chunks = await _plan_of_holes(lake, gate, sink, identity, stream.key, covered)
    with store.transaction() as connection:
        _drop_told_letters(connection, stream.key, covered, chunks)
        if chunks:
            intents.plan(connection, Intent(stream.key, 0, covered.last, tuple(chunks)))
        else:
            streams.raise_watermark(connection, stream.key, covered.last)
    return covered.last


def _as_far_as(covered: Delivered, high_water: int) -> Delivered:
    holes = tuple((after, min(last, high_water)) for after, last in covered.holes if after < high_water)
    return Delivered(min(covered.last, high_water), holes)


def _drop_told_letters(
    connection: Connection, key: StreamKey, covered: Delivered, planned: Sequence[PlannedChunk]
) -> None:
    """Drop the dead letters that the destination has or that are sent again. Keep those that exist nowhere else."""
    for letter in dead_letters.of_stream(connection, key):
        in_hole = any(after < letter.last and letter.after < last for after, last in covered.holes)
        is_planned = any(each.after < letter.last and letter.after < each.last for each in planned)
        if is_planned or not in_hole:
            dead_letters.drop(connection, letter.id)


async def _asked(sink: Sink, identity: Identity, key: StreamKey, retries: Patience) -> Delivered | None:
    """Query the destination under every incarnation, for the sequences that belong to it.

    Above a fork, another home may have delivered its own rows under the same incarnation. Rows that an earlier
    incarnation lacks below those of a later one are a hole as well.
    """
    last, holes = 0, []
    for epoch in identity.incarnation_ranges():

        async def query(incarnation: str = epoch.incarnation) -> Delivered | None:
            return await sink.coverage(key, identity.gateway_id, incarnation)

        found = await retries.retry(query)
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
    lake: Lake, gate: Clearance, sink: Sink, identity: Identity, key: StreamKey, covered: Delivered
) -> list[PlannedChunk]:
    """Cut the holes into chunks, to send them again: whether they were refused or kept elsewhere is unknown.

    A hole can be large, if a user adopted the stream at some point.
    """
    chunks = []
    for after, last in covered.holes:
        while after < last:
            page = await lake.page(key.dataset, key.source, after, last, sink.limits.rows)
            prepared = await ready(gate, sink, key.dataset, page.table, after, page.reached)
            chunks += plan.cut(key, identity, after, page.reached, prepared.seqs, prepared.payload, sink.limits)
            after = page.reached
    return chunks


def _without_asking(store: Store, lake: Lake, identity: Identity, stream: Stream, high_water: int) -> int:
    fork = identity.incarnation_ranges()[-1].after
    start = 0
    if stream.history == LOST:
        if lake.count(stream.key.dataset, stream.key.source, 0, fork):
            sink = stream.key.sink
            raise Held(
                streams.HISTORY,
                "it is unknown which rows were delivered: this home lost its delivery record, or is a copy of a home "
                "that may have delivered more, and the destination cannot be queried. "
                f"`hyp export adopt {sink}` treats all rows as delivered, `hyp export resend {sink}` sends all rows",
            )
        start = min(fork, high_water)
    with store.transaction() as connection:
        streams.raise_watermark(connection, stream.key, start)
    return start


def _shown(destination: Destination) -> str:
    return f"{destination.address} ({destination.id})" if destination.id else destination.address
