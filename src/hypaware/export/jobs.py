"""The engine's jobs `export` and `replay`.

Delivery runs on an event loop of its own while Spark stays on the thread that the engine gave the job.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from hypaware.engine.jobs import JobContext
from hypaware.errors import Cancelled, HypError
from hypaware.export import sink_registry
from hypaware.export.driver import DeliveryOptions, Driver, replay_letter
from hypaware.export.rows import LakeRowReader
from hypaware.export.status import read_stream_states
from hypaware.lake import read
from hypaware.lake.jobs import flush_datasets, store_incarnation
from hypaware.spool import reader
from hypaware.state.home_opener import open_home
from hypaware.state.store import load_identity

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hypaware.state.home_opener import OpenHome

T = TypeVar("T")
_POLL_SECONDS = 0.1
_PROGRESS_SECONDS = 0.5
# A home is rolled back once; a second stream may notice it in the next run.
_MOST_INCARNATIONS = 3


def export(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Deliver to the sinks.

    args: `sinks` (all if None), `max_wait` (seconds), `budget` (intents per stream, None for all), `patient`.
    """
    sinks = sink_registry.select_sinks(context.config, args.get("sinks") or ())
    opened = open_home(context.home)
    if opened.rebuilt:
        context.note(opened.rebuilt)
    with closing(opened.store):
        # The lake records this incarnation before anything leaves under it: if state and mirror are lost, the
        # destination must still be queried under it.
        store_incarnation(context, opened.identity)
        options = DeliveryOptions(float(args.get("max_wait", 60.0)), args.get("budget"), bool(args.get("patient")))
        # A patient round leaves rows in the spool that may wait, so that they are delivered under their final ids.
        spooled = [
            dataset
            for dataset in sorted({each for name in sinks for each in context.config.sinks[name].datasets})
            if reader.summarize_spool(context.home, dataset, skip_deferred=options.patient).segments
        ]
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
            reports = thread.run(driver.deliver(sinks))
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


def _progress_reporter(context: JobContext, opened: OpenHome, sinks: list[str]) -> Callable[[int, int], None]:
    """Return a function that adds rows and bytes to the progress of all sinks, reported at most twice a second."""
    lag: Counter[str] = Counter()
    for state in read_stream_states(context.home, context.config, opened.store, sinks):
        key, after = state.key, state.watermark or 0
        # A damaged lake is reported by the round of the stream.
        with suppress(OSError, ValueError):
            if not state.removed:
                lag[key.sink] += read.count_rows_between(context.home, key.dataset, key.source, after, state.high_water)
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


def replay(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Send a dead letter again. args: its `id`. Result: `{id, status: delivered | refused | failed, reason?}`."""
    opened = open_home(context.home)
    with closing(opened.store):
        thread = SparkThread(context)
        driver = Driver(opened, context.config, LakeRowReader(context.home), DeliveryOptions(), thread.on_spark)
        return thread.run(replay_letter(driver, args["id"]))


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
