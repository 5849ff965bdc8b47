"""Run the deliveries: every selected sink, its streams in parallel. One failure never stops another stream.

`replay_letter` sends a dead letter again: the same chunk under the same id, so that it arrives once, however often it
is tried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from hypaware import faults, telemetry
from hypaware.config import Config
from hypaware.errors import Cancelled, HypError
from hypaware.export import dead_letter_rows, privacy_gate, sink_registry, status, stream_destination, stream_locks
from hypaware.export.report import SinkReport, StreamReport
from hypaware.export.retry import DeliveryStopped, RetryBudget, StreamHeld, call_sink, time_after
from hypaware.export.round import StreamRound
from hypaware.export.rows import PreparedRows, RowReader, missing_chunks, prepare_rows, to_chunk
from hypaware.export.sink import ChunkRefused, Destination, DestinationDenied, RangeOverlap, Sink, SparkRunner
from hypaware.export.status import StreamState, read_stream_states
from hypaware.state import dead_letters, mirror, streams
from hypaware.state.dead_letters import DeadLetter
from hypaware.state.intents import PlannedChunk

if TYPE_CHECKING:
    import pyarrow as pa

    from hypaware.home import Home
    from hypaware.state.home_opener import OpenHome

T = TypeVar("T")
# Each of them holds one or two pages of rows in memory.
_CONCURRENT_STREAMS = 4
_REPLAY_WAIT_SECONDS = 60.0

_after_answer = faults.crash_point("export.replay.after-answer", "a dead letter arrived, the state does not know")
_after_commit = faults.crash_point("export.replay.after-commit", "a dead letter was delivered and is deleted")


@dataclass(frozen=True)
class DeliveryOptions:
    """How a delivery is run."""

    max_wait: float = 60.0
    budget: int | None = None
    """Intents per stream; None for all."""
    patient: bool = False
    """Whether to skip a stream until its destination's retry time. A user's command tries at once."""


def _ignore_rows(_sink: str, _rows: int, _bytes: int) -> None:
    return None


@dataclass
class Driver:
    opened: OpenHome
    config: Config
    lake: RowReader
    options: DeliveryOptions = DeliveryOptions()
    on_spark: SparkRunner | None = None
    on_rows: Callable[[str, int, int], None] = _ignore_rows

    @cached_property
    def gate(self) -> privacy_gate.PrivacyGate:
        """The privacy gate of this driver's config. No delivery bypasses it."""
        return privacy_gate.make_gate(self.home, self.config)

    async def deliver(self, sinks: Sequence[str]) -> list[SinkReport]:
        return await _gather_all(self._deliver_to_sink(name) for name in sinks)

    async def _deliver_to_sink(self, name: str) -> SinkReport:
        report = SinkReport(name)
        due: list[StreamState] = []
        with telemetry.span("sink.tick", component="export", operation="tick", sink=name) as span:
            try:
                await self._deliver_streams(name, report, due)
            except (DestinationDenied, DeliveryStopped) as error:
                repair = {"repair": [error.repair]} if error.repair else {}
                report.error = {"kind": error.kind, "message": str(error), **repair}
            except Cancelled:
                raise
            except HypError as error:
                report.error = error.as_json()
            except Exception as error:
                report.error = {"kind": "delivery_failed", "message": f"{type(error).__name__}: {error}"}
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
            self._record_lag(name)
            span.status({"ok": "ok", "partial": "degraded", "held": "skipped"}.get(report.status, "failed"))  # type: ignore[arg-type]
        return report

    def _record_lag(self, name: str) -> None:
        """Record the rows that each stream of the sink has still to deliver, whatever the outcome of the round."""
        if not telemetry.is_on():
            return
        # Only the delivery itself fails on a lake that cannot be read; a measurement does not.
        with suppress(HypError, OSError):
            for each in status.read_statuses(self.home, self.config, self.opened.store, datetime.now(UTC), [name]):
                key = each.state.key
                telemetry.gauge(
                    "hyp_sink_lag_rows", each.lag_rows, sink=name, hyp_dataset=key.dataset, source=key.source
                )

    async def _deliver_streams(self, name: str, report: SinkReport, due: list[StreamState]) -> None:
        """Deliver the streams of one sink. Fills `due` with those that have something to deliver."""
        for state in read_stream_states(self.home, self.config, self.opened.store, [name]):
            if state.error:
                raise state.error
            if not state.is_idle:
                if self.options.patient and (skipped := _skip_until_retry_time(state)):
                    report.streams.append(skipped)
                else:
                    due.append(state)
            elif not state.removed:
                report.streams.append(StreamReport(state.key, state.watermark, state.watermark))
        if not due:
            return
        async with sink_registry.create_sink(self.home, self.config, self.opened.identity, name, self.on_spark) as sink:
            destination = await self._connect(sink, due)
            addresses, slots = self._configured_addresses(), asyncio.Semaphore(_CONCURRENT_STREAMS)
            make_round = partial(
                StreamRound, self.home, self.opened.store, self.opened.identity, self.lake, self.gate, sink,
                destination, addresses, self.options.max_wait, self.options.budget, slots, self.on_rows,
            )  # fmt: skip
            report.streams += await _gather_all(make_round(state.key).run() for state in due)

    async def _connect(self, sink: Sink, due: Sequence[StreamState]) -> Destination:
        """Open the sink. If its destination is unreachable, record the failure with each of its streams."""
        retries = RetryBudget(self.options.max_wait, max(each.stream.attempts if each.stream else 0 for each in due))
        try:
            return await retries.retry(lambda: call_sink(sink.open()))
        except (DestinationDenied, DeliveryStopped, HypError) as error:
            wait = error.retry_after if isinstance(error, DeliveryStopped) else None
            retry_at = time_after(wait) if wait else None
            keys = [each.key for each in due]
            stream_destination.record_failure(
                self.opened.store, keys, self._configured_addresses(), str(error), retry_at, retries.failures
            )
            raise

    def _configured_addresses(self) -> dict[tuple[str, str], str | None]:
        addresses: dict[tuple[str, str], str | None] = {}
        for name, sink_config in self.config.sinks.items():
            address: str | None = None
            with suppress(HypError):
                address = sink_registry.sink_address(self.home, self.config, self.opened.identity, name)
            addresses |= {(name, dataset): address for dataset in sink_config.datasets}
        return addresses

    @property
    def home(self) -> Home:
        return self.opened.home


