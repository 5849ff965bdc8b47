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
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypaware import __version__, faults, telemetry
from hypaware.config.shared_lake import find_shared_lake, require_supported
from hypaware.engine.jobs import Job, import_lock, track_job
from hypaware.engine.lake_owner import LakeOwner, YieldToEngine, engine_died
from hypaware.engine.protocol import JobConnection, Message, ProtocolError, encode_error, encode_frame, hello_message
from hypaware.errors import Cancelled, HypError, NotReady
from hypaware.home import Home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hypaware.config import Config


log = logging.getLogger("hypaware.engine")
LOG_FORMAT = "%(asctime)s %(process)d %(levelname)s %(message)s"
CANCEL_SECONDS = 10.0
_FIRST_JOB_SECONDS = 10.0
# A command often sends several jobs, one after another.
_WANTED_IDLE_SECONDS = 1.0
# How long the tasks of a cancelled job may take to end. PySpark kills the worker of such a task after two seconds.
_TASK_END_SECONDS = 5.0
_TASK_POLL_SECONDS = 0.1
_JSON_SCALARS = (str, int, float, bool, type(None))


@dataclass(eq=False)
class JobRun:
    """One job that is running, and its `JobContext`. If the caller disconnects, the job is cancelled."""

    id: str
    name: str
    connection: JobConnection
    home: Home
    lake_owner: LakeOwner
    config: Config = field(init=False)
    began: float = field(default_factory=time.monotonic)
    cancelled: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    """Set when only the result remains to be sent."""
    _spark: SparkSession | None = None

    @property
    def spark(self) -> SparkSession:
        if self._spark is None:
            require_supported(self.config.lake)
            self._spark = self.lake_owner.spark(self)
            try:
                # The job group applies to this thread, which py4j pins to a thread of the JVM.
                self._spark.sparkContext.setJobGroup(self.id, self.name)
                self.lake_owner.activate_session()
                self.check_cancelled()
                self.lake_owner.recover(self)
            except BaseException:
                self._spark = None
                raise
        return self._spark

    def progress(self, message: str, done: float | None = None, total: float | None = None, **facts: object) -> None:
        fields = {name: fact if isinstance(fact, _JSON_SCALARS) else str(fact) for name, fact in facts.items()}
        self._send({"type": "progress", "message": message, "done": done, "total": total, **fields})

    def emit(self, chunk: bytes) -> None:
        self._send(chunk)

    def note(self, message: str) -> None:
        self._send({"type": "note", "message": message})

    def check_cancelled(self) -> None:
        if self.cancelled.is_set():
            raise Cancelled(f"{self.name} was cancelled")

    def _send(self, message: Message | bytes) -> None:
        self.check_cancelled()
        try:
            if isinstance(message, dict):
                self.connection.send(message)
            else:
                self.connection.send_bytes(message)
        except OSError:
            self.cancelled.set()
            self.check_cancelled()


