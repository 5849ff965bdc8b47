"""Run the deliveries: every selected sink, its streams in parallel. One failure never stops another stream.

`replay_letter` sends a dead letter again: the same chunk under the same id, so that it arrives once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from hypaware import faults, telemetry
from hypaware.config import Config
from hypaware.errors import Cancelled, HypError
from hypaware.export import dead_letter_rows, sink_registry, status, stream_destination, stream_locks
from hypaware.export.retry import DeliveryStopped, RetryBudget, StreamHeld, call_sink, describe_error, retry_time
from hypaware.export.round import StreamRound
from hypaware.export.rows import PrivacyGate, RowReader, RowSource, make_gate, missing_chunks, to_chunk
from hypaware.export.sink import ChunkRefused, DestinationDenied, RangeOverlap, Sink, SparkRunner
from hypaware.export.status import SinkReport, StreamReport, StreamState, read_stream_states
from hypaware.state import dead_letters, mirror, schema, streams
from hypaware.state.dead_letters import DeadLetter
from hypaware.state.streams import PlannedChunk

if TYPE_CHECKING:
    from hypaware.state.home_opener import OpenHome

T = TypeVar("T")
# Each of them holds one or two pages of rows in memory.
_CONCURRENT_STREAMS = 4
_REPLAY_WAIT_SECONDS = 60.0

_after_answer = faults.crash_point("export.replay.after-answer", "a dead letter arrived, the state does not know")
_after_commit = faults.crash_point("export.replay.after-commit", "a dead letter was delivered and is deleted")


@dataclass(frozen=True)
class DeliveryOptions:
    max_wait: float = 60.0
    budget: int | None = None
    """Intents per stream; None for all."""
    patient: bool = False
    """Whether to skip a stream until its destination's retry time. A user's command tries at once."""


@dataclass
class Driver:
    opened: OpenHome
    config: Config
    lake: RowReader
    options: DeliveryOptions = DeliveryOptions()
    on_spark: SparkRunner | None = None
    on_rows: Callable[[int, int], None] = lambda _rows, _bytes: None

    @cached_property
    def gate(self) -> PrivacyGate:
        """The privacy gate of this driver's config. No delivery bypasses it."""
        return make_gate(self.opened.home, self.config)

    async def deliver(self, sinks: Sequence[str]) -> list[SinkReport]:
        return await _gather_all(self._deliver_to_sink(name) for name in sinks)

    async def _deliver_to_sink(self, name: str) -> SinkReport:
        report = SinkReport(name)
        due: list[StreamState] = []
        with telemetry.span("sink.tick", component="export", operation="tick", sink=name) as span:
            try:
                await self._deliver_streams(name, report, due)
            except Cancelled:
                raise
            except Exception as error:
                report.error = describe_error(error, "delivery_failed")
            span.set(streams=len(report.streams), row_count=sum(stream.rows for stream in report.streams))
            if report.error:
                # The sink could not be opened: each of its remaining streams failed with it.
                reported = {stream.key for stream in report.streams}
                report.streams += [
                    StreamReport(each.key, each.watermark or 0, each.watermark or 0, error=report.error)
                    for each in due
                    if each.key not in reported
                ]
                telemetry.count("hyp_sink_export_failures_total", 1, status="failed", sink=name)
            if telemetry.is_on():
                # Only the delivery itself fails on a lake that cannot be read; a measurement does not.
                with suppress(HypError, OSError):
                    home, store = self.opened.home, self.opened.store
                    for each in status.read_statuses(home, self.config, store, datetime.now(UTC), [name]):
                        dataset, source = each.state.key.dataset, each.state.key.source
                        telemetry.gauge(
                            "hyp_sink_lag_rows", each.lag_rows, sink=name, hyp_dataset=dataset, source=source
                        )
            span.status({"ok": "ok", "partial": "degraded", "held": "skipped"}.get(report.status, "failed"))  # type: ignore[arg-type]
        return report

    async def _deliver_streams(self, name: str, report: SinkReport, due: list[StreamState]) -> None:
        """Deliver the streams of one sink. Fills `due` with those that have something to deliver."""
        home, store, now = self.opened.home, self.opened.store, datetime.now(UTC)
        for state in read_stream_states(home, self.config, store, [name]):
            if state.error:
                raise state.error
            due_at = state.due_at(now, config_changed=True) if self.options.patient else None
            if state.stream and due_at and due_at > now:
                waiting = f"next attempt at {due_at.isoformat()}: {state.stream.last_error}"
                skipped = {"kind": "waiting", "message": waiting}
                report.streams.append(StreamReport(state.key, state.watermark, state.watermark, error=skipped))
            elif not state.is_idle:
                due.append(state)
            elif not state.removed:
                report.streams.append(StreamReport(state.key, state.watermark, state.watermark))
        if not due:
            return
        async with sink_registry.create_sink(home, self.config, self.opened.identity, name, self.on_spark) as sink:
            addresses: dict[tuple[str, str], str | None] = {}
            for other, sink_config in self.config.sinks.items():
                address, _ = status.find_address(home, self.config, self.opened.identity, other)
                addresses |= {(other, dataset): address for dataset in sink_config.datasets}
            attempts = max(each.stream.attempts if each.stream else 0 for each in due)
            retries = RetryBudget(self.options.max_wait, attempts)
            try:
                destination = await retries.retry(lambda: call_sink(sink.open()))
            except (DestinationDenied, DeliveryStopped, HypError) as error:
                keys = [each.key for each in due]
                stream_destination.record_failure(
                    store, keys, addresses, str(error), retry_time(error), retries.failures
                )
                raise
            make_round = partial(
                StreamRound, home, store, self.opened.identity, self.lake, self.gate, sink, destination, addresses,
                self.options.max_wait, self.options.budget, asyncio.Semaphore(_CONCURRENT_STREAMS), self.on_rows,
            )  # fmt: skip
            report.streams += await _gather_all(make_round(state.key).run() for state in due)