def _skip_until_retry_time(state: StreamState) -> StreamReport | None:
    """Return the report of a stream that must not be tried before its retry time; None if it may be tried now."""
    now = datetime.now(UTC)
    due = state.due_at(now, config_changed=True)
    if due is None or due <= now or state.stream is None:
        return None
    error = {"kind": "waiting", "message": f"next attempt at {due.isoformat()}: {state.stream.last_error}"}
    return StreamReport(state.key, state.watermark, state.watermark, error=error)


async def _gather_all(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Gather the results when all have ended, even if one failed: none continues alone while it holds a lock."""
    results = await asyncio.gather(*coroutines, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


async def replay_letter(driver: Driver, letter_id: str) -> dict[str, Any]:
    letter = _load_letter(driver, letter_id)
    if letter.key.sink not in driver.config.sinks:
        raise HypError(f"the dead letter belongs to the sink {letter.key.sink}, which is not in the config")
    with await stream_locks.acquire_lock(driver.home, letter.key, _REPLAY_WAIT_SECONDS):
        # Load it again: the previous holder of the lock may have delivered or dropped it.
        letter = _load_letter(driver, letter.id)
        async with sink_registry.create_sink(
            driver.home, driver.config, driver.opened.identity, letter.key.sink, driver.on_spark
        ) as sink:
            try:
                refusal = await _send_letter(driver, sink, letter)
            except (StreamHeld, DeliveryStopped, DestinationDenied) as error:
                return {"id": letter.id, "status": "failed", "reason": str(error)}
    if refusal:
        return {"id": letter.id, "status": "refused", "reason": refusal}
    return {"id": letter.id, "status": "delivered"}


def _load_letter(driver: Driver, letter_id: str) -> DeadLetter:
    with driver.opened.store.reading() as connection:
        return dead_letters.find_letter(connection, letter_id)


async def _send_letter(driver: Driver, sink: Sink, letter: DeadLetter) -> str | None:
    """Send the letter. Returns the reason if it was refused again, None if the destination has it now."""
    retries = RetryBudget(_REPLAY_WAIT_SECONDS)
    destination = await retries.retry(lambda: call_sink(sink.open()))
    with driver.opened.store.reading() as connection:
        stream = streams.load_stream(connection, letter.key)
        body = dead_letters.load_payload(connection, letter.id)
    assert stream is not None
    stream_destination.check_binding(driver.home, driver.opened.store, stream, destination)
    planned = PlannedChunk(letter.chunk_id, letter.incarnation, letter.after, letter.last, letter.rows)
    chunk = to_chunk(letter.key, driver.opened.gateway_id, planned)
    rows = letter.rows
    if not await retries.retry(lambda: call_sink(sink.has_chunk(chunk))):
        prepared = await _prepare_letter(driver, sink, letter, body)
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
                _update_refusal(driver, letter, prepared.table, str(reason))
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
    mirror.write_mirror(driver.home.mirror, driver.opened.store)
    _after_commit()
    return None


async def _prepare_letter(driver: Driver, sink: Sink, letter: DeadLetter, body: bytes | None) -> PreparedRows:
    if body is not None:
        table: pa.Table = dead_letter_rows.unpack_rows(body)
    else:
        table = await driver.lake.between(letter.key.dataset, letter.key.source, letter.after, letter.last)
    return await prepare_rows(driver.gate, sink, letter.key, table, letter.after, letter.last)


def _update_refusal(driver: Driver, letter: DeadLetter, rows: pa.Table, reason: str) -> None:
    again = dead_letter_rows.make_letter(
        letter.key, PlannedChunk(letter.id, letter.incarnation, letter.after, letter.last, letter.rows), reason
    )
    with driver.opened.store.transaction() as connection:
        dead_letters.add_letter(connection, again, dead_letter_rows.pack_rows(rows))
