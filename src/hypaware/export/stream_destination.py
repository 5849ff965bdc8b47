"""The destination of a stream, checked in each round: which one it is, and which rows it already has.

A stream is bound to its destination. If its sink now points elsewhere, or its delivery record was lost, the stream is
held for the user. A missing watermark is read from the destination, under every incarnation that may have delivered.

`RollbackCheck` detects a home that was rolled back in place, and continues it as a new incarnation. A snapshot of a
virtual machine, `zfs rollback`, or a backup copied into the existing folder leaves path, inode and machine as they
were. The home then gives new rows the sequences of rows that it delivered before the rollback. Only a destination can
tell: under the current incarnation it has a sequence above everything that the state ever planned.

Of the rows above a stream's watermark, some existed before the snapshot and may have arrived, others are new. They are
*disputed* as far as the destination has their sequences. A destination that drops rows by their dedupe keys receives
them under the new incarnation. For any other destination the stream is held: `adopt` skips them, `resend` sends them.

A copy of the home that delivers their common backlog first looks the same to the original, and is treated the same.

The question is asked before the first new intent of each round, after the end of the round's rows was read. Rows below
that end existed before any later snapshot, so a rollback in the middle of the round does no harm.

@ref delivery#rollback
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hypaware import faults
from hypaware.export.retry import DeliveryStopped, RetryBudget, StreamHeld, limit_call
from hypaware.export.rows import PreparedRows, RowReader, RowSource, cut_chunks
from hypaware.export.sink import Destination, Sink, StreamCoverage
from hypaware.export.stream_locks import lock_stream
from hypaware.home import Home
from hypaware.home.identity import Identity, new_incarnation
from hypaware.model import datasets
from hypaware.state import dead_letters, mirror, streams
from hypaware.state.home_opener import fork_rolled_back
from hypaware.state.inherited_segments import inherited_ranges
from hypaware.state.streams import Intent, PlannedChunk, Stream, StreamKey

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from hypaware.state.store import Connection, StateStore

ConfiguredAddresses = Mapping[tuple[str, str], str | None]
"""(sink, dataset) → configured address; None if the kind of sink cannot determine it."""

_after_fork = faults.crash_point(
    "export.fork.after-commit", "a home that was rolled back is a new incarnation in the state, not in the mirror"
)
_after_mirror = faults.crash_point(
    "export.fork.after-mirror", "a home that was rolled back is a new incarnation, nothing is sent under it"
)


def resolve_stream(
    home: Home, store: StateStore, key: StreamKey, destination: Destination, addresses: ConfiguredAddresses
) -> Stream:
    """Load the stream, or create it, bound to this destination.

    A stream of the same rows to this destination whose sink was removed from the config, or points elsewhere now, is
    this stream under another name. It is renamed, under its lock. Raises StreamHeld if the stream is bound to another
    destination, and DeliveryStopped if another configured sink delivers the same rows to this one.
    """
    with store.reading() as connection:
        known = streams.load_stream(connection, key)
        others = [
            each
            for each in streams.list_streams(connection)
            if replace(each.key, sink=key.sink) == key and each.key != key and destination.is_same(bound_to(each))
        ]
    for other in others:
        if _is_configured(other, addresses):
            raise DeliveryStopped(
                "destination_taken",
                f"the sink {other.key.sink} already delivers these rows to {_describe(destination)}: two sinks with "
                "one destination would deliver each row twice",
                repair="hyp config show",
            )
    if others and (known is None or _is_swapped(known, destination, addresses)):
        _rename_to(home, store, key, known, others)
        return resolve_stream(home, store, key, destination, addresses)
    if known is None:
        with store.transaction() as connection:
            if streams.load_stream(connection, key) is None:
                streams.create_stream(connection, key, destination.address)
                streams.bind_stream(connection, key, destination.address, destination.id)
        return resolve_stream(home, store, key, destination, addresses)
    if not destination.is_same(bound := bound_to(known)):
        raise hold_elsewhere(known, destination)
    if bound != destination:
        record_destination(home, store, known, destination)
    return known


def _is_swapped(known: Stream, destination: Destination, addresses: ConfiguredAddresses) -> bool:
    """Return whether another sink now delivers to the destination that this stream is bound to."""
    return not destination.is_same(bound_to(known)) and any(
        dataset == known.key.dataset and address == known.address for (_, dataset), address in addresses.items()
    )


def _rename_to(home: Home, store: StateStore, key: StreamKey, known: Stream | None, others: Sequence[Stream]) -> None:
    # If several sinks delivered there one after the other, take the stream with the highest watermark.
    other = max(others, key=lambda each: each.watermark or 0)
    with lock_stream(home, other.key), store.transaction() as connection:
        if known:
            # Keep it under the other name: it belongs to the destination that this sink pointed at before.
            streams.swap_streams(connection, key, other.key)
        elif streams.load_stream(connection, other.key):
            streams.rename_stream(connection, other.key, key.sink)
    mirror.write_mirror(home.mirror, store)


def bound_to(stream: Stream) -> Destination:
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


def record_destination(home: Home, store: StateStore, stream: Stream, destination: Destination) -> None:
    """Record what a stream's destination now says about itself: its id, or the address that it moved to."""
    with store.transaction() as connection:
        streams.bind_stream(connection, stream.key, destination.address, destination.id or stream.destination_id)
    mirror.write_mirror(home.mirror, store)