async def _gather_all(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Gather the results when all have ended, even if one failed: none continues alone while it holds a lock."""
    results = await asyncio.gather(*coroutines, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


async def replay_letter(driver: Driver, letter_id: str) -> dict[str, Any]:
    (letter,) = dead_letter_rows.find_letters(driver.opened.store, [letter_id])
    if letter.key.sink not in driver.config.sinks:
        raise HypError(f"the dead letter belongs to the sink {letter.key.sink}, which is not in the config")
    with await stream_locks.acquire_lock(driver.opened.home, letter.key, _REPLAY_WAIT_SECONDS):
        # Load it again: the previous holder of the lock may have delivered or dropped it.
        (letter,) = dead_letter_rows.find_letters(driver.opened.store, [letter.id])
        async with sink_registry.create_sink(
            driver.opened.home, driver.config, driver.opened.identity, letter.key.sink, driver.on_spark
        ) as sink:
            try:
                refusal = await _send_letter(driver, sink, letter)
            except (StreamHeld, DeliveryStopped, DestinationDenied) as error:
                return {"id": letter.id, "status": "failed", "reason": str(error)}
    return {"id": letter.id, **({"status": "refused", "reason": refusal} if refusal else {"status": "delivered"})}


async def _send_letter(driver: Driver, sink: Sink, letter: DeadLetter) -> str | None:
    """Send the letter. Returns the reason if it was refused again, None if the destination has it now."""
    retries = RetryBudget(_REPLAY_WAIT_SECONDS)
    destination = await retries.retry(lambda: call_sink(sink.open()))
    with driver.opened.store.reading() as connection:
        stream = streams.load_stream(connection, letter.key)
        body = dead_letters.load_payload(connection, letter.id)
    assert stream is not None
    stream_destination.check_binding(driver.opened.home, driver.opened.store, stream, destination)
    planned = PlannedChunk(letter.chunk_id, letter.incarnation, letter.after, letter.last, letter.rows)
    chunk = to_chunk(letter.key, driver.opened.identity, planned)
    rows = letter.rows
    if not await retries.retry(lambda: call_sink(sink.has_chunk(chunk))):
        source = RowSource(driver.lake, driver.gate, sink, letter.key)
        if body is None:
            prepared = await source.between(letter.after, letter.last)
        else:
            table = dead_letter_rows.unpack_rows(body)
            prepared = await asyncio.to_thread(source.prepare, table, letter.after, letter.last)
        rows = len(prepared.seqs)
        if not rows and prepared.gate_report.withheld:
            raise DeliveryStopped(
                "withheld", "the privacy settings exclude its folder or session from export; the dead letter is kept"
            )
        if rows:
            acked_to = min(stream.watermark or 0, letter.after)
            try:
                await retries.retry(
                    lambda: call_sink(sink.ship(chunk, prepared.payload, acked_to), ChunkRefused, RangeOverlap)
                )
            except ChunkRefused as reason:
                again = replace(letter, reason=str(reason), at=schema.utc_now())
                with driver.opened.store.transaction() as connection:
                    dead_letters.add_letter(connection, again, dead_letter_rows.pack_rows(prepared.table))
                return str(reason)
            except RangeOverlap as overlap:
                if missing_chunks(letter.key, chunk.gateway_id, planned, prepared.seqs, overlap.covered):
                    raise DeliveryStopped(
                        "destination_contradicts", "the destination has a part of the dead letter"
                    ) from None
    _after_answer()
    with driver.opened.store.transaction() as connection:
        dead_letters.drop_letter(connection, letter.id)
        streams.add_exported_rows(connection, letter.key, rows)
        streams.advance_delivery_step(connection)
    mirror.write_mirror(driver.opened.home.mirror, driver.opened.store)
    _after_commit()
    return None
