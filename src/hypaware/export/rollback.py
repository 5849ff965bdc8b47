"""Detect a home that was rolled back in place, and continue it as a new incarnation.

A snapshot of a virtual machine, `zfs rollback`, or a backup copied into the existing folder leaves path, inode and
machine as they were. The home then gives new rows the sequences of rows that it delivered before the rollback. Only a
destination can tell: under the current incarnation it has a sequence above everything that the state ever planned.

Of the rows above a stream's watermark, some existed before the snapshot and may have arrived, others are new. They are
*disputed* as far as the destination has their sequences. A destination that drops rows by their dedupe keys receives
them under the new incarnation. For any other destination the stream is held: `adopt` skips them, `resend` sends them.

A copy of the home that delivers their common backlog first looks the same to the original, and is treated the same.

The question is asked before the first new intent of each round, after the end of the round's rows was read. Rows below
that end existed before any later snapshot, so a rollback in the middle of the round does no harm.

@ref delivery#rollback
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from hypaware import faults
from hypaware.export.retry import DeliveryStopped, RetryBudget, StreamHeld, call_sink
from hypaware.export.rows import PreparedRows, RowSource
from hypaware.home import Home
from hypaware.home.identity import Identity, new_incarnation
from hypaware.model import datasets
from hypaware.state import mirror, streams
from hypaware.state.home_opener import fork_rolled_back
from hypaware.state.inherited_segments import inherited_ranges
from hypaware.state.streams import Stream, StreamKey

if TYPE_CHECKING:
    from hypaware.state.store import Connection, StateStore


_after_fork = faults.crash_point(
    "export.fork.after-commit", "a home that was rolled back is a new incarnation in the state, not in the mirror"
)
_after_mirror = faults.crash_point(
    "export.fork.after-mirror", "a home that was rolled back is a new incarnation, nothing is sent under it"
)


@dataclass(frozen=True)
class RollbackCheck:
    home: Home
    store: StateStore
    identity: Identity
    source: RowSource
    retries: RetryBudget

    async def require_known_history(self, stream: Stream) -> None:
        """Raise DeliveryStopped, after the home became a new incarnation, if it was rolled back."""
        planned = max(stream.planned_to, stream.watermark or 0)
        highest = await self._highest(stream, self.identity.incarnation, planned)
        if highest is None or highest <= planned:
            return
        if await self._highest(stream, new_incarnation(), planned):
            raise DeliveryStopped(
                "destination_contradicts",
                f"the destination reports rows up to {highest} under an incarnation that never existed: it does not "
                "keep incarnations apart",
            )
        raise self.fork(stream, highest)

    def fork(self, stream: Stream, highest: int, sent_to: int | None = None) -> DeliveryStopped:
        """Make the home a new incarnation and return the error that ends the round.

        `sent_to`: drop the rest of the pending intent, of which nothing above this sequence was sent.
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

    async def choose_identity(self, stream: Stream, high_water: int) -> Identity:
        """Return the identity under which the next rows are planned. Raises StreamHeld if only the user can decide."""
        watermark, fork = stream.watermark or 0, self.identity.incarnation_ranges()[-1].after
        end = min(fork, high_water)
        if stream.history not in streams.AFTER_ROLLBACK:
            return self.identity
        key = stream.key
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
        ask = partial(self.source.sink.highest, stream.key, self.identity.gateway_id, incarnation, above)
        return await self.retries.retry(lambda: call_sink(ask()))


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
