"""Finishing an intent: each chunk is acknowledged, cut in halves, or buried, in the order of the sequence.

Where a chunk may have arrived (the intent was found, or an answer was lost) the destination is asked first. The same
id may always be sent again; another one only when it is known that the first did not arrive. Else the stream is held
for its user, never guessed.

Before each try it is asked whether the rows may still leave: a folder that was closed meanwhile counts. Without them it
is the same chunk under the same id.

@ref delivery#ship
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypaware import faults, telemetry
from hypaware.export import letters, plan
from hypaware.export.clearance import Audit, Clearance
from hypaware.export.report import StreamReport
from hypaware.export.sink import Denied, Overlap, Refused, Sink, Unreachable
from hypaware.export.supply import Supply, ready
from hypaware.export.waiting import GaveUp, Patience
from hypaware.state import dead_letters, intents, mirror, streams
from hypaware.state.identity import Identity
from hypaware.state.intents import Intent, PlannedChunk
from hypaware.state.stream_key import StreamKey

if TYPE_CHECKING:
    from hypaware.export.rows import Lake
    from hypaware.home import Home
    from hypaware.state.store import Store

_before_send = faults.point("export.ship.before-send", "a chunk is planned, nothing of it has left")
_after_answer = faults.point("export.ship.after-answer", "the destination has a chunk, the state does not know")
_after_ack = faults.point("export.ack.after-commit", "a chunk is acknowledged, its intent is not finished")
_after_split = faults.point("export.split.after-commit", "a refused chunk is cut in halves, neither is sent")
_after_bury = faults.point("export.bury.after-commit", "a refused row is a dead letter")
_after_finish = faults.point("export.finish.after-commit", "all of an intent is delivered, the watermark has risen")

# A destination that refuses everything is broken, or not what it seems: it must not become a pile of dead letters.
MOST_LETTERS = 100


class Held(Exception):
    """Only the user can say how this goes on. `why` is one of the kinds of holds in `state.streams`."""

    def __init__(self, why: str, message: str) -> None:
        super().__init__(message)
        self.why = why


class _Closed(Exception):
    """Some of the rows are to stay here since they were read."""


@dataclass
class _Doubt:
    """Whether a chunk may be at the destination without our knowing."""

    uncertain: bool = False
    found: bool = False
    """Whether it was planned by somebody else, whose knowledge may be older than it seems."""


@dataclass
class Shipping:
    home: Home
    store: Store
    sink: Sink
    lake: Lake
    clearance: Clearance
    identity: Identity
    key: StreamKey
    report: StreamReport
    patience: Patience
    on_rows: Callable[[int, int], None]

    async def finish(self, intent: Intent, supply: Supply | None, acked_to: int) -> None:
        """Without a supply the intent was found: somebody may have sent some of it before."""
        doubts = self._doubts(intent) if supply is None else frozenset()
        due = deque(intent.due)
        while due:
            chunk = due.popleft()
            # What takes a chunk's place comes next: chunks travel in order.
            due.extendleft(reversed(await self._settle(chunk, supply, acked_to, uncertain=chunk.id in doubts)))
        if supply and not intent.chunks:
            self.report.count(supply.audit)
        with self.store.transaction() as connection:
            intents.finish(connection, self.key)
        _after_finish()

    def _doubts(self, intent: Intent) -> frozenset[str]:
        """Those of a found intent that may have arrived. One chunk travels at a time, in order, so those behind the
        first that is due were never sent; but a memory that was restored has forgotten what was acknowledged since."""
        due = intent.due
        restored = {each.id for each in due if each.incarnation != self.identity.incarnation}
        first = {each.id for each in due[:1] if not each.unsent}
        return frozenset(restored | first)

    async def _settle(
        self, chunk: PlannedChunk, supply: Supply | None, acked_to: int, *, uncertain: bool
    ) -> Sequence[PlannedChunk]:
        """The chunks that take its place, if it is not settled by this."""
        if uncertain:
            landed = await self.patience.until_answered(lambda: self._landed(chunk))
            if landed:
                return self._acknowledge(chunk, chunk.rows, 0, Audit())
            uncertain = landed is None
        doubt = _Doubt(uncertain, found=supply is None)
        part = supply.part(chunk) if supply and supply.holds(chunk) else await self._read(chunk)
        # Purged, or withheld: there is nothing to send, and nothing that could be missing.
        while part.seqs:
            self._about_to_send(chunk)
            try:
                sent = await self._ship(chunk, part, acked_to, doubt)
            except _Closed:
                part = await self._read(chunk)
            except Refused as reason:
                return self._refused(chunk, part, str(reason))
            except Overlap as overlap:
                return self._replan(chunk, part, overlap)
            except (GaveUp, Denied):
                self._note_unsent(chunk, doubt)
                raise
            else:
                return self._acknowledge(chunk, len(part.seqs), sent, part.audit)
        return self._acknowledge(chunk, 0, 0, part.audit)

    def _about_to_send(self, chunk: PlannedChunk) -> None:
        if chunk.unsent:
            with self.store.transaction() as connection:
                intents.about_to_send(connection, self.key, chunk)
            mirror.write(self.home.mirror, self.store)

    def _note_unsent(self, chunk: PlannedChunk, doubt: _Doubt) -> None:
        if not doubt.uncertain:
            with self.store.transaction() as connection:
                intents.note_unsent(connection, self.key, chunk)

    async def _read(self, chunk: PlannedChunk) -> Supply:
        table = await self.lake.between(self.key.dataset, self.key.source, chunk.after, chunk.last)
        return await ready(self.clearance, self.sink, self.key.dataset, table, chunk.after, chunk.last)

    async def _ship(self, chunk: PlannedChunk, part: Supply, acked_to: int, doubt: _Doubt) -> int:
        """The bytes that were taken; always under this chunk's id, however often it has to be tried."""

        async def once() -> int:
            if not await asyncio.to_thread(self.clearance.still_holds, part.table):
                raise _Closed
            try:
                with telemetry.span(
                    "sink.export_batch", component="export", operation="ship", sink=self.key.sink,
                    hyp_dataset=self.key.dataset, row_count=chunk.rows,
                ):  # fmt: skip
                    _before_send()
                    sent = await self.sink.ship(
                        plan.as_chunk(self.key, self.identity.gateway_id, chunk), part.payload, acked_to
                    )
                    _after_answer()
                    return sent
            except Refused:
                # Of a found intent every chunk is asked for, certain or not: a state may be older than it seems.
                landed = await self._landed(chunk) if doubt.uncertain or doubt.found else False
                if landed:
                    return 0
                if landed is None and doubt.uncertain:
                    raise Held(
                        streams.OUTCOME,
                        f"the destination refuses a chunk that it may have taken before, and it cannot be asked: "
                        f"`hyp export adopt {self.key.sink}` goes on without it and keeps it as a dead letter",
                    ) from None
                raise
            except Unreachable:
                doubt.uncertain = True
                telemetry.count("hyp_sink_export_failures_total", 1, status="failed", sink=self.key.sink)
                raise

        return await self.patience.until_answered(once)

    async def _landed(self, chunk: PlannedChunk) -> bool | None:
        return await self.sink.landed(plan.as_chunk(self.key, self.identity.gateway_id, chunk))

    def _acknowledge(self, chunk: PlannedChunk, rows: int, sent: int, audit: Audit) -> Sequence[PlannedChunk]:
        with self.store.transaction() as connection:
            intents.acknowledge(connection, self.key, chunk, rows)
        _after_ack()
        self.report.chunks += 1
        self.report.rows += rows
        self.report.bytes += sent
        self.report.count(audit)
        telemetry.count("hyp_sink_exports_total", 1, sink=self.key.sink)
        telemetry.count("hyp_sink_export_bytes", sent, sink=self.key.sink)
        self.on_rows(rows, sent)
        return ()

    def _refused(self, chunk: PlannedChunk, part: Supply, reason: str) -> Sequence[PlannedChunk]:
        if len(part.seqs) > 1:
            halves = plan.halved(self.key, self.identity.gateway_id, chunk, part.seqs)
            with self.store.transaction() as connection:
                intents.replace_chunk(connection, self.key, chunk, halves)
            mirror.write(self.home.mirror, self.store)
            _after_split()
            return halves
        if self.report.dead_letters >= MOST_LETTERS:
            self._note_unsent(chunk, _Doubt())
            raise GaveUp(
                "too_many_refused",
                f"the destination refused {MOST_LETTERS} rows in this round, the last time with: {reason}. "
                "The next round goes on from there",
                repair="hyp export dead-letters list",
            )
        letter = letters.of_chunk(self.key, chunk, reason)
        with self.store.transaction() as connection:
            dead_letters.bury(connection, letter, letters.packed(part.table))
            intents.drop_chunk(connection, self.key, chunk)
        mirror.write(self.home.mirror, self.store)
        _after_bury()
        self.report.dead_letters += 1
        return ()

    def _replan(self, chunk: PlannedChunk, part: Supply, overlap: Overlap) -> Sequence[PlannedChunk]:
        """The destination had some of the range before: only what it lacks is still to be sent."""
        parts = plan.lacking(self.key, self.identity.gateway_id, chunk, part.seqs, overlap.covered)
        if any(each.id == chunk.id for each in parts):
            raise GaveUp(
                "destination_contradicts",
                f"the destination says that it has a part of ({chunk.after}, {chunk.last}], and that it has none of it",
            )
        with self.store.transaction() as connection:
            intents.replace_chunk(connection, self.key, chunk, parts)
        mirror.write(self.home.mirror, self.store)
        _after_split()
        return parts
