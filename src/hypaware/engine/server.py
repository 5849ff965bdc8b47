"""Runs the jobs that come in over connections, each in a thread of its own, until it is told to end.

Used by the engine process, for what its socket accepts, and by an inline command, for a socket pair with
itself.

A job is taken or refused under one lock: `accepted` goes out before the job begins, and once `ending` is
set every job is refused. So a caller that was not told `accepted` knows that nothing was done, and no job
is ever lost between a caller that finds an engine and the engine that is about to stop.
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
    """One job on its way."""

    id: str
    name: str
    connection: Connection
    began: float = field(default_factory=time.monotonic)
    cancelled: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    """All but the sending of its outcome."""


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
        """Serves one connection, in a thread of its own."""
        connection = Connection(sock)
        threading.Thread(target=self._serve, args=(connection,), name="connection", daemon=True).start()

    def end_if_idle(self, seconds: float) -> bool:
        """Ends the taking of jobs, if there has been none for so long. The first one is waited for a little
        longer: whoever started this engine has one."""
        with self._changed:
            patience = seconds if self._served else max(seconds, _FIRST_JOB_SECONDS)
            if self._runs or time.monotonic() - self._idle_since < patience:
                return False
            self._ending = True
            return True

    def drain(self, grace: float | None, cancel_seconds: float = CANCEL_SECONDS) -> None:
        """Takes no more jobs, lets the running ones end by themselves for a while (None: as long as it
        takes), then cancels them and waits a little longer, and hangs up."""
        with self._changed:
            self._ending = True
            self._changed.wait_for(lambda: not self._runs, grace)
            left = list(self._runs.values())
        for run in left:
            log.info("cancelling %s %s: the engine stops", run.name, run.id)
            self._cancel(run)
        with self._changed:
            self._changed.wait_for(lambda: not self._runs, cancel_seconds)
            connections = list(self._connections)
        for connection in connections:
            connection.cut()

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
                        raise ProtocolError(f"a {message['type']} here")
        except (OSError, ProtocolError) as error:
            log.info("a connection ended: %s", error)
        finally:
            if run is not None and not run.done.is_set():
                log.info("the caller of %s %s is gone", run.name, run.id)
                self._cancel(run)
            connection.cut()
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
        log.info("%s %s begins", run.name, run.id)
        try:
            outcome = self._outcome(run, request)
            run.done.set()
            run.connection.send_frame(outcome)
            log.info("%s %s ends", run.name, run.id)
        except OSError:
            log.info("%s %s ends: nobody is left to hear it", run.name, run.id)
        finally:
            self._forget(run)
            telemetry.flush()

    def _outcome(self, run: Run, request: Message) -> bytes:
        """The last frame of a job. A result that cannot be sent is a failure of the job."""
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
        """What the caller is told. Only what nobody foresaw is written down with its traceback."""
        if run.cancelled.is_set():
            return Cancelled(f"{run.name} was cancelled")
        if isinstance(error, HypError):
            return error
        log.error("%s %s failed", run.name, run.id, exc_info=error)
        if self.driver.lost_after_all():
            return died()
        return HypError(
            f"{run.name} failed with an unforeseen {type(error).__name__}; {self._log_file} has the details",
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
    """Opens Spark and the lake, so that the next job finds them open."""
    return {"pid": os.getpid(), "spark": context.spark.version}


_BUILT_IN: dict[str, Job] = {"ping": _ping, "warm": _warm}
