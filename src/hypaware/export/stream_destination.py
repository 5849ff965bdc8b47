"""The destination and the watermark of a stream: resolve them before a round, change them with `adopt` and `resend`.

A stream is bound to its destination. If its sink now points elsewhere, or its delivery record was lost, the stream is
held for the user. A missing watermark is read from the destination, under every incarnation that may have delivered.
`adopt` and `resend` change every known stream of a sink, under their locks and in one transaction, and then write the
mirror.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hypaware.config import Config
from hypaware.errors import HypError, Retryable
from hypaware.export import sink_registry
from hypaware.export.dead_letter_rows import make_letter
from hypaware.export.retry import DeliveryStopped, RetryBudget, StreamHeld, call_sink
from hypaware.export.rows import RowReader, RowSource, cut_chunks
from hypaware.export.sink import Destination, Sink, StreamCoverage
from hypaware.export.status import find_address
from hypaware.export.stream_locks import lock_stream, lock_streams
from hypaware.home import Home
from hypaware.home.identity import Identity
from hypaware.model import datasets
from hypaware.state import dead_letters, flushes, mirror, streams
from hypaware.state.inherited_segments import inherited_ranges
from hypaware.state.store import Connection, load_identity
from hypaware.state.streams import Intent, PlannedChunk, Stream, StreamKey

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from hypaware.state.store import StateStore

ConfiguredAddresses = Mapping[tuple[str, str], str | None]
"""(sink, dataset) → configured address; None if the kind of sink cannot determine it."""
StreamChange = Callable[[Connection, Stream], int]
"""Changes a stream before it is bound to its new address. Returns the number of dead letters dropped."""


def resolve_stream(
    home: Home, store: StateStore, key: StreamKey, destination: Destination, addresses: ConfiguredAddresses
) -> Stream:
    """Load the stream, or create it.

    A stream of the same rows to this destination whose sink was removed from the config, or points elsewhere now, is
    this stream under another name. It is renamed, under its lock. Raises DeliveryStopped if another configured sink
    delivers the same rows to this destination.
    """
    with store.reading() as connection:
        known = streams.load_stream(connection, key)
        others = [
            each
            for each in streams.list_streams(connection)
            if replace(each.key, sink=key.sink) == key and each.key != key and destination.is_same(_bound_to(each))
        ]
    for other in others:
        if _is_configured(other, addresses):
            raise DeliveryStopped(
                "destination_taken",
                f"the sink {other.key.sink} already delivers these rows to {_describe(destination)}: two sinks with "
                "one destination would deliver each row twice",
                repair="hyp config show",
            )
    if known:
        # Whether another sink now delivers to the destination that this stream is bound to.
        swapped = not destination.is_same(_bound_to(known)) and any(
            dataset == key.dataset and address == known.address for (_, dataset), address in addresses.items()
        )
        if not others or not swapped:
            return known
    if not others:
        with store.transaction() as connection:
            if found := streams.load_stream(connection, key):
                return found
            streams.create_stream(connection, key, destination.address)
            streams.bind_stream(connection, key, destination.address, destination.id)
            found = streams.load_stream(connection, key)
        assert found is not None
        return found
    # If several sinks delivered there one after the other, take the stream with the highest watermark.
    other = max(others, key=lambda each: each.watermark or 0)
    with lock_stream(home, other.key), store.transaction() as connection:
        if known:
            # Keep it under the other name: it belongs to the destination that this sink pointed at before.
            streams.swap_streams(connection, key, other.key)
        elif streams.load_stream(connection, other.key):
            streams.rename_stream(connection, other.key, key.sink)
    mirror.write_mirror(home.mirror, store)
    return resolve_stream(home, store, key, destination, addresses)


def _bound_to(stream: Stream) -> Destination:
    return Destination(stream.address, stream.destination_id)


def _is_configured(other: Stream, addresses: ConfiguredAddresses) -> bool:
    where = (other.key.sink, other.key.dataset)
    return where in addresses and addresses[where] in (other.address, None)


def record_failure(
    store: StateStore, keys: Iterable[StreamKey], addresses: ConfiguredAddresses, message: str,
    retry_at: datetime | None, attempts: int,
) -> None:  # fmt: skip
    """Record that the destination of these streams could not be reached.

    Does not create a stream that may turn out to be the continuation of another one.
    """
    with store.transaction() as connection:
        known = {stream.key: stream for stream in streams.list_streams(connection)}
        orphaned = {
            (each.key.dataset, each.key.source) for each in known.values() if not _is_configured(each, addresses)
        }
        for key in keys:
            address = addresses.get((key.sink, key.dataset))
            if key not in known and (key.dataset, key.source) not in orphaned and address:
                streams.create_stream(connection, key, address)
            streams.record_failure(connection, key, message, retry_at, attempts)


def check_binding(home: Home, store: StateStore, stream: Stream, destination: Destination) -> None:
    """Raise StreamHeld if the stream is bound to another destination."""
    bound = _bound_to(stream)
    if not destination.is_same(bound):
        sink = stream.key.sink
        raise StreamHeld(
            streams.HELD_ADDRESS_CHANGED,
            f"the sink now points at {_describe(destination)}, but this stream was delivered to {_describe(bound)}: "
            f"`hyp export adopt {sink}` continues from here, `hyp export resend {sink}` sends all rows",
        )
    if bound != destination:
        with store.transaction() as connection:
            streams.bind_stream(connection, stream.key, destination.address, destination.id or bound.id)
        mirror.write_mirror(home.mirror, store)


def _describe(destination: Destination) -> str:
    return f"{destination.address} ({destination.id})" if destination.id else destination.address


async def find_watermark(
    store: StateStore, source: RowSource, identity: Identity, stream: Stream, high_water: int, retries: RetryBudget
) -> int:
    """Return the watermark of a stream whose state does not know it, and record it."""
    covered = await _query_coverage(source.sink, identity, stream.key, retries)
    if covered is None:
        return _assume_watermark(store, source.lake, identity, stream, high_water)
    # Below the last fork, another home with the same past may have delivered rows that this one never had.
    if covered.last > max(high_water, identity.incarnation_ranges()[-1].after):
        raise DeliveryStopped(
            "destination_ahead",
            f"the destination has rows up to {covered.last}, but the lake ends at {high_water}: it was rolled back or "
            "restored without its state",
            repair="hyp verify",
        )
    holes = tuple((after, min(last, high_water)) for after, last in covered.holes if after < high_water)
    last, limits = min(covered.last, high_water), source.sink.limits
    # Send the holes again: whether they were refused or kept elsewhere is unknown. A hole can be large, if a user
    # adopted the stream at some point.
    chunks: list[PlannedChunk] = []
    for after, until in holes:
        while after < until:
            rows = await asyncio.to_thread(source.prepare, after, until, limits.rows)
            keys = rows.row_keys(datasets.get(stream.key.dataset))
            chunks += cut_chunks(stream.key, identity, after, rows.reached, rows.seqs, rows.payload, limits, keys)
            after = rows.reached
    with store.transaction() as connection:
        # Drop the dead letters that the destination has or that are sent again. Keep those that exist nowhere else.
        for letter in dead_letters.list_stream_letters(connection, stream.key):
            in_hole = any(after < letter.last and letter.after < until for after, until in holes)
            is_planned = any(each.after < letter.last and letter.after < each.last for each in chunks)
            if is_planned or not in_hole:
                dead_letters.drop_letter(connection, letter.id)
        if chunks:
            streams.save_intent(connection, Intent(stream.key, 0, last, tuple(chunks)))
        else:
            streams.raise_watermark(connection, stream.key, last)
    return last


async def _query_coverage(
    sink: Sink, identity: Identity, key: StreamKey, retries: RetryBudget
) -> StreamCoverage | None:
    """Query the destination under every incarnation, for the sequences that belong to it.

    Rows that an earlier incarnation lacks below those of a later one are a hole as well, unless the later one delivered
    them after a rollback.
    """
    ranges: list[tuple[int, int]] = []
    for epoch in identity.incarnation_ranges():

        async def query(incarnation: str = epoch.incarnation) -> StreamCoverage | None:
            return await call_sink(sink.coverage(key, identity.gateway_id, incarnation))

        found = await retries.retry(query)
        if found is None:
            return None
        through = found.last if epoch.through is None else min(found.last, epoch.through)
        starts, ends = [0, *(until for _, until in found.holes)], [*(after for after, _ in found.holes), through]
        ranges += [(start, min(end, through)) for start, end in zip(starts, ends, strict=True)]
    return StreamCoverage.from_ranges(each for each in ranges if each[0] < each[1])


def _assume_watermark(store: StateStore, lake: RowReader, identity: Identity, stream: Stream, high_water: int) -> int:
    fork = identity.incarnation_ranges()[-1].after
    start = 0
    if stream.history == streams.HISTORY_LOST:
        if lake.count(stream.key.dataset, stream.key.source, 0, fork):
            sink = stream.key.sink
            raise StreamHeld(
                streams.HELD_HISTORY_LOST,
                "it is unknown which rows were delivered: this home lost its delivery record, or is a copy of a home "
                "that may have delivered more, and the destination cannot be queried. "
                f"`hyp export adopt {sink}` treats all rows as delivered, `hyp export resend {sink}` sends all rows",
            )
        start = min(fork, high_water)
    with store.transaction() as connection:
        streams.raise_watermark(connection, stream.key, start)
    return start


@dataclass(frozen=True)
class BindingChange:
    key: StreamKey
    previous_address: str
    address: str
    watermark: int | None
    """None: the destination is queried, and rows that it lacks are sent."""
    previous_hold: str | None
    letters_dropped: int

    def as_json(self) -> dict[str, object]:
        return {
            "dataset": self.key.dataset,
            "source": self.key.source,
            "was": self.previous_address,
            "address": self.address,
            "watermark": self.watermark,
            "was_held": self.previous_hold,
            "letters_dropped": self.letters_dropped,
        }


def adopt(home: Home, config: Config, store: StateStore, sink: str) -> list[BindingChange]:
    """Continue the streams at the address that the config has now.

    If a removed sink delivered to that address before, its watermarks apply. If the delivery record was lost, every row
    that existed at that moment is treated as delivered; after a rollback, every row that may have arrived. A chunk that
    may have arrived and is refused now becomes a dead letter: it is neither lost nor sent under other ids.
    """

    def change(connection: Connection, stream: Stream) -> int:
        if stream.held == streams.HELD_OUTCOME_UNKNOWN:
            intent = streams.load_intent(connection, stream.key)
            if intent and intent.due:
                reason = f"it may have arrived before it was refused: {stream.last_error}"
                dead_letters.add_letter(connection, make_letter(stream.key, intent.due[0], reason), None)
                streams.finish_unsent_chunk(connection, stream.key, intent.due[0])
        if stream.held == streams.HELD_ROLLED_BACK:
            streams.set_history(connection, stream.key, streams.SKIP_DISPUTED)
        if stream.held == streams.HELD_COPIED:
            for _, last in inherited_ranges(connection, stream.key.dataset, stream.watermark or 0)[:1]:
                streams.raise_watermark(connection, stream.key, last)
        # Only if it is held for this: a destination that can be queried reports what it has.
        if stream.watermark is None and stream.held == streams.HELD_HISTORY_LOST:
            high_water = flushes.load_high_water(connection, stream.key.dataset).get(stream.key.dataset, {})
            identity = load_identity(connection)
            assert identity is not None
            # Rows after the last fork are known not to have been sent.
            skipped_to = min(high_water.get(stream.key.source, 0), identity.incarnation_ranges()[-1].after)
            streams.raise_watermark(connection, stream.key, skipped_to)
        return 0

    return _rebind_streams(home, config, store, sink, change, recall=True)


def resend(home: Home, config: Config, store: StateStore, sink: str) -> list[BindingChange]:
    """Restart the streams at the address that the config has now. Pending intents and dead letters are dropped.

    A stream that is held because the home was rolled back or copied continues instead, with all rows above its
    watermark.
    """

    def change(connection: Connection, stream: Stream) -> int:
        if stream.held == streams.HELD_ROLLED_BACK:
            streams.set_history(connection, stream.key, streams.RESEND_DISPUTED)
            return 0
        if stream.held == streams.HELD_COPIED:
            streams.set_history(connection, stream.key, streams.RESEND_INHERITED)
            return 0
        letters = dead_letters.list_stream_letters(connection, stream.key)
        streams.cancel_intent(connection, stream.key)
        dead_letters.drop_stream_letters(connection, stream.key)
        streams.reset_watermark(connection, stream.key)
        return len(letters)

    return _rebind_streams(home, config, store, sink, change)


def _rebind_streams(
    home: Home, config: Config, store: StateStore, sink: str, change: StreamChange, *, recall: bool = False
) -> list[BindingChange]:
    sink_registry.select_sinks(config, [sink])
    with store.reading() as connection:
        identity = load_identity(connection)
    assert identity is not None, "an opened home has an identity"
    address = sink_registry.sink_address(home, config, identity, sink)
    for name, other in config.sinks.items():
        shares_rows = name != sink and set(other.datasets) & set(config.sinks[sink].datasets)
        if shares_rows and find_address(home, config, identity, name)[0] == address:
            raise HypError(
                f"the sink {name} also delivers to {address}: two sinks with one destination would deliver each row "
                "twice. Nothing was changed",
                kind="destination_taken",
                repair="hyp config show",
            )
    with store.reading() as connection:
        known = streams.list_streams(connection)
    keys = {stream.key for stream in known if stream.key.sink == sink}
    # Each stream that is bound elsewhere → the stream of the same rows that was delivered to the address.
    remembered: dict[StreamKey, StreamKey] = {}
    for key in keys if recall else ():
        there = [each for each in known if replace(each.key, sink=sink) == key and each.address == address]
        if there and all(stream.key != key for stream in there):
            remembered[key] = max(there, key=lambda stream: stream.watermark or 0).key
    changes: list[BindingChange] = []
    with lock_streams(home, keys | set(remembered.values())):
        with store.transaction() as connection:
            for key, previous in remembered.items():
                streams.swap_streams(connection, key, previous)
            for key in sorted(keys):
                before = streams.load_stream(connection, key)
                if before is None:
                    raise Retryable(f"{key} was renamed at the same time; nothing was changed", kind="stream_renamed")
                dropped = change(connection, before)
                streams.bind_stream(connection, key, address, None)
                streams.release_stream(connection, key)
                after = streams.load_stream(connection, key)
                assert after is not None
                changes.append(BindingChange(key, before.address, address, after.watermark, before.held, dropped))
        if changes:
            mirror.write_mirror(home.mirror, store)
    return changes
