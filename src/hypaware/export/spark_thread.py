"""Run delivery on an event loop while Spark stays on the thread that the engine gave the job."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from hypaware.engine.jobs import JobContext
from hypaware.errors import Cancelled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
_POLL_SECONDS = 0.1


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
            self._serve_until_end()
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

    def _serve_until_end(self) -> None:
        """Serve requests until the cancelled loop has ended, so that none of its tasks waits forever."""
        while (work := self._work.get()) is not None:
            work()
