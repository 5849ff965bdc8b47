"""The Spark session of a process and its ownership of the lake. Both are opened for the first job that needs them.

The order is: session, lake lock, the `on_open` step, and then the job. If a step fails, the earlier ones stay done and
the next job continues from there. While one job opens the lake, the others wait and can be cancelled.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from hypaware.config.shared_lake import SharedLake, find_shared_lake
from hypaware.errors import NotReady, Retryable
from hypaware.home import Home, cache_dir, durable_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hypaware.config import EngineConfig
    from hypaware.engine.jobs import JobContext


_NOTE_AFTER_SECONDS = 1.0
_ENGINE_POLL_SECONDS = 0.5
_POLL_SECONDS = 0.1
_DYING_SECONDS = 1.0
# Longer than a large import takes to give a shared lake back. After that, the caller decides.
_SHARED_WAIT_SECONDS = 1800.0
Wait = Callable[[float, str], None]
"""Called repeatedly with the seconds waited so far, and who holds a shared lake. Raises to stop waiting."""


class SparkHandle(Protocol):
    """A Spark session, and the lake lock of its JVM. `EngineSession` is the real one."""

    @property
    def spark(self) -> SparkSession: ...

    @property
    def jvm_pid(self) -> int: ...

    @property
    def alive(self) -> bool: ...

    @property
    def is_wanted(self) -> bool: ...

    def own_lake(self, wait: Wait) -> None: ...

    def make_active(self) -> None: ...

    def close(self) -> None: ...


class YieldToEngine(BaseException):
    """Ends a job that has not used the lake yet, because an engine owns the lake. Jobs must not catch it."""


class LakeOwner:
    def __init__(
        self,
        home: Home,
        open_spark: Callable[[], SparkHandle],
        on_open: Callable[[JobContext], None],
        should_yield: Callable[[], bool] = lambda: False,
    ) -> None:
        self._home = home
        self._open_spark = open_spark
        self._on_open = on_open
        self._should_yield = should_yield
        self._opening = threading.Lock()
        self._recovering = threading.Lock()
        self._handle: SparkHandle | None = None
        self._lake: SharedLake | None = None
        self.owns_lake = False
        self._recovered = False

    @property
    def jvm_pid(self) -> int | None:
        return None if self._handle is None else self._handle.jvm_pid

    @property
    def is_wanted(self) -> bool:
        """Whether another machine waits for the shared lake that this one holds."""
        return self._handle is not None and self.owns_lake and self._handle.is_wanted

    @property
    def lost(self) -> bool:
        """Whether the JVM died. Other jobs may hold references into it, so only a new process can start again."""
        return self._handle is not None and not self._handle.alive

    def confirm_lost(self) -> bool:
        """Check, for a job that failed, whether the JVM died: it closes its connections shortly before it exits."""
        deadline = time.monotonic() + _DYING_SECONDS
        while self._handle is not None and not self.lost and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return self.lost

    def spark(self, job: JobContext) -> SparkSession:
        """Return the session of the JVM that owns the lake. Call `recover` before the lake is used."""
        with _wait_for_lock(self._opening, job):
            if self.lost:
                raise engine_died()
            if self._handle is None:
                job.progress("starting Spark")
                self._lake = find_shared_lake(self._home)
                self._handle = self._open_spark()
            if find_shared_lake(self._home) != self._lake:
                raise NotReady(
                    "the settings of the lake (lake.catalog) have changed since the engine was started",
                    kind="lake_changed",
                    repair="hyp engine stop",
                )
            if not self.owns_lake:
                self._handle.own_lake(self._wait_for_lake(job))
                self.owns_lake = True
                owner = {"pid": os.getpid(), "jvm_pid": self._handle.jvm_pid}
                durable_files.make_dir(self._home.lake_owner.parent)
                durable_files.write_atomic(self._home.lake_owner, json.dumps(owner).encode())
            return self._handle.spark

    def activate_session(self) -> None:
        """Set the active session of the JVM thread that belongs to this job's thread."""
        if self._handle is not None:
            self._handle.make_active()

    def recover(self, job: JobContext) -> None:
        """Run the `on_open` step, unless an earlier job has completed it."""
        with _wait_for_lock(self._recovering, job):
            if not self._recovered:
                self._on_open(job)
                self._recovered = True

    def cancel(self, group: str) -> None:
        """Cancel the running and future Spark jobs of a group."""
        if self._handle is None or self.lost:
            return
        # If the JVM dies now, everything is cancelled anyway.
        with suppress(Exception):
            self._handle.spark.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(group)

    def running_tasks(self) -> int:
        """Return how many tasks Spark is executing, including those of cancelled jobs that have not ended yet."""
        if self._handle is None or self.lost:
            return 0
        # If the JVM dies now, its tasks end with it.
        with suppress(Exception):
            executors = self._handle.spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
            return sum(executor.numRunningTasks() for executor in executors)
        return 0

    def close(self) -> None:
        if self._handle is None:
            return
        if self.owns_lake:
            self._home.lake_owner.unlink(missing_ok=True)
        self._handle.close()
        if self.owns_lake:
            # Write back and remove the side files of the catalog, which the JVM leaves behind, because it exits without
            # closing. Otherwise the next reader would have to write to them, which a dry run must not do.
            catalog_uri = f"{self._home.catalog.absolute().as_uri()}?mode=rw"
            with suppress(sqlite3.Error), closing(sqlite3.connect(catalog_uri, uri=True)) as catalog:
                catalog.execute("SELECT 1 FROM sqlite_master").fetchone()
        self._handle, self.owns_lake, self._recovered = None, False, False

    def _wait_for_lake(self, job: JobContext) -> Wait:
        noted = False
        next_check = 0.0

        def wait(seconds: float, holder: str) -> None:
            nonlocal noted, next_check
            job.check_cancelled()
            if holder and seconds >= _SHARED_WAIT_SECONDS:
                raise Retryable(
                    f"the shared lake is in use by {holder}; the rows stay in the spool", kind="lake_in_use"
                )
            if seconds >= next_check:
                next_check = seconds + _ENGINE_POLL_SECONDS
                if self._should_yield():
                    raise YieldToEngine
            if seconds >= _NOTE_AFTER_SECONDS and not noted:
                noted = True
                owner = holder or "another process"
                if not holder:
                    with suppress(OSError, ValueError, KeyError, TypeError):
                        owner = f"process {json.loads(self._home.lake_owner.read_bytes())['pid']}"
                job.note(f"waiting for {owner}, which is using the lake")

        return wait


def on_open_step(jobs: str) -> Callable[[JobContext], None]:
    """Return the `on_open` step of a module with jobs, which is imported only then."""
    return lambda context: import_module(jobs).on_open(context)


def engine_died() -> Retryable:
    return Retryable(
        "Spark's JVM died (see engine/jvm.log in the home); no acknowledged data is lost, run the command again",
        kind="engine_died",
    )


@contextmanager
def _wait_for_lock(lock: threading.Lock, job: JobContext) -> Iterator[None]:
    while not lock.acquire(timeout=_POLL_SECONDS):
        job.check_cancelled()
    try:
        yield
    finally:
        lock.release()


def start_spark(home: Home, engine: EngineConfig) -> SparkHandle:
    from hypaware.engine import class_archive
    from hypaware.engine.session import open_session

    opened = open_session(
        home, master=engine.master, memory=engine.memory, secret_file=engine.secret_file, extra=engine.spark
    )
    # Builds a missing archive, for example after an update of Java or Spark, so that the next start is fast.
    class_archive.build_in_background(cache_dir())
    return opened