class JobServer:
    def __init__(
        self,
        home: Home,
        jobs: str,
        config: Callable[[], Config],
        lake_owner: LakeOwner,
        log_file: Path,
        on_stop: Callable[[float | None], None] = lambda grace: None,
    ) -> None:
        self.home = home
        self.lake_owner = lake_owner
        self._jobs = jobs
        self._config = config
        self._log_file = log_file
        self._on_stop = on_stop
        self._changed = threading.Condition()
        self._runs: dict[str, JobRun] = {}
        self._connections: set[JobConnection] = set()
        self._idle_since = time.monotonic()
        self._served = False
        self._cancelled_any = False
        self._ending = False
        self._began = time.monotonic()

    def attach(self, sock: socket.socket) -> None:
        """Serve one connection in its own thread."""
        connection = JobConnection(sock)
        threading.Thread(target=self._serve, args=(connection,), name="connection", daemon=True).start()

    def end_if_idle(self, seconds: float) -> bool:
        """Stop accepting jobs if none has run for this time. The wait for the first job is longer, because the caller
        that started the engine is about to send one. If another machine waits for the lake, the time is short."""
        if self.lake_owner.is_wanted:
            seconds = min(seconds, _WANTED_IDLE_SECONDS)
        with self._changed:
            timeout = seconds if self._served else max(seconds, _FIRST_JOB_SECONDS)
            if self._runs or time.monotonic() - self._idle_since < timeout:
                return False
            self._ending = True
            return True

    def end_if_blocked(self) -> bool:
        """Stop accepting jobs if no job runs, but tasks of a cancelled one still do.

        Spark can only ask a task to end, and a tight loop never checks. Such a task would keep a core from every later
        job, so the engine gives up its JVM, and the next job starts another.
        """
        with self._changed:
            if not self._cancelled_any or self._runs or time.monotonic() - self._idle_since < _TASK_END_SECONDS:
                return False
            self._cancelled_any = False
        blocked = self.lake_owner.running_tasks() > 0
        with self._changed:
            self._ending = self._ending or (blocked and not self._runs)
            self._cancelled_any = self._cancelled_any or blocked
            return self._ending and blocked

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
            "jvm_pid": self.lake_owner.jvm_pid,
            "owns_lake": self.lake_owner.owns_lake,
            "log": str(self._log_file),
        }

    def _serve(self, connection: JobConnection) -> None:
        run: JobRun | None = None
        with self._changed:
            self._connections.add(connection)
        try:
            connection.send(hello_message(os.getpid()))
            while isinstance(message := connection.receive(), dict):
                match message:
                    case {"type": "job"} if run is None:
                        name, run_id = str(message.get("job")), secrets.token_hex(6)
                        run = JobRun(run_id, name, connection, self.home, self.lake_owner)
                        thread_name = f"{name} {run_id}"
                        threading.Thread(target=self._run, args=(run, message), name=thread_name, daemon=True).start()
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

    def _run(self, run: JobRun, request: Message) -> None:
        """Accept a job, run it and send its outcome. Refuse it if the engine is about to end or the caller gave up."""
        self._wait_for_cancelled_tasks()
        with self._changed:
            if self._ending or run.cancelled.is_set():
                run.done.set()
                with suppress(OSError):
                    run.connection.send({"type": "refused"})
                return
            self._runs[run.id] = run
        try:
            run.connection.send({"type": "accepted", "id": run.id})
            log.info("%s %s started", run.name, run.id)
            try:
                crash_at = request.get("crash_at")
                with faults.arm(crash_at), telemetry.use_run_id(request.get("run_id")), track_job():
                    run.config = self._config()
                    job = self._find_job(run.name)
                    if crash_at:
                        faults.check_spec(crash_at)
                    result = job(run, request.get("args") or {})
                outcome = encode_frame({"type": "result", "result": result})
            except YieldToEngine:
                outcome = encode_frame({"type": "handover"})
            except BaseException as error:
                # This includes a result that cannot be encoded.
                outcome = encode_frame(encode_error(self._failure(run, error)))
            run.done.set()
            run.connection.send_frame(outcome)
            log.info("%s %s finished", run.name, run.id)
        except OSError:
            log.info("%s %s finished after its caller had disconnected", run.name, run.id)
        finally:
            self._forget(run)
            telemetry.flush()

    def _find_job(self, name: str) -> Job:
        # Modules are imported when the first job arrives. Until then the engine stays small.
        jobs = import_module(self._jobs)
        job: Job | str | None = _BUILT_IN_JOBS.get(name) or jobs.JOBS.get(name)
        if job is None:
            message = f"the engine has no job {name!r}; it may be older than this command"
            raise HypError(message, repair="hyp engine stop")
        embedded_only: Mapping[str, str] = getattr(jobs, "EMBEDDED_ONLY", {})
        if name in embedded_only and find_shared_lake(self.home) is not None:
            raise NotReady(
                f"{name} does not support a shared lake yet (lake.catalog): {embedded_only[name]}",
                kind="shared_lake_unsupported",
            )
        if not isinstance(job, str):
            return job
        module, _, attribute = job.partition(":")
        with import_lock:
            found: Job = getattr(import_module(module), attribute)
        return found

    def _failure(self, run: JobRun, error: BaseException) -> HypError:
        """Return the error for the caller. Only an unexpected error is logged with its traceback."""
        if run.cancelled.is_set():
            return error if isinstance(error, Cancelled) else Cancelled(f"{run.name} was cancelled")
        if isinstance(error, HypError):
            return error
        log.error("%s %s failed", run.name, run.id, exc_info=error)
        if self.lake_owner.confirm_lost():
            return engine_died()
        if explained := self._explain_storage_error(error):
            return explained
        return HypError(
            f"{run.name} failed with an unexpected {type(error).__name__}; see {self._log_file}",
            kind="internal",
        )

    def _explain_storage_error(self, error: BaseException) -> HypError | None:
        with suppress(HypError):
            if (shared := find_shared_lake(self.home)) is not None:
                from hypaware.engine.shared_session import explain_storage_error

                return explain_storage_error(shared, error)
        return None

    def _wait_for_cancelled_tasks(self) -> None:
        """Return when the tasks of cancelled jobs have ended, another job runs, or the engine is about to end."""
        while self._cancelled_any and not self._runs and not self._ending and self.lake_owner.running_tasks():
            if self.end_if_blocked():
                log.warning("tasks of a cancelled job do not end")
                self._on_stop(0.0)
                return
            time.sleep(_TASK_POLL_SECONDS)

    def _cancel(self, run: JobRun) -> None:
        run.cancelled.set()
        self._cancelled_any = True
        self.lake_owner.cancel(run.id)

    def _forget(self, run: JobRun) -> None:
        with self._changed:
            del self._runs[run.id]
            self._served = True
            self._idle_since = time.monotonic()
            self._changed.notify_all()


_BUILT_IN_JOBS: dict[str, Job] = {
    "ping": lambda context, args: {"pid": os.getpid()},
    # Opens Spark and the lake, so that the next job starts fast.
    "warm": lambda context, args: {"pid": os.getpid(), "spark": context.spark.version},
}