def hold_elsewhere(stream: Stream, destination: Destination) -> StreamHeld:
    sink = stream.key.sink
    return StreamHeld(
        streams.HELD_ADDRESS_CHANGED,
        f"the sink now points at {_describe(destination)}, but this stream was delivered to "
        f"{_describe(bound_to(stream))}: "
        f"`hyp export adopt {sink}` continues from here, `hyp export resend {sink}` sends all rows",
    )


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
            async with limit_call():
                return await sink.coverage(key, identity.gateway_id, incarnation)

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
class RollbackCheck:
    home: Home
    store: StateStore
    identity: Identity
    source: RowSource
    retries: RetryBudget

    async def choose_identity(self, stream: Stream, high_water: int) -> Identity:
        """Ask the destination whether the home was rolled back. Return the identity under which rows are planned.

        Raises DeliveryStopped, after the home became a new incarnation, if it was rolled back in the meantime, and
        StreamHeld if only the user can decide.
        """
        planned = max(stream.planned_to, stream.watermark or 0)
        highest = await self._highest(stream, self.identity.incarnation, planned)
        if highest is not None and highest > planned:
            if await self._highest(stream, new_incarnation(), planned):
                raise DeliveryStopped(
                    "destination_contradicts",
                    f"the destination reports rows up to {highest} under an incarnation that never existed: it does "
                    "not keep incarnations apart",
                )
            raise self.fork(stream, highest)
        # A missing watermark is found first, under every incarnation.
        if stream.history in streams.AFTER_ROLLBACK and stream.watermark is not None:
            return await self._settle_dispute(stream, stream.watermark, high_water)
        return self.identity

    async def _settle_dispute(self, stream: Stream, watermark: int, high_water: int) -> Identity:
        """Find out which rows of the old incarnation may have arrived, after the home was rolled back."""
        key, end = stream.key, min(self.identity.incarnation_ranges()[-1].after, high_water)
        if watermark < end and self.source.lake.count(key.dataset, key.source, watermark, end):
            found = [
                await self._highest(stream, each.incarnation, watermark)
                for each in self.identity.incarnation_ranges()[:-1]
                if each.through is not None and each.through > watermark
            ]
            arrived = end if None in found else min(end, max((each for each in found if each), default=0))
            if arrived > max(watermark, min(stream.planned_to, end)):
                if stream.history == streams.RESEND_DISPUTED or self.source.sink.drops_known_rows():
                    return self.identity.without_parents()
                if stream.history == streams.ROLLED_BACK:
                    raise _hold(stream, watermark, arrived)
                with self.store.transaction() as connection:
                    streams.raise_watermark(connection, key, arrived)
        with self.store.transaction() as connection:
            streams.set_history(connection, key, streams.NO_HISTORY)
        return self.identity

    def fork(self, stream: Stream, highest: int, sent_to: int | None = None) -> DeliveryStopped:
        """Make the home a new incarnation and return the error that ends the round.

        `sent_to`: drop the rest of the pending intent; nothing of it above this sequence was sent.
        """

        def change(connection: Connection) -> None:
            if sent_to is not None:
                streams.abandon_intent(connection, stream.key, sent_to)

        fork_rolled_back(self.home, self.store, self.identity, change)
        _after_fork()
        mirror.write_mirror(self.home.mirror, self.store)
        _after_mirror()
        planned = max(stream.planned_to, stream.watermark or 0) if sent_to is None else sent_to
        return DeliveryStopped(
            "home_rolled_back",
            f"the destination has rows up to {highest}, but this home has sent none above {planned}: it was rolled "
            "back to an earlier state, or a copy of it delivered first. It continues as a new incarnation",
            repair="hyp export",
        )

    def require_keys(self, stream: Stream, rows: PreparedRows) -> None:
        """Raise StreamHeld if disputed rows have no dedupe key: the destination would store them again."""
        if stream.history != streams.ROLLED_BACK:
            return
        fork = self.identity.incarnation_ranges()[-1].after
        keys = rows.row_keys(datasets.get(stream.key.dataset))
        if any(key is None and seq <= fork for seq, key in zip(rows.seqs, keys, strict=True)):
            raise _hold(stream, stream.watermark or 0, fork)

    def find_inherited(self, stream: Stream, high_water: int) -> list[tuple[int, int]]:
        """Return the ranges of undelivered rows that the home had in its spool when it was copied."""
        if stream.history == streams.RESEND_INHERITED:
            return []
        key, after = stream.key, stream.watermark or 0
        with self.store.reading() as connection:
            ranges = inherited_ranges(connection, key.dataset, after)
        count = self.source.lake.count
        return [
            (start, last)
            for start, last in ranges
            if start < high_water and count(key.dataset, key.source, max(start, after), min(last, high_water))
        ]

    async def _highest(self, stream: Stream, incarnation: str, above: int) -> int | None:
        async def query() -> int | None:
            async with limit_call():
                return await self.source.sink.highest(stream.key, self.identity.gateway_id, incarnation, above)

        return await self.retries.retry(query)


def hold_inherited(stream: StreamKey, rows: int) -> StreamHeld:
    return StreamHeld(
        streams.HELD_COPIED,
        f"this home is a copy, and {rows} rows were in its spool when it was copied: the original delivers them too, "
        f"and the destination cannot drop rows that it has. `hyp export adopt {stream.sink}` skips them, "
        f"`hyp export resend {stream.sink}` sends them",
    )


def _hold(stream: Stream, watermark: int, arrived: int) -> StreamHeld:
    sink = stream.key.sink
    return StreamHeld(
        streams.HELD_ROLLED_BACK,
        "this home was rolled back to an earlier state, or a copy of it delivered first. Of its rows from "
        f"{watermark + 1} to {arrived} it is unknown which ones have arrived, and the destination cannot drop rows "
        "that it has. "
        f"`hyp export adopt {sink}` skips these rows, `hyp export resend {sink}` sends them, some perhaps again",
    )
