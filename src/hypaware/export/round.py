"""One round of one stream, under its lock: finish the pending intent, then plan and deliver until nothing is new.

Each chunk of an intent is acknowledged, split, or buried as a dead letter, in sequence order. If a chunk may have been
stored, the destination is queried first. The same id may always be sent again; a different id only if the first chunk
is known not to have arrived. Otherwise the stream is held for the user; delivery never guesses.

@ref delivery#stream
@ref delivery#ship
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from hypaware import faults, telemetry
from hypaware.errors import Cancelled, HypError
from hypaware.export import dead_letter_rows, stream_destination, stream_locks
from hypaware.export.retry import DeliveryStopped, RetryBudget, StreamHeld, describe_error, limit_call, retry_time
from hypaware.export.rows import GateReport, PreparedRows, RowSource, cut_chunks, halve_chunk, missing_chunks, to_chunk
from hypaware.export.sink import ChunkRefused, DestinationDenied, DestinationUnreachable, RangeOverlap
from hypaware.export.status import StreamReport
from hypaware.export.stream_destination import RollbackCheck, hold_inherited
from hypaware.home.identity import Identity
from hypaware.model import datasets
from hypaware.state import dead_letters, flushes, mirror, streams
from hypaware.state.store import load_identity
from hypaware.state.streams import Intent, PlannedChunk, Stream, StreamKey

if TYPE_CHECKING:
    from hypaware.export.rows import PrivacyGate, RowReader
    from hypaware.export.sink import Destination, Payload, Sink
    from hypaware.home import Home
    from hypaware.state.store import Connection, StateStore

T = TypeVar("T")
_PAGE_ROWS = 50_000
# A destination that refuses everything is broken or not the intended one: stop before the dead letters pile up.
MAX_LETTERS_PER_ROUND = 100

_before_plan = faults.crash_point("export.plan.before-commit", "chunks are cut, no intent is recorded")
_after_plan = faults.crash_point("export.plan.after-commit", "an intent is recorded in the state, not in the mirror")
_after_mirror = faults.crash_point("export.plan.after-mirror", "state and mirror hold the intent, nothing is sent")
_before_send = faults.crash_point("export.ship.before-send", "a chunk is planned, nothing of it is sent")
_after_answer = faults.crash_point("export.ship.after-answer", "the destination has a chunk, the state does not know")
_after_ack = faults.crash_point("export.ack.after-commit", "a chunk is acknowledged, its intent is not finished")
_after_split = faults.crash_point("export.split.after-commit", "a refused chunk is split, neither half is sent")
_after_bury = faults.crash_point("export.bury.after-commit", "a refused row is a dead letter")
_after_finish = faults.crash_point("export.finish.after-commit", "an intent is delivered, the watermark has risen")


class _RowsExcluded(Exception):
    """Some of the rows have been excluded from export since they were read."""


@dataclass(frozen=True)
class _Arrived:
    """The destination has a chunk: its rows, and what this round sent of them."""

    rows: int
    bytes: int = 0
    gate_report: GateReport = field(default_factory=GateReport)


@dataclass
class StreamRound:
    home: Home
    store: StateStore
    identity: Identity
    lake: RowReader
    gate: PrivacyGate
    sink: Sink
    destination: Destination
    addresses: stream_destination.ConfiguredAddresses
    max_wait: float
    budget: int | None
    """Intents that the round may finish; None for no limit."""
    slots: asyncio.Semaphore
    """A stream takes a slot for each intent, so that a long backlog does not block the other streams."""
    on_rows: Callable[[int, int], None]
    key: StreamKey

    def __post_init__(self) -> None:
        self._rows = RowSource(self.lake, self.gate, self.sink, self.key)
        self._report = StreamReport(self.key)
        self._retries = RetryBudget(self.max_wait)
        self._rollback = RollbackCheck(self.home, self.store, self.identity, self._rows, self._retries)
        self._planned_under: Identity | None = None
        """The identity of this round's intents; None before the first one."""
        self._fresh_above: int | None = None
        """Chunks of the intent above this sequence were never sent by anyone; None if another round left the intent."""
        self._inherited: list[tuple[int, int]] = []
        self._uncertain = False
        """Whether the destination may have the current chunk without our knowledge."""
        self._next_page: _WorkAhead[PreparedRows] = _WorkAhead()
        self._page_rows = min(self.sink.limits.rows, _PAGE_ROWS)
        """The first page holds about one chunk, so that a backlog starts to flow immediately. Each further
        one is twice as large."""
        self._next_payload: _WorkAhead[Payload] = _WorkAhead()

    async def run(self) -> StreamReport:
        """Run the round under the stream's lock; wait up to `max_wait` for another round to release it."""
        try:
            with await stream_locks.acquire_lock(self.home, self.key, self.max_wait), self._failures_recorded():
                stream = stream_destination.resolve_stream(
                    self.home, self.store, self.key, self.destination, self.addresses
                )
                self._retries.failures = stream.attempts
                self._report.after = self._report.last = stream.watermark
                high_water = self._load_high_water()
                stream = await self._find_watermark(stream, high_water)
                self._inherited = self._rollback.find_inherited(stream, high_water)
                end = high_water
                if self._inherited and not self.sink.drops_known_rows():
                    end = max(self._inherited[0][0], stream.watermark or 0)
                finished = 0
                async with self._next_payload, self._next_page:
                    while self.budget is None or finished < self.budget:
                        async with self.slots:
                            intent, prepared = await self._plan_next(end)
                            if intent is None:
                                break
                            await self._deliver_intent(intent, prepared)
                        finished += 1
                    else:
                        self._report.drained = False
                if end < high_water and self._report.drained:
                    after, last = self._inherited[0]
                    count = self.lake.count(self.key.dataset, self.key.source, max(after, end), last)
                    raise hold_inherited(self.key, count)
                with self.store.transaction() as connection:
                    streams.record_success(connection, self.key)
        except Cancelled:
            raise
        except HypError as error:
            # The stream is busy, or the failure could not be recorded: the disk is full, or the state is missing.
            return StreamReport(self.key, error=error.as_json())
        return self._report

    @contextmanager
    def _failures_recorded(self) -> Iterator[None]:
        """Record a failure in the report and the stream. An error of a plugin or of a damaged lake does not stop the
        other streams."""
        try:
            yield
        except Cancelled:
            raise
        except StreamHeld as held:
            self._report.held = True
            self._report.error = {"kind": "held", "message": str(held)}
            if self._report.after is None:
                self._report.after = self._report.last = self._load_stream()[0].watermark
            with self.store.transaction() as connection:
                streams.hold_stream(connection, self.key, held.why, str(held))
        except Exception as error:
            self._report.error = describe_error(error, "failed")
            message, retry_at = self._report.error["message"], retry_time(error)
            with self.store.transaction() as connection:
                streams.record_failure(connection, self.key, message, retry_at, self._retries.failures)

    def _load_high_water(self) -> int:
        with self.store.reading() as connection:
            known = flushes.load_high_water(connection, self.key.dataset)
        return known.get(self.key.dataset, {}).get(self.key.source, 0)

    async def _find_watermark(self, stream: Stream, high_water: int) -> Stream:
        """Return the stream, after its watermark was read from the destination if the state does not know it."""
        # With a pending intent the watermark has been found before; it rises when the intent is finished.
        if stream.watermark is None and self._load_stream()[1] is None:
            await self._rollback.choose_identity(stream, high_water)
            self._report.after = self._report.last = await stream_destination.find_watermark(
                self.store, self._rows, self.identity, stream, high_water, self._retries
            )
        return self._load_stream()[0]

    def _load_stream(self) -> tuple[Stream, Intent | None]:
        with self.store.reading() as connection:
            stream, intent = streams.load_stream(connection, self.key), streams.load_intent(connection, self.key)
        assert stream is not None
        return stream, intent

    async def _plan_next(self, high_water: int) -> tuple[Intent | None, PreparedRows | None]:
        """Return the pending intent, or else plan and record the next one, with its rows. None if no row is left."""
        stream, intent = self._load_stream()
        if intent:
            self._fresh_above = None
            return intent, None
        watermark = stream.watermark or 0
        if watermark > high_water:
            raise DeliveryStopped(
                "lake_behind_watermark",
                f"rows up to {watermark} were delivered, but the lake ends at {high_water}: it was rolled back or "
                "restored without its state",
                repair="hyp verify",
            )
        if watermark < high_water and self._planned_under is None:
            self._planned_under = await self._rollback.choose_identity(stream, high_water)
            stream, _ = self._load_stream()
            watermark = stream.watermark or 0
        if watermark == high_water:
            return None, None
        prepared = await self._next_page.take(watermark, self._page_reader(watermark, high_water))
        self._rollback.require_keys(stream, prepared)
        chunks = cut_chunks(
            self.key, self._planned_under or self.identity, watermark, prepared.reached, prepared.seqs,
            prepared.payload, self.sink.limits, prepared.row_keys(datasets.get(self.key.dataset)),
        )  # fmt: skip
        self._fresh_above = max(stream.planned_to, watermark)
        intent = Intent(self.key, watermark, prepared.reached, tuple(chunks))
        _before_plan()
        with self.store.transaction() as connection:
            self._require_incarnation(connection)
            streams.save_intent(connection, intent)
        _after_plan()
        # Before the first byte leaves: if the state is lost, the mirror must know the ids that may have been sent.
        mirror.write_mirror(self.home.mirror, self.store)
        _after_mirror()
        self._page_rows = min(2 * self._page_rows, _PAGE_ROWS)
        if prepared.reached < high_water:
            self._next_page.start(prepared.reached, self._page_reader(prepared.reached, high_water))
        return intent, prepared

    def _require_incarnation(self, connection: Connection) -> None:
        known = load_identity(connection)
        if known is None or known.incarnation != self.identity.incarnation:
            raise DeliveryStopped(
                "home_rolled_back", "the home became a new incarnation in the meantime", repair="hyp export"
            )

    def _page_reader(self, after: int, until: int) -> Callable[[], PreparedRows]:
        return partial(self._rows.prepare, after, until, self._page_rows)

    async def _deliver_intent(self, intent: Intent, prepared: PreparedRows | None) -> None:
        """Deliver the chunks of an intent, in order, and finish it. `prepared` is None if another round left it."""
        watermark = self._load_stream()[0].watermark or 0
        uncertain = set() if prepared else self._find_uncertain(intent)
        due = deque(intent.due)
        while due:
            chunk = due.popleft()
            self._uncertain = chunk.id in uncertain
            result = await self._deliver_chunk(chunk, prepared, watermark, due[0] if due else None)
            if isinstance(result, _Arrived):
                with self.store.transaction() as connection:
                    streams.acknowledge_chunk(connection, self.key, chunk, result.rows)
                _after_ack()
                self._report.add_chunk(result.rows, result.bytes, result.gate_report)
                self.on_rows(result.rows, result.bytes)
            else:
                # The replacements of a chunk come next: chunks are sent in order.
                due.extendleft(reversed(result))
        if prepared and not intent.chunks:
            self._report.add_gate_report(prepared.gate_report)
        with self.store.transaction() as connection:
            streams.finish_intent(connection, self.key)
        _after_finish()
        self._report.last = intent.last

    def _find_uncertain(self, intent: Intent) -> set[str]:
        """Return the chunks of another round's intent that may have arrived without our knowledge.

        Chunks are sent one at a time and in order, so those after the first due chunk were never sent. A restored
        state, however, has lost the acknowledgements made since its backup.
        """
        restored = {each.id for each in intent.due if each.incarnation != self.identity.incarnation}
        return restored | {each.id for each in intent.due[:1] if not each.unsent}

    async def _deliver_chunk(
        self, chunk: PlannedChunk, prepared: PreparedRows | None, acked_to: int, following: PlannedChunk | None
    ) -> _Arrived | Sequence[PlannedChunk]:
        """Deliver the chunk, and pack the following one while it is sent. Returns its replacements, if it was split.

        `prepared` is None if another round left the intent.
        """
        if self._uncertain:
            has_chunk = await self._retries.retry(lambda: self._has_chunk(chunk))
            if has_chunk:
                return _Arrived(chunk.rows)
            self._uncertain = has_chunk is None
        if prepared is None:
            rows = await asyncio.to_thread(self._rows.prepare, chunk.after, chunk.last)
        else:
            rows = prepared.slice(chunk.after, chunk.last)
            with self._rows.failure_described("pack", len(rows.seqs)):
                payload = await self._next_payload.take(chunk.id, partial(self.sink.pack, rows.payload))
            rows = replace(rows, payload=payload)
            if following:
                ahead = prepared.slice(following.after, following.last)
                self._next_payload.start(following.id, partial(self.sink.pack, ahead.payload))
        # No rows left after a purge or the privacy gate: there is nothing to send, and nothing can be missing.
        while rows.seqs:
            if chunk.unsent:
                with self.store.transaction() as connection:
                    streams.mark_sending(connection, self.key, chunk)
                mirror.write_mirror(self.home.mirror, self.store)
            try:
                sent = await self._retries.retry(partial(self._send, chunk, rows, acked_to, prepared is None))
                return _Arrived(len(rows.seqs), sent, rows.gate_report)
            except _RowsExcluded:
                rows = await asyncio.to_thread(self._rows.prepare, chunk.after, chunk.last)
            except ChunkRefused as reason:
                return self._split_or_bury(chunk, rows, str(reason))
            except RangeOverlap as overlap:
                return self._cut_to_holes(chunk, rows, overlap)
            except (DeliveryStopped, DestinationDenied):
                if not self._uncertain:
                    self._mark_unsent(chunk)
                raise
        return _Arrived(0, 0, rows.gate_report)

    async def _send(self, chunk: PlannedChunk, rows: PreparedRows, acked_to: int, inherited: bool) -> int:
        """Make one attempt to send the rows under this chunk's id. Returns the bytes accepted."""
        if not await asyncio.to_thread(self.gate.still_allowed, rows.table):
            raise _RowsExcluded
        try:
            with telemetry.span(
                "sink.export_batch", component="export", operation="ship", sink=self.key.sink,
                hyp_dataset=self.key.dataset, row_count=chunk.rows,
            ):  # fmt: skip
                _before_send()
                is_fresh = self._is_fresh(chunk) and not self._uncertain
                shipped = to_chunk(self.key, self.identity, chunk, is_fresh=is_fresh, inherited=self._inherited)
                async with limit_call(ChunkRefused, RangeOverlap):
                    sent = await self.sink.ship(shipped, rows.payload, acked_to)
                _after_answer()
                return sent
        except ChunkRefused:
            # Query for every chunk of an inherited intent, certain or not: the state may be older than it seems.
            has_chunk = await self._has_chunk(chunk) if self._uncertain or inherited else False
            if has_chunk:
                return 0
            if has_chunk is None and self._uncertain and not self.sink.keeps_ids:
                raise StreamHeld(
                    streams.HELD_OUTCOME_UNKNOWN,
                    "the destination refuses a chunk that it may already have stored, and it cannot be queried: "
                    f"`hyp export adopt {self.key.sink}` skips the chunk and keeps it as a dead letter",
                ) from None
            raise
        except DestinationUnreachable:
            self._uncertain = True
            telemetry.count("hyp_sink_export_failures_total", 1, status="failed", sink=self.key.sink)
            raise

    async def _has_chunk(self, chunk: PlannedChunk) -> bool | None:
        async with limit_call():
            return await self.sink.has_chunk(to_chunk(self.key, self.identity, chunk))

    def _is_fresh(self, chunk: PlannedChunk) -> bool:
        """Return whether a destination that has any of the chunk's range contradicts the state."""
        is_current = chunk.incarnation == self.identity.incarnation
        return is_current and self._fresh_above is not None and chunk.after >= self._fresh_above

    def _mark_unsent(self, chunk: PlannedChunk) -> None:
        with self.store.transaction() as connection:
            streams.mark_unsent(connection, self.key, chunk)

    def _cut_to_holes(self, chunk: PlannedChunk, rows: PreparedRows, overlap: RangeOverlap) -> Sequence[PlannedChunk]:
        """Replace a chunk that the destination has in part by the rows that it lacks."""
        if self._is_fresh(chunk):
            raise self._rollback.fork(self._load_stream()[0], overlap.covered.last, chunk.after) from None
        missing = missing_chunks(self.key, self.identity.gateway_id, chunk, rows.seqs, overlap.covered)
        if any(each.id == chunk.id for each in missing):
            raise DeliveryStopped(
                "destination_contradicts",
                f"the destination reports that it has a part of ({chunk.after}, {chunk.last}] and that it has none",
            ) from overlap
        return self._replace_chunk(chunk, missing)

    def _split_or_bury(self, chunk: PlannedChunk, rows: PreparedRows, reason: str) -> Sequence[PlannedChunk]:
        if len(rows.seqs) > 1:
            return self._replace_chunk(chunk, halve_chunk(self.key, self.identity.gateway_id, chunk, rows.seqs))
        if self._report.dead_letters >= MAX_LETTERS_PER_ROUND:
            self._mark_unsent(chunk)
            raise DeliveryStopped(
                "too_many_refused",
                f"the destination refused {MAX_LETTERS_PER_ROUND} rows in this round, most recently with: {reason}. "
                "The next round continues from here",
                repair="hyp export dead-letters list",
            )
        letter = dead_letter_rows.make_letter(self.key, chunk, reason)
        with self.store.transaction() as connection:
            dead_letters.add_letter(connection, letter, dead_letter_rows.pack_rows(rows.table))
            streams.finish_unsent_chunk(connection, self.key, chunk)
        mirror.write_mirror(self.home.mirror, self.store)
        _after_bury()
        self._report.dead_letters += 1
        return ()

    def _replace_chunk(self, chunk: PlannedChunk, parts: Sequence[PlannedChunk]) -> Sequence[PlannedChunk]:
        with self.store.transaction() as connection:
            streams.replace_chunk(connection, self.key, chunk, parts)
        mirror.write_mirror(self.home.mirror, self.store)
        _after_split()
        return parts


class _WorkAhead(Generic[T]):
    """Does the next piece of work on a worker thread while the last one is sent; never more than one piece."""

    def __init__(self) -> None:
        self._key: object = None
        self._task: asyncio.Task[T] | None = None

    def start(self, key: object, work: Callable[[], T]) -> None:
        self._key, self._task = key, asyncio.create_task(asyncio.to_thread(work))

    async def take(self, key: object, work: Callable[[], T]) -> T:
        """Return the result that was started under this key, or else do the work now."""
        if self._key != key:
            await self.close()
        task, self._task = self._task, None
        return await (task or asyncio.to_thread(work))

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *_failure: object) -> None:
        await self.close()

    async def close(self) -> None:
        task, self._task = self._task, None
        if task:
            task.cancel()
            # Not awaited directly: our own cancellation must not be mistaken for that of the task.
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()
