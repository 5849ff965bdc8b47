"""The engine's jobs `export` and `replay`.

`export` delivers to every selected sink, its streams in parallel. One failure never stops another stream. `replay`
sends a dead letter again: the same chunk under the same id, so that it arrives once.

Delivery runs on an event loop of its own while Spark stays on the thread that the engine gave the job.

@ref walks#export
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from hypaware import faults, telemetry
from hypaware.config import Config
from hypaware.engine.jobs import JobContext, import_lock
from hypaware.errors import Cancelled, HypError
from hypaware.export import dead_letter_rows, sink_registry, status, stream_destination, stream_locks
from hypaware.export.retry import DeliveryStopped, RetryBudget, StreamHeld, describe_error, limit_call, retry_time
from hypaware.export.round import StreamRound
from hypaware.export.rows import PrivacyGate, RowReader, RowSource, make_gate, missing_chunks, to_chunk
from hypaware.export.sink import ChunkRefused, DestinationDenied, RangeOverlap, Sink, SparkRunner
from hypaware.export.status import SinkReport, StreamReport, StreamState, read_stream_states
from hypaware.lake.read import LakeRowReader, count_rows_between
from hypaware.spool import reader
from hypaware.spool.received import open_received
from hypaware.state import dead_letters, mirror, schema, server_clocks, streams
from hypaware.state.dead_letters import DeadLetter
from hypaware.state.home_opener import OpenHome, open_home
from hypaware.state.store import load_identity
from hypaware.state.streams import PlannedChunk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hypaware.state.store import StateStore

T = TypeVar("T")
_POLL_SECONDS = 0.1
_PROGRESS_SECONDS = 0.5
# A home is rolled back once; a second stream may notice it in the next run.
_MOST_INCARNATIONS = 3
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
    """Whether to skip a stream until its destination's retry time. A user's command tries immediately."""


def export(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Deliver to the sinks.

    args: `sinks` (all if None), `max_wait` (seconds), `budget` (intents per stream, None for all), `patient`.
    """
    # Not at the top: authors of sinks import this module through `hypaware.testing`, without Spark.
    with import_lock:
        from hypaware.lake.flush import flush_datasets
        from hypaware.lake.lake_recovery import store_incarnation

    sinks = status.select_sinks(context.config, args.get("sinks") or ())
    opened = open_home(context.home)
    if opened.rebuilt:
        context.note(opened.rebuilt)
    with closing(opened.store):
        # The lake records this incarnation before anything leaves under it: if state and mirror are lost, the
        # destination must still be queried under it.
        store_incarnation(context, opened.identity)
        options = DeliveryOptions(float(args.get("max_wait", 60.0)), args.get("budget"), bool(args.get("patient")))
        spooled = _list_spooled(context, opened.store, sinks, skip_deferred=options.patient)
        flush_error: HypError | None = None
        try:
            if spooled:
                flush_datasets(context, spooled, skip_deferred=options.patient)
        except Cancelled:
            raise
        except HypError as error:
            # Committed rows are delivered nevertheless.
            context.note(f"rows in the spool could not be committed and are not delivered now: {error.message}")
            flush_error = error
        on_rows = _progress_reporter(context, opened, sinks)
        for _ in range(_MOST_INCARNATIONS):
            thread = SparkThread(context)
            driver = Driver(opened, context.config, LakeRowReader(context.home), options, thread.on_spark, on_rows)
            reports = thread.run(gather_all(map(driver.deliver, sinks)))
            with opened.store.reading() as connection:
                known = load_identity(connection)
            if known is None or known.incarnation == opened.identity.incarnation:
                break
            context.note("this home was rolled back to an earlier state and is a new incarnation from now on")
            opened = replace(opened, identity=known)
            store_incarnation(context, known)
    if flush_error:
        raise flush_error
    return {"sinks": [report.as_json() for report in reports]}


def _list_spooled(context: JobContext, store: StateStore, sinks: list[str], *, skip_deferred: bool) -> list[str]:
    """Return the datasets of the sinks with rows in the spool.

    A patient round skips rows that may wait there, so that they are delivered under their final ids.
    """
    objects = open_received(context.home, store)
    received = objects.list_datasets() if objects else ()
    return [
        dataset
        for dataset in sorted({each for name in sinks for each in context.config.sinks[name].datasets})
        if reader.summarize_spool(context.home, dataset, skip_deferred=skip_deferred).segments or dataset in received
    ]


