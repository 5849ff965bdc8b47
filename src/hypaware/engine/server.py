"""Runs the jobs that arrive over connections, each in its own thread.

The engine process uses it for connections to its socket, and an inline command for a socket pair within the process.

A job is accepted or refused under one lock: `accepted` is sent before the job begins, and every job is refused once
`_ending` is set. So a caller that did not receive `accepted` knows that nothing was done, and no job is lost when an
engine stops.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypaware import __version__, crash_points, faults, telemetry
from hypaware.engine.context import Context
from hypaware.engine.driver import Driver, GiveWay, died
from hypaware.engine.jobs import Job, JobContext, JobTable
from hypaware.engine.protocol import Connection, Message, ProtocolError, error_message, frame, hello
from hypaware.errors import Cancelled, HypError
from hypaware.home import Home

if TYPE_CHECKING:
    from hypaware.config import Config

log = logging.getLogger("hypaware.engine")
LOG_FORMAT = "%(asctime)s %(process)d %(levelname)s %(message)s"

CANCEL_SECONDS = 10.0
_FIRST_JOB_SECONDS = 10.0


@dataclass(frozen=True, eq=False)
class Run:
    """One job that is running."""

    id: str
    name: str
    connection: Connection
    began: float = field(default_factory=time.monotonic)
    cancelled: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    """Set when only the result remains to be sent."""


class Server:
    def __init__(
        self,
        home: Home,
        jobs: JobTable,
        config: Callable[[], Config],
        driver: Driver,
        log_file: Path,
        on_stop: Callable[[float | None], None] = lambda grace: None,
    ) -> None:
        self.home = home
        self.driver = driver
        self._jobs = jobs
        self._config = config
        self._log_file = log_file
        self._on_stop = on_stop
        self._changed = threading.Condition()
        self._runs: dict[str, Run] = {}
        self._connections: set[Connection] = set()
        self._idle_since = time.monotonic()
        self._served = False
        self._ending = False
        self._began = time.monotonic()

    def attach(self, sock: socket.socket) -> None:
        """Serve one connection in its own thread."""
        connection = Connection(sock)
        threading.Thread(target=self._serve, args=(connection,), name="connection", daemon=True).start()

    def end_if_idle(self, seconds: float) -> bool:
        """Stop accepting jobs if none has run for this time. The wait for the first job is longer, because the caller
        that started the engine is about to send one."""
        with self._changed:
            timeout = seconds if self._served else max(seconds, _FIRST_JOB_SECONDS)
            if self._runs or time.monotonic() - self._idle_since < timeout:
                return False
            self._ending = True
            return True

    def drain(self, grace: float | None, cancel_seconds: float = CANCEL_SECONDS) -> None:
        """Stop accepting jobs and wait for the running ones for `grace` seconds (None: unlimited). Then cancel them,
        wait a short time, and close the connections."""
        with self._changed:
            self._ending = True
            self._changed.wait_for(lambda: not self._runs, grace)
            remaining = list(self._runs.values())
        for run in remaining:
            log.info("cancelling %s %s because the engine is stopping", run.name, run.id)
            self._cancel(run)
        with self._changed:
            self._changed.wait_for(lambda: not self._runs, cancel_seconds)
            connections = list(self._connections)
        for connection in connections:
            connection.shut_down()

    def status(self) -> dict[str, Any]:
        now = time.monotonic()
        with self._changed:
            runs = [
                {"id": run.id, "job": run.name, "seconds": round(now - run.began, 3)}
                for run in self._runs.values()
                if not run.done.is_set()
            ]
            idle = None if runs else round(now - self._idle_since, 3)
        return {
            "pid": os.getpid(),
            "version": __version__,
            "uptime_seconds": round(now - self._began, 3),
            "idle_seconds": idle,
            "jobs": runs,
            "jvm_pid": self.driver.jvm_pid,
            "owns_lake": self.driver.owns_lake,
            "log": str(self._log_file),
        }

    def _serve(self, connection: Connection) -> None:
        run: Run | None = None
        with self._changed:
            self._connections.add(connection)
        try:
            connection.send(hello(os.getpid()))
            while isinstance(message := connection.receive(), dict):
                match message:
                    case {"type": "job"} if run is None:
                        run = self._accept(connection, message)
                    case {"type": "cancel"} if run is not None:
                        self._cancel(run)
                    case {"type": "status"}:
                        connection.send({"type": "status", "status": self.status()})
                    case {"type": "stop"}:
                        self._on_stop(message.get("grace"))
                    case _:
                        raise ProtocolError(f"unexpected message {message['type']}")
        except (OSError, ProtocolError) as error:
            log.info("connection closed: %s", error)
        finally:
            if run is not None and not run.done.is_set():
                log.info("the caller of %s %s disconnected", run.name, run.id)
                self._cancel(run)
            connection.shut_down()
            with self._changed:
                self._connections.discard(connection)
            connection.close()

    def _accept(self, connection: Connection, request: Message) -> Run | None:
        run = Run(secrets.token_hex(6), str(request.get("job")), connection)
        with self._changed:
            if self._ending:
                connection.send({"type": "refused"})
                return None
            self._runs[run.id] = run
        try:
            connection.send({"type": "accepted", "id": run.id})
        except OSError:
            self._forget(run)
            raise
        threading.Thread(target=self._run, args=(run, request), name=f"{run.name} {run.id}", daemon=True).start()
        return run

    def _run(self, run: Run, request: Message) -> None:
        log.info("%s %s started", run.name, run.id)
        try:
            outcome = self._outcome(run, request)
            run.done.set()
            run.connection.send_frame(outcome)
            log.info("%s %s finished", run.name, run.id)
        except OSError:
            log.info("%s %s finished after its caller had disconnected", run.name, run.id)
        finally:
            self._forget(run)
            telemetry.flush()

    def _outcome(self, run: Run, request: Message) -> bytes:
        """Run the job and return its last frame. A result that cannot be encoded is a failure of the job."""
        try:
            crash_at = request.get("crash_at")
            with faults.armed(crash_at), telemetry.joined_to(request.get("run_id")):
                context = Context(
                    run.id, run.name, self.home, self._config(), self.driver, run.connection, run.cancelled
                )
                job = self._resolve(run.name)
                if crash_at:
                    crash_points.check(crash_at)
                result = job(context, request.get("args") or {})
            return frame({"type": "result", "result": result})
        except GiveWay:
            return frame({"type": "handover"})
        except BaseException as error:
            return frame(error_message(self._failure(run, error)))

    def _resolve(self, name: str) -> Job:
        return _BUILT_IN.get(name) or self._jobs.resolve(name)

    def _failure(self, run: Run, error: BaseException) -> HypError:
        """Return the error for the caller. Only an unexpected error is logged with its traceback."""
        if run.cancelled.is_set():
            return Cancelled(f"{run.name} was cancelled")
        if isinstance(error, HypError):
            return error
        log.error("%s %s failed", run.name, run.id, exc_info=error)
        if self.driver.confirm_lost():
            return died()
        return HypError(
            f"{run.name} failed with an unexpected {type(error).__name__}; see {self._log_file}",
            kind="internal",
        )

    def _cancel(self, run: Run) -> None:
        run.cancelled.set()
        self.driver.cancel(run.id)

    def _forget(self, run: Run) -> None:
        with self._changed:
            del self._runs[run.id]
            self._served = True
            self._idle_since = time.monotonic()
            self._changed.notify_all()


def _ping(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    return {"pid": os.getpid()}


def _warm(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Open Spark and the lake, so that the next job starts fast."""
    return {"pid": os.getpid(), "spark": context.spark.version}


_BUILT_IN: dict[str, Job] = {"ping": _ping, "warm": _warm}
