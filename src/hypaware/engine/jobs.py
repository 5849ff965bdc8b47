"""The interface between the caller of a job, the engine that runs it, and the job.

A job is a plain function. The engine does not depend on the jobs: it gets the dotted name of a module with
`resolve(name) -> Job` and `on_open(context)`. The first job of a session calls `on_open` after the lake lock is
acquired and before the lake is read. The caller receives the events of a job in order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
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
