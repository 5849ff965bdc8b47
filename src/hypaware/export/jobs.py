"""The engine's jobs `export` and `replay`.

Delivery runs on an event loop of its own while Spark stays on the thread that the engine gave the job.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from hypaware.engine.jobs import JobContext
from hypaware.errors import Cancelled, HypError
from hypaware.export import sink_registry
from hypaware.export.driver import DeliveryOptions, Driver, replay_letter
from hypaware.export.rows import LakeRowReader
from hypaware.export.status import StreamState, read_stream_states
from hypaware.lake import read
from hypaware.lake.jobs import flush_datasets, store_incarnation
from hypaware.spool import reader
from hypaware.state.home_opener import open_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hypaware.state.home_opener import OpenHome

T = TypeVar("T")
_POLL_SECONDS = 0.1
_PROGRESS_SECONDS = 0.5


def export(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Deliver to the sinks.

    args: `sinks` (all if None), `max_wait` (seconds), `budget` (intents per stream, None for all), `patient`.
    """
    sinks = sink_registry.select_sinks(context.config, args.get("sinks") or ())
    opened = open_home(context.home)
    if opened.rebuilt:
        context.note(opened.rebuilt)
    try:
        # The lake records this incarnation before anything leaves under it: if state and mirror are lost, the
        # destination must still be queried under it.
        store_incarnation(context, opened.identity)
        errors = _flush_first(context, sinks, patient=bool(args.get("patient")))
        thread = SparkThread(context)
        options = DeliveryOptions(float(args.get("max_wait", 60.0)), args.get("budget"), bool(args.get("patient")))
        progress = _Progress(context, opened, sinks)
        driver = Driver(opened, context.config, LakeRowReader(context.home), options, thread.on_spark, progress.add)
        reports = thread.run(driver.deliver(sinks))
    finally:
        opened.store.close()
    if errors:
        raise errors[0]
    return {"sinks": [report.as_json() for report in reports]}


def _flush_first(context: JobContext, sinks: list[str], *, patient: bool) -> list[HypError]:
    """Commit the spooled rows of the delivered datasets. A failure does not stop the delivery of committed rows.

    A `patient` round leaves rows in the spool that may wait, so that they are delivered under their final ids.
    """
    wanted = sorted({dataset for name in sinks for dataset in context.config.sinks[name].datasets})
    spooled = [
        dataset for dataset in wanted if reader.summarize_spool(context.home, dataset, skip_deferred=patient).segments
    ]
    try:
        if spooled:
            flush_datasets(context, spooled, skip_deferred=patient)
    except Cancelled:
        raise
    except HypError as error:
        context.note(f"rows in the spool could not be committed and are not delivered now: {error.message}")
        return [error]
    return []


class _Progress:
    """Progress of all sinks together, reported from the loop's thread at most twice a second."""

    def __init__(self, context: JobContext, opened: OpenHome, sinks: list[str]) -> None:
        self._context = context
        self._reported_at = time.monotonic()
        self._rows = self._bytes = 0
        states = read_stream_states(context.home, context.config, opened.store, sinks)
        lag = {name: sum(self._lag(state) for state in states if state.key.sink == name) for name in sinks}
        self._total = sum(lag.values())
        self._message = f"delivering to {', '.join(name for name in sinks if lag[name]) or ', '.join(sinks)}"
        self._report()

    def add(self, _sink: str, rows: int, sent: int) -> None:
        self._rows += rows
        self._bytes += sent
        if time.monotonic() - self._reported_at >= _PROGRESS_SECONDS:
            self._report()

    def _report(self) -> None:
        self._reported_at = time.monotonic()
        total = max(self._total, self._rows)
        self._context.progress(self._message, self._rows, total, unit="rows", rows=self._rows, bytes=self._bytes)

    def _lag(self, state: StreamState) -> int:
        key, after = state.key, state.watermark or 0
        if state.removed:
            return 0
        try:
            return read.count_rows_between(self._context.home, key.dataset, key.source, after, state.high_water)
        except (OSError, ValueError):
            return 0  # a damaged lake: the round of that stream reports it


def replay(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Send a dead letter again. args: its `id`. Result: `{id, status: delivered | refused | failed, reason?}`."""
    opened = open_home(context.home)
    try:
        thread = SparkThread(context)
        driver = Driver(opened, context.config, LakeRowReader(context.home), DeliveryOptions(), thread.on_spark)
        return thread.run(replay_letter(driver, args["id"]))
    finally:
        opened.store.close()


class SparkThread:
    """Runs a coroutine on another thread, and its Spark work on the calling thread.

    py4j ties a Python thread to a JVM thread, which carries the job group, so the event loop hands its Spark work over.
    Cancelling the job cancels the loop, which ends every wait and every request at once.
    """

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        result: Future[T] = Future()
        loop = asyncio.new_event_loop()
        task = loop.create_task(coroutine)
        # In the job's context, so that both threads share its telemetry and its crash point.
        run = contextvars.copy_context().run
        thread = threading.Thread(target=run, args=(self._drive, loop, task, result), name="export", daemon=True)
        thread.start()
        try:
            self._serve()
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

    def _drive(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[T], result: Future[T]) -> None:
        asyncio.set_event_loop(loop)
        try:
            result.set_result(loop.run_until_complete(task))
        except BaseException as error:
            result.set_exception(Cancelled("the delivery was cancelled") if task.cancelled() else error)
        finally:
            if left := asyncio.all_tasks(loop):
                for each in left:
                    each.cancel()
                loop.run_until_complete(asyncio.wait(left))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
            self._work.put(None)

    def _serve(self) -> None:
        while True:
            self._context.check_cancelled()
            try:
                work = self._work.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
            if work is None:
                return
            work()
