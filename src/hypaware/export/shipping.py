"""Deliver an intent: each chunk is acknowledged, split, or buried as a dead letter, in sequence order.

If a chunk may have been stored (the intent was left by another round, or a response was lost), the destination is
queried first. The same id may always be sent again; a different id only if the first chunk is known not to have
arrived. Otherwise the stream is held for the user; delivery never guesses.

Before each attempt the privacy gate is checked again, because a folder may have been excluded since. Without the
excluded rows it is still the same chunk under the same id.

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

_before_send = faults.point("export.ship.before-send", "a chunk is planned, nothing of it is sent")
_after_answer = faults.point("export.ship.after-answer", "the destination has a chunk, the state does not know")
_after_ack = faults.point("export.ack.after-commit", "a chunk is acknowledged, its intent is not finished")
_after_split = faults.point("export.split.after-commit", "a refused chunk is split, neither half is sent")
_after_bury = faults.point("export.bury.after-commit", "a refused row is a dead letter")
_after_finish = faults.point("export.finish.after-commit", "an intent is delivered, the watermark has risen")

# A destination that refuses everything is broken or not the intended one: stop before the dead letters pile up.
MOST_LETTERS = 100


class Held(Exception):
    """Only the user can decide how the stream continues. `why` is one of the kinds of holds in `state.streams`."""

    def __init__(self, why: str, message: str) -> None:
        super().__init__(message)
        self.why = why


class _Closed(Exception):
    """Some of the rows have been excluded from export since they were read."""


@dataclass
class _Doubt:
    """Whether the destination may have a chunk without our knowledge."""

    uncertain: bool = False
    inherited: bool = False
    """Whether another round planned the chunk, whose record may be older than it seems."""


@dataclass
class Shipping:
    home: Home
    store: Store
    sink: Sink
    lake: Lake
    gate: Clearance
    identity: Identity
    key: StreamKey
    report: StreamReport
    retries: Patience
    on_rows: Callable[[int, int], None]

    async def finish(self, intent: Intent, prepared: Supply | None, acked_to: int) -> None:
        """Deliver the intent. `prepared` is None if another round left the intent and may have sent parts of it."""
        uncertain = self._uncertain_chunks(intent) if prepared is None else frozenset()
        due = deque(intent.due)
        while due:
            chunk = due.popleft()
            # The replacements of a chunk come next: chunks are sent in order.
            replacements = await self._deliver_chunk(chunk, prepared, acked_to, uncertain=chunk.id in uncertain)
            due.extendleft(reversed(replacements))
        if prepared and not intent.chunks:
            self.report.add_gate_report(prepared.gate_report)
        with self.store.transaction() as connection:
            intents.finish(connection, self.key)
        _after_finish()

    def _uncertain_chunks(self, intent: Intent) -> frozenset[str]:
        """Return the ids of the chunks of an inherited intent that may have arrived.

        Chunks are sent one at a time and in order, so those after the first due chunk were never sent. A restored
        state, however, has lost the acknowledgements made since its backup.
        """
        due = intent.due
        restored = {each.id for each in due if each.incarnation != self.identity.incarnation}
        first = {each.id for each in due[:1] if not each.unsent}
        return frozenset(restored | first)

    async def _deliver_chunk(
        self, chunk: PlannedChunk, prepared: Supply | None, acked_to: int, *, uncertain: bool
    ) -> Sequence[PlannedChunk]:
        """Deliver the chunk. Returns the chunks that replace it, if it was split."""
        if uncertain:
            has_chunk = await self.retries.retry(lambda: self._has_chunk(chunk))
            if has_chunk:
                return self._acknowledge(chunk, chunk.rows, 0, Audit())
            uncertain = has_chunk is None
        doubt = _Doubt(uncertain, inherited=prepared is None)
        rows = prepared.slice(chunk) if prepared and prepared.contains(chunk) else await self._read(chunk)
        # No rows left after a purge or the privacy gate: there is nothing to send, and nothing can be missing.
        while rows.seqs:
            self._mark_sending(chunk)
            try:
                sent = await self._send(chunk, rows, acked_to, doubt)
            except _Closed:
                rows = await self._read(chunk)
            except Refused as reason:
                return self._split_or_bury(chunk, rows, str(reason))
            except Overlap as overlap:
                return self._replan(chunk, rows, overlap)
            except (GaveUp, Denied):
                self._mark_unsent(chunk, doubt)
                raise
            else:
                return self._acknowledge(chunk, len(rows.seqs), sent, rows.gate_report)
        return self._acknowledge(chunk, 0, 0, rows.gate_report)

    def _mark_sending(self, chunk: PlannedChunk) -> None:
        if chunk.unsent:
            with self.store.transaction() as connection:
                intents.about_to_send(connection, self.key, chunk)
            mirror.write(self.home.mirror, self.store)

    def _mark_unsent(self, chunk: PlannedChunk, doubt: _Doubt) -> None:
        if not doubt.uncertain:
            with self.store.transaction() as connection:
                intents.note_unsent(connection, self.key, chunk)

    async def _read(self, chunk: PlannedChunk) -> Supply:
        table = await self.lake.between(self.key.dataset, self.key.source, chunk.after, chunk.last)
        return await ready(self.gate, self.sink, self.key.dataset, table, chunk.after, chunk.last)

    async def _send(self, chunk: PlannedChunk, rows: Supply, acked_to: int, doubt: _Doubt) -> int:
        """Send the rows, with retries, always under this chunk's id. Returns the bytes accepted."""

        async def attempt() -> int:
            if not await asyncio.to_thread(self.gate.still_allowed, rows.table):
                raise _Closed
            try:
                with telemetry.span(
                    "sink.export_batch", component="export", operation="ship", sink=self.key.sink,
                    hyp_dataset=self.key.dataset, row_count=chunk.rows,
                ):  # fmt: skip
                    _before_send()
                    sent = await self.sink.ship(
                        plan.as_chunk(self.key, self.identity.gateway_id, chunk), rows.payload, acked_to
                    )
                    _after_answer()
                    return sent
            except Refused:
                # Query for every chunk of an inherited intent, certain or not: the state may be older than it seems.
                has_chunk = await self._has_chunk(chunk) if doubt.uncertain or doubt.inherited else False
                if has_chunk:
                    return 0
                if has_chunk is None and doubt.uncertain:
                    raise Held(
                        streams.OUTCOME,
                        "the destination refuses a chunk that it may already have stored, and it cannot be queried: "
                        f"`hyp export adopt {self.key.sink}` skips the chunk and keeps it as a dead letter",
                    ) from None
                raise
            except Unreachable:
                doubt.uncertain = True
                telemetry.count("hyp_sink_export_failures_total", 1, status="failed", sink=self.key.sink)
                raise

        return await self.retries.retry(attempt)

    async def _has_chunk(self, chunk: PlannedChunk) -> bool | None:
        return await self.sink.has_chunk(plan.as_chunk(self.key, self.identity.gateway_id, chunk))

    def _acknowledge(self, chunk: PlannedChunk, rows: int, sent: int, gate_report: Audit) -> Sequence[PlannedChunk]:
        with self.store.transaction() as connection:
            intents.acknowledge(connection, self.key, chunk, rows)
        _after_ack()
        self.report.chunks += 1
        self.report.rows += rows
        self.report.bytes += sent
        self.report.add_gate_report(gate_report)
        telemetry.count("hyp_sink_exports_total", 1, sink=self.key.sink)
        telemetry.count("hyp_sink_export_bytes", sent, sink=self.key.sink)
        self.on_rows(rows, sent)
        return ()

    def _split_or_bury(self, chunk: PlannedChunk, rows: Supply, reason: str) -> Sequence[PlannedChunk]:
        if len(rows.seqs) > 1:
            halves = plan.halved(self.key, self.identity.gateway_id, chunk, rows.seqs)
            with self.store.transaction() as connection:
                intents.replace_chunk(connection, self.key, chunk, halves)
            mirror.write(self.home.mirror, self.store)
            _after_split()
            return halves
        if self.report.dead_letters >= MOST_LETTERS:
            self._mark_unsent(chunk, _Doubt())
            raise GaveUp(
                "too_many_refused",
                f"the destination refused {MOST_LETTERS} rows in this round, most recently with: {reason}. "
                "The next round continues from here",
                repair="hyp export dead-letters list",
            )
        letter = letters.of_chunk(self.key, chunk, reason)
        with self.store.transaction() as connection:
            dead_letters.bury(connection, letter, letters.packed(rows.table))
            intents.drop_chunk(connection, self.key, chunk)
        mirror.write(self.home.mirror, self.store)
        _after_bury()
        self.report.dead_letters += 1
        return ()

    def _replan(self, chunk: PlannedChunk, rows: Supply, overlap: Overlap) -> Sequence[PlannedChunk]:
        """Replace a chunk that the destination has in part by the ranges that it lacks."""
        missing = plan.lacking(self.key, self.identity.gateway_id, chunk, rows.seqs, overlap.covered)
        if any(each.id == chunk.id for each in missing):
            raise GaveUp(
                "destination_contradicts",
                f"the destination reports that it has a part of ({chunk.after}, {chunk.last}] and that it has none",
            )
        with self.store.transaction() as connection:
            intents.replace_chunk(connection, self.key, chunk, missing)
        mirror.write(self.home.mirror, self.store)
        _after_split()
        return missing