def _progress_reporter(context: JobContext, opened: OpenHome, sinks: list[str]) -> Callable[[int, int], None]:
    """Return a function that adds rows and bytes to the progress of all sinks, reported at most twice a second."""
    lag: Counter[str] = Counter()
    for state in read_stream_states(context.home, context.config, opened.store, sinks):
        key, after = state.key, state.watermark or 0
        # A damaged lake is reported by the round of the stream.
        with suppress(OSError, ValueError):
            if not state.removed:
                lag[key.sink] += count_rows_between(context.home, key.dataset, key.source, after, state.high_water)
    message = f"delivering to {', '.join(name for name in sinks if lag[name]) or ', '.join(sinks)}"
    rows = sent = 0
    reported_at = -math.inf

    def add(new_rows: int, new_bytes: int) -> None:
        nonlocal rows, sent, reported_at
        rows, sent = rows + new_rows, sent + new_bytes
        if time.monotonic() - reported_at >= _PROGRESS_SECONDS:
            reported_at = time.monotonic()
            context.progress(message, rows, max(lag.total(), rows), unit="rows", rows=rows, bytes=sent)

    add(0, 0)
    return add


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

    async def deliver(self, name: str) -> SinkReport:
        """Deliver to one sink. Never raises for a failure of the sink; the report has it."""
        report, due = SinkReport(name), list[StreamState]()
        store = self.opened.store
        with self._failure_reported(report, due):
            due += self._find_due(report)
            if not due:
                return report
            async with self.create_sink(name) as sink:
                addresses = self._find_addresses()
                attempts = max(each.stream.attempts if each.stream else 0 for each in due)
                retries = RetryBudget(self.options.max_wait, attempts)
                try:
                    destination = await retries.retry(limit_call()(sink.open))
                except (DestinationDenied, DeliveryStopped, HypError) as error:
                    keys = [each.key for each in due]
                    stream_destination.record_failure(
                        store, keys, addresses, str(error), retry_time(error), retries.failures
                    )
                    raise
                if destination.clock:
                    server_clocks.record_server_clock(store, destination.clock)
                make_round = partial(
                    StreamRound, self.opened.home, store, self.opened.identity, self.lake, self.gate, sink, destination,
                    addresses, self.options.max_wait, self.options.budget, asyncio.Semaphore(_CONCURRENT_STREAMS),
                    self.on_rows,
                )  # fmt: skip
                report.streams += await gather_all(make_round(state.key).run() for state in due)
        return report

    def _find_due(self, report: SinkReport) -> list[StreamState]:
        """Return the streams of a sink that have something to deliver. The others are added to its report."""
        now, due = datetime.now(UTC), []
        for state in read_stream_states(self.opened.home, self.config, self.opened.store, [report.sink]):
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
        return due

    def _find_addresses(self) -> dict[tuple[str, str], str | None]:
        addresses: dict[tuple[str, str], str | None] = {}
        for name, sink_config in self.config.sinks.items():
            address, _ = status.find_address(self.opened.home, self.config, self.opened.identity, name)
            addresses |= {(name, dataset): address for dataset in sink_config.datasets}
        return addresses

    @contextmanager
    def _failure_reported(self, report: SinkReport, due: list[StreamState]) -> Iterator[None]:
        """Put the failure of a sink into its report, and measure the delivery."""
        name = report.sink
        with telemetry.span("sink.tick", component="export", operation="tick", sink=name) as span:
            try:
                yield
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

    @asynccontextmanager
    async def create_sink(self, name: str) -> AsyncIterator[Sink]:
        """Create the configured sink, not opened yet, and close it at the end. Raises HypError if it is unusable."""
        opened = self.opened
        kind, settings = sink_registry.resolve_sink(opened.home, self.config, opened.identity, name, self.on_spark)
        try:
            sink = kind.make(settings)
        except HypError:
            raise
        except Exception as error:
            problem = f"the sink {name} could not be created: {type(error).__name__}: {error}"
            raise HypError(problem, kind="sink_failed") from error
        try:
            yield sink
        finally:
            try:
                await sink.close()
            except Exception as error:
                # Only logged: delivered rows stay delivered.
                telemetry.event("sink.close_failed", component="export", sink=name, error=str(error))


