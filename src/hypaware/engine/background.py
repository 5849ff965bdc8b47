"""Parts of background tasks, for the daemon and the server: a clock, backoff, threads, engine jobs, the task loop.

`run_in_thread` uses its own daemon threads. The event loop's executor would delay the end of the process: a shutdown
must not hang on an engine that is just starting.

A job that must wait for the shared lake of several machines waits without an engine (`lake_turns`).

`run_cancellable_job` runs an engine job that can be cancelled at any moment, even while it is only queued. The thread
that calls the job blocks on its connection. To cancel, another thread sends the cancel message over that connection,
gives the engine a moment to end the job, and then closes the connection, which also cancels the job.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from hypaware.config.shared_lake import find_shared_lake
from hypaware.engine import client
from hypaware.engine.jobs import OnEvent, ignore_events
from hypaware.engine.launcher import Engine
from hypaware.engine.protocol import JobConnection
from hypaware.errors import Cancelled, HypError, Retryable
from hypaware.home import Home

CANCEL_SECONDS = 3.0

T = TypeVar("T")


class TaskClock:
    """Wall time for schedules, monotonic time for intervals, and sleep."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


class Backoff:
    """Doubles the wait after each failure, up to a limit."""

    def __init__(self, first: float = 1.0, longest: float = 300.0) -> None:
        self._first = first
        self._longest = longest
        self._failures = 0

    def failed(self) -> float:
        """Count a failure and return the seconds to wait."""
        self._failures += 1
        return min(self._first * 2.0 ** min(self._failures - 1, 20), self._longest)

    def succeeded(self) -> None:
        self._failures = 0


class PeriodicTask(Protocol):
    @property
    def name(self) -> str:
        """The task's name in log messages."""

    @property
    def retry_on(self) -> tuple[type[Exception], ...]:
        """The errors after which the task is retried with backoff. After others it waits for its next regular check."""

    async def wait(self, retry_in: float | None) -> None:
        """Return when the next check is due; after a failure with backoff, in `retry_in` seconds."""

    async def check(self) -> None:
        """Look whether anything is due, and do it."""

    def record_failure(self, retry_in: float | None) -> None: ...


async def run_periodic_task(task: PeriodicTask, log: logging.Logger, backoff: Backoff | None = None) -> None:
    """Run a task's checks until it is cancelled. A failed check does not end it; repeated errors are logged once."""
    backoff = backoff or Backoff()
    last_message: str | None = None
    retry_in: float | None = None
    while True:
        await task.wait(retry_in)
        try:
            await task.check()
        except Exception as error:
            retry_in = backoff.failed() if isinstance(error, task.retry_on) else None
            retry = "at the next check" if retry_in is None else f"in {retry_in:.0f} s"
            reason = error.message if isinstance(error, HypError) else str(error) or type(error).__name__
            if isinstance(error, HypError) and error.repair:
                reason = f"{reason} (try: {error.repair[0]})"
            message = f"{task.name} failed: {reason}; retrying {retry}"
            if not isinstance(error, HypError | OSError):
                log.exception("%s", message)
            elif message != last_message:
                log.warning("%s", message)
            last_message = message
            task.record_failure(retry_in)
        else:
            backoff.succeeded()
            last_message, retry_in = None, None


class RetryTimer:
    """Decides when a failed step may be retried: `if retry.is_due(): with retry: …`"""

    def __init__(self, clock: TaskClock) -> None:
        self._clock = clock
        self._backoff = Backoff()
        self._next = 0.0

    def is_due(self) -> bool:
        return self._clock.monotonic() >= self._next

    def reset(self) -> None:
        """Allow the next attempt immediately."""
        self._next = 0.0

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, _error: object, _trace: object) -> None:
        if kind is None:
            self._backoff.succeeded()
        else:
            self._next = self._clock.monotonic() + self._backoff.failed()


def run_in_thread(work: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Return a future of the call's result. Cancelling the future does not stop the call; its result is dropped."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def resolve(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        try:
            outcome: tuple[T | None, BaseException | None] = (work(), None)
        except BaseException as error:
            outcome = (None, error)
        # A closed loop raises RuntimeError; nothing waits for the result then.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(resolve, *outcome)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done


async def run_cancellable_job(
    engine: Engine,
    name: str,
    args: dict[str, Any],
    on_event: OnEvent = ignore_events,
    *,
    cancel_seconds: float = CANCEL_SECONDS,
) -> dict[str, Any]:
    """Run the job and return its report; raise its error. `on_event` is called on the job's thread.

    A cancelled job gets `cancel_seconds` to end.

    If another machine holds the shared lake, wait for it first, for a limited time.
    """
    if find_shared_lake(engine.home) is not None and engine.inline is None:
        await _wait_for_turn(engine.home, name)
    cancelled = threading.Event()
    connections: list[JobConnection] = []

    def connect(engine: Engine, on_event: OnEvent) -> JobConnection:
        connection = client.ensure_engine(engine, on_event)
        connections.append(connection)
        # Check after adding the connection: a cancellation sets the event first, then uses the connection.
        if cancelled.is_set():
            connection.close()
            raise Cancelled(f"{name} was cancelled")
        return connection

    outcome = run_in_thread(lambda: client.run_job(engine, name, args, on_event, connect), f"job {name}")
    # After a cancellation the job's own result is not wanted.
    outcome.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        return await asyncio.shield(outcome)
    except asyncio.CancelledError:
        cancelled.set()
        if connections:
            with suppress(OSError):
                connections[-1].send({"type": "cancel"})
        try:
            await asyncio.wait([outcome], timeout=cancel_seconds)
        finally:
            if connections:
                connections[-1].shut_down()
        raise


async def _wait_for_turn(home: Home, name: str) -> None:
    from hypaware.engine import lake_turns  # needs the driver of PostgreSQL

    began = time.monotonic()
    while holder := await run_in_thread(lambda: lake_turns.find_other_holder(home), "lease"):
        if time.monotonic() - began > lake_turns.MAX_WAIT_SECONDS:
            raise Retryable(
                f"{name} waits for the shared lake, which {holder} holds; rows stay in the spool", kind="lake_in_use"
            )
        await asyncio.sleep(lake_turns.POLL_SECONDS)
