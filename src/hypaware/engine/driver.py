"""The one Spark session of a process, and through its JVM the lake: opened when the first job asks for it.

Order of things: session, lake lock (held by the JVM for its life), the `on_open` step, and only then any
job's use of the lake. A step that fails leaves the ones before it in place, and the next job goes on from
there. While one job opens, the others wait and stay cancellable.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hypaware import durable
from hypaware.errors import Retryable
from hypaware.home import Home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hypaware.config import EngineConfig
    from hypaware.engine.jobs import JobContext
    from hypaware.engine.session import EngineSession

_SAY_AFTER_SECONDS = 1.0
_LOOK_AROUND_SECONDS = 0.5
_LOOK_UP_SECONDS = 0.1
_DYING_SECONDS = 1.0

Wait = Callable[[float], None]
"""Called again and again with the seconds waited so far; gives up by raising."""


class Spark(Protocol):
    """A Spark session and its JVM's hold on the lake. `open_spark` gives the real one."""

    @property
    def session(self) -> SparkSession: ...

    @property
    def jvm_pid(self) -> int: ...

    @property
    def alive(self) -> bool: ...

    def own_lake(self, wait: Wait) -> None: ...

    def make_active(self) -> None: ...

    def close(self) -> None: ...


class GiveWay(BaseException):
    """Leaves a job that has not touched the lake yet, because an engine has it. No job may catch this."""


class Driver:
    def __init__(
        self,
        home: Home,
        open_spark: Callable[[], Spark],
        on_open: Callable[[JobContext], None],
        give_way: Callable[[], bool] = lambda: False,
    ) -> None:
        self._home = home
        self._open_spark = open_spark
        self._on_open = on_open
        self._give_way = give_way
        self._opening = threading.Lock()
        self._settling = threading.Lock()
        self._spark: Spark | None = None
        self._owns_lake = False
        self._settled = False

    @property
    def jvm_pid(self) -> int | None:
        return None if self._spark is None else self._spark.jvm_pid

    @property
    def owns_lake(self) -> bool:
        return self._owns_lake

    @property
    def lost(self) -> bool:
        """Its JVM died. Other jobs may hold objects of it, so that only a new process starts clean."""
        return self._spark is not None and not self._spark.alive

    def lost_after_all(self) -> bool:
        """For a job that failed on its way to the JVM: a dying JVM hangs up a moment before it is gone."""
        deadline = time.monotonic() + _DYING_SECONDS
        while self._spark is not None and not self.lost and time.monotonic() < deadline:
            time.sleep(_LOOK_UP_SECONDS)
        return self.lost

    def spark(self, job: JobContext) -> SparkSession:
        """The session, with the lake owned by its JVM. `settle` must follow before the lake is used."""
        with _turn(self._opening, job):
            if self.lost:
                raise died()
            if self._spark is None:
                job.progress("starting Spark")
                self._spark = self._open_spark()
            if not self._owns_lake:
                self._spark.own_lake(self._patience(job))
                self._owns_lake = True
                owner = {"pid": os.getpid(), "jvm_pid": self._spark.jvm_pid}
                durable.make_dir(self._home.lake_owner.parent)
                durable.write_file(self._home.lake_owner, json.dumps(owner).encode())
            return self._spark.session

    def adopt_thread(self) -> None:
        """Every job has a thread of its own, and so has the JVM for it: that one knows no session until it is told."""
        if self._spark is not None:
            self._spark.make_active()

    def settle(self, job: JobContext) -> None:
        """Runs the `on_open` step, unless a job before this one has brought it to its end."""
        with _turn(self._settling, job):
            if not self._settled:
                self._on_open(job)
                self._settled = True

    def cancel(self, group: str) -> None:
        """Ends the Spark jobs of a group, also those that it is about to start."""
        if self._spark is None or self.lost:
            return
        # A JVM that dies just now has cancelled everything.
        with suppress(Exception):
            self._spark.session.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(group)

    def close(self) -> None:
        if self._spark is None:
            return
        if self._owns_lake:
            self._home.lake_owner.unlink(missing_ok=True)
        self._spark.close()
        if self._owns_lake:
            _close_catalog(self._home.catalog)
        self._spark, self._owns_lake, self._settled = None, False, False

    def _patience(self, job: JobContext) -> Wait:
        said = False
        look_again = 0.0

        def wait(seconds: float) -> None:
            nonlocal said, look_again
            job.check_cancelled()
            if seconds >= look_again:
                look_again = seconds + _LOOK_AROUND_SECONDS
                if self._give_way():
                    raise GiveWay
            if seconds >= _SAY_AFTER_SECONDS and not said:
                said = True
                job.note(f"waiting for {_owner(self._home)} that is using this lake")

        return wait


def _close_catalog(path: Path) -> None:
    """A JVM ends without closing its databases. Whoever looks into the catalog afterwards would have to write into what
    it left beside it, and a dry run must not: so that is written back and removed, as the last to close does."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as catalog:
        catalog.execute("SELECT 1 FROM sqlite_master").fetchone()


def died() -> Retryable:
    return Retryable(
        "Spark's JVM died (engine/jvm.log in the home may say why); nothing acknowledged is lost: run it again",
        kind="engine_died",
    )


def _owner(home: Home) -> str:
    try:
        return f"process {json.loads(home.lake_owner.read_bytes())['pid']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


@contextmanager
def _turn(lock: threading.Lock, job: JobContext) -> Iterator[None]:
    while not lock.acquire(timeout=_LOOK_UP_SECONDS):
        job.check_cancelled()
    try:
        yield
    finally:
        lock.release()


class LocalSpark:
    """A session of this home, started by this process."""

    def __init__(self, home: Home, opened: EngineSession) -> None:
        self._home = home
        self._opened = opened

    @property
    def session(self) -> SparkSession:
        return self._opened.spark

    @property
    def jvm_pid(self) -> int:
        return self._opened.jvm_pid

    @property
    def alive(self) -> bool:
        return self._opened.process.alive

    def make_active(self) -> None:
        session = self._opened.spark
        session._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)

    def own_lake(self, wait: Wait) -> None:
        from hypaware.engine import lock

        lock.acquire(self._opened.jvm, self._home.lake_lock, wait)

    def close(self) -> None:
        self._opened.close()


def spark_opener(home: Home, engine: EngineConfig) -> Callable[[], Spark]:
    def open_spark() -> Spark:
        from hypaware.engine import archive
        from hypaware.engine.session import open_session
        from hypaware.home import cache_dir

        opened = LocalSpark(home, open_session(home, master=engine.master, memory=engine.memory))
        # Where the install step had none, or another Java or Spark has come since: the next start is quick again.
        archive.ensure_in_background(cache_dir())
        return opened

    return open_spark
