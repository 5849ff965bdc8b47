"""The interface between the caller of a job, the engine that runs it, and the job.

A job is a plain function. The engine does not depend on the jobs: it gets the dotted name of a module with `JOBS`
(name → the function, or its "module:attribute") and `on_open(context)`. The first job of a session calls `on_open`
after the lake lock is acquired and before the lake is read. The caller receives the events of a job in order.

The start of each running job is known to the others: files that it may be reading are kept until it ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hypaware.config import Config
    from hypaware.home import Home

JOBS_MODULE = "hypaware.jobs"

# Held while a job imports modules in its thread. A package that imports its own submodules, as PySpark does, must not
# be imported by two threads at once: Python detects the deadlock and gives one of them a partially initialized module.
# The lock is reentrant, because an import can trigger further imports.
import_lock = threading.RLock()
_POLL_SECONDS = 0.05
_job_starts: dict[object, float] = {}
_job_starts_lock = threading.Lock()


class JobContext(Protocol):
    @property
    def home(self) -> Home: ...

    @property
    def config(self) -> Config: ...

    @property
    def spark(self) -> SparkSession:
        """The session, which is opened on first use. Its JVM holds the lake lock from then on."""
        ...

    def progress(
        self, message: str, done: float | None = None, total: float | None = None, **facts: object
    ) -> None: ...

    def emit(self, chunk: bytes) -> None:
        """Send result bytes, in order. Blocks while the reader is behind."""
        ...

    def note(self, message: str) -> None:
        """Send a line for the user's stderr."""
        ...

    def check_cancelled(self) -> None:
        """Raise errors.Cancelled if the job was cancelled."""
        ...


Job = Callable[[JobContext, dict[str, Any]], dict[str, Any]]
"""A job. Its arguments and its result are JSON."""
Event = Mapping[str, Any] | bytes
"""`{"event": "progress", "message", "done", "total", ...}`, `{"event": "note", "message"}`, or result bytes."""
OnEvent = Callable[[Event], None]


def ignore_events(event: Event) -> None:
    """Ignore events, for callers that need only the result."""


@contextmanager
def track_job() -> Iterator[None]:
    """Register a running job of the engine. Files that it may be reading are kept until it ends."""
    job = object()
    with _job_starts_lock:
        _job_starts[job] = time.time()
    try:
        yield
    finally:
        with _job_starts_lock:
            del _job_starts[job]


def oldest_job_start() -> float:
    """Return the start time of the oldest running job, or the current time if there is none."""
    with _job_starts_lock:
        return min(_job_starts.values(), default=time.time())


def wait_for_other_jobs(moment: float, seconds: float, check_cancelled: Callable[[], None]) -> bool:
    """Wait for the other jobs that started before a time. Return whether all of them have ended."""
    deadline = time.monotonic() + seconds
    while True:
        with _job_starts_lock:
            others_run = sum(start <= moment for start in _job_starts.values()) > 1
        if not others_run or time.monotonic() >= deadline:
            return not others_run
        check_cancelled()
        time.sleep(_POLL_SECONDS)


def oldest_other_job_start(mine: float) -> float:
    """Return the start time of the oldest other job, for a job that started just before `mine`, or the current time."""
    with _job_starts_lock:
        starts = sorted(_job_starts.values())
    own = max((each for each in starts if each <= mine), default=None)
    if own is not None:
        starts.remove(own)
    return min(starts, default=time.time())