async def gather_all(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Gather the results when all have ended, even if one failed: none continues alone while it holds a lock."""
    results = await asyncio.gather(*coroutines, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


def replay(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Send a dead letter again. args: its `id`. Result: `{id, status: delivered | refused | failed, reason?}`."""
    opened = open_home(context.home)
    with closing(opened.store):
        thread = SparkThread(context)
        driver = Driver(opened, context.config, LakeRowReader(context.home), DeliveryOptions(), thread.on_spark)
        return thread.run(replay_letter(driver, args["id"]))


async def replay_letter(driver: Driver, letter_id: str) -> dict[str, Any]:
    (letter,) = dead_letter_rows.find_letters(driver.opened.store, [letter_id])
    if letter.key.sink not in driver.config.sinks:
        raise HypError(f"the dead letter belongs to the sink {letter.key.sink}, which is not in the config")
    with await stream_locks.acquire_lock(driver.opened.home, letter.key, _REPLAY_WAIT_SECONDS):
        # Load it again: the previous holder of the lock may have delivered or dropped it.
        (letter,) = dead_letter_rows.find_letters(driver.opened.store, [letter.id])
        async with driver.create_sink(letter.key.sink) as sink:
            try:
                refusal = await _send_letter(driver, sink, letter)
            except (StreamHeld, DeliveryStopped, DestinationDenied) as error:
                return {"id": letter.id, "status": "failed", "reason": str(error)}
    return {"id": letter.id, **({"status": "refused", "reason": refusal} if refusal else {"status": "delivered"})}


async def _send_letter(driver: Driver, sink: Sink, letter: DeadLetter) -> str | None:
    """Send the letter. Returns the reason if it was refused again, None if the destination has it now."""
    retries = RetryBudget(_REPLAY_WAIT_SECONDS)
    destination = await retries.retry(limit_call()(sink.open))
    store = driver.opened.store
    with store.reading() as connection:
        stream = streams.load_stream(connection, letter.key)
        body = dead_letters.load_payload(connection, letter.id)
    assert stream is not None
    bound = stream_destination.bound_to(stream)
    if not destination.is_same(bound):
        raise stream_destination.hold_elsewhere(stream, destination)
    if bound != destination:
        stream_destination.record_destination(driver.opened.home, store, stream, destination)
    planned = PlannedChunk(letter.chunk_id, letter.incarnation, letter.after, letter.last, letter.rows)
    chunk = to_chunk(letter.key, driver.opened.identity, planned)
    rows = letter.rows
    if not await retries.retry(limit_call()(partial(sink.has_chunk, chunk))):
        source = RowSource(driver.lake, driver.gate, sink, letter.key)
        stored = None if body is None else dead_letter_rows.unpack_rows(body)
        prepared = await asyncio.to_thread(source.prepare, letter.after, letter.last, stored=stored)
        rows = len(prepared.seqs)
        if not rows and prepared.gate_report.withheld:
            raise DeliveryStopped(
                "withheld", "the privacy settings exclude its folder or session from export; the dead letter is kept"
            )
        if rows:
            ship = partial(sink.ship, chunk, prepared.payload, min(stream.watermark or 0, letter.after))
            try:
                await retries.retry(limit_call(ChunkRefused, RangeOverlap)(ship))
            except ChunkRefused as reason:
                again = replace(letter, reason=str(reason), at=schema.utc_now())
                with store.transaction() as connection:
                    dead_letters.add_letter(connection, again, dead_letter_rows.pack_rows(prepared.table))
                return str(reason)
            except RangeOverlap as overlap:
                if missing_chunks(letter.key, chunk.gateway_id, planned, prepared.seqs, overlap.covered):
                    raise DeliveryStopped(
                        "destination_contradicts", "the destination has a part of the dead letter"
                    ) from None
    _after_answer()
    _finish_letter(driver.opened, letter, rows)
    return None


def _finish_letter(opened: OpenHome, letter: DeadLetter, rows: int) -> None:
    with opened.store.transaction() as connection:
        dead_letters.drop_letter(connection, letter.id)
        streams.add_exported_rows(connection, letter.key, rows)
        streams.advance_delivery_step(connection)
    mirror.write_mirror(opened.home.mirror, opened.store)
    _after_commit()


class SparkThread:
    """Runs a coroutine on another thread, and its Spark work on the calling thread.

    py4j ties a Python thread to a JVM thread, which carries the job group, so the event loop hands its Spark work over.
    Cancelling the job cancels the loop, which ends every wait and every request immediately.
    """

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        result: Future[T] = Future()
        loop = asyncio.new_event_loop()
        task = loop.create_task(coroutine)

        def run_loop() -> None:
            asyncio.set_event_loop(loop)
            try:
                result.set_result(loop.run_until_complete(task))
            except BaseException as error:
                result.set_exception(Cancelled("the delivery was cancelled") if task.cancelled() else error)
            finally:
                _close_loop(loop)
                self._work.put(None)

        # In the job's context, so that both threads share its telemetry and its crash point.
        run = contextvars.copy_context().run
        thread = threading.Thread(target=run, args=(run_loop,), name="export", daemon=True)
        thread.start()
        try:
            while True:
                self._context.check_cancelled()
                with suppress(queue.Empty):
                    if (work := self._work.get(timeout=_POLL_SECONDS)) is None:
                        break
                    work()
        except BaseException:
            loop.call_soon_threadsafe(task.cancel)
            # Serve until the cancelled loop has ended, so that none of its tasks waits forever.
            while (work := self._work.get()) is not None:
                work()
            raise
        finally:
            thread.join()
        return result.result()

    def on_spark(self, work: Callable[[SparkSession], T]) -> Awaitable[T]:
        done: Future[T] = Future()

        def run() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(work(self._context.spark))
            except BaseException as error:
                done.set_exception(error)

        self._work.put(run)
        return asyncio.wrap_future(done)


def _close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the tasks that are left, wait for them and for the loop's threads, and close the loop."""
    if left := asyncio.all_tasks(loop):
        for each in left:
            each.cancel()
        loop.run_until_complete(asyncio.wait(left))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
