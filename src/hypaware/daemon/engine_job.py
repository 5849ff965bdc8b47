"""Run an engine job that can be cancelled at any moment, even while it is only queued.

The thread that calls the job blocks on its connection. To cancel, another thread sends the cancel message over the same
connection, gives the engine a moment to end the job, and then closes the connection, which also cancels the job.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from typing import Any

from hypaware import telemetry
from hypaware.daemon.offload import on_thread
from hypaware.engine import launch
from hypaware.engine.call import NotAccepted, call
from hypaware.engine.client import ATTEMPTS
from hypaware.engine.jobs import OnEvent, unheard
from hypaware.engine.launch import Engine
from hypaware.engine.protocol import Connection
from hypaware.errors import Cancelled, Retryable

CANCEL_SECONDS = 3.0


async def run_job(engine: Engine, name: str, args: dict[str, Any], on_event: OnEvent = unheard) -> dict[str, Any]:
    """Run the job and return its report; raise what the job raised. `on_event` is called on the job's thread."""
    job = _Job(engine, name, args, on_event)
    outcome = on_thread(job.run, f"job {name}")
    # After a cancellation the job's own result is not wanted.
    outcome.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        return await asyncio.shield(outcome)
    except asyncio.CancelledError:
        job.cancel()
        try:
            await asyncio.wait([outcome], timeout=CANCEL_SECONDS)
        finally:
            job.hang_up()
        raise


class _Job:
    def __init__(self, engine: Engine, name: str, args: dict[str, Any], on_event: OnEvent) -> None:
        self._engine = engine
        self._name = name
        self._args = args
        self._on_event = on_event
        self._connection: Connection | None = None
        self._cancelled = threading.Event()

    def run(self) -> dict[str, Any]:
        request = {
            "type": "job",
            "job": self._name,
            "args": self._args,
            "crash_at": os.environ.get("HYP_CRASH_AT"),
            "run_id": telemetry.dev_run_id(),
        }
        for _ in range(ATTEMPTS):
            with launch.ensure(self._engine, self._on_event) as connection:
                self._connection = connection
                # Check after setting the connection: `cancel` sets the event first and then uses the connection.
                if self._cancelled.is_set():
                    break
                with suppress(NotAccepted):
                    return call(connection, self._name, request, self._on_event)
            if self._cancelled.is_set():
                break
        if self._cancelled.is_set():
            raise Cancelled(f"{self._name} was cancelled")
        raise Retryable(
            f"the engine ended {ATTEMPTS} times before it accepted {self._name}; "
            f"see its log {launch.log_file(self._engine.home)}",
            kind="engine_failed",
        )

    def cancel(self) -> None:
        self._cancelled.set()
        if (connection := self._connection) is not None:
            with suppress(OSError):
                connection.send({"type": "cancel"})

    def hang_up(self) -> None:
        if (connection := self._connection) is not None:
            connection.shut_down()
