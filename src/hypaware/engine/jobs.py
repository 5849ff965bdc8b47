"""The seam between whoever asks for a job, the engine that runs it, and the job itself.

A job is a plain function. The engine does not know what jobs mean: it is given the dotted name of a module
with `resolve(name) -> Job` and `on_open(context)`, which the first job of a session calls once the lake is
ours and before anything reads it. Whoever asks sees the events of a job in the order in which it produced
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hypaware.engine import importing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hypaware.config import Config
    from hypaware.home import Home

JOBS_MODULE = "hypaware.jobs"


class JobContext(Protocol):
    @property
    def home(self) -> Home: ...

    @property
    def config(self) -> Config: ...

    @property
    def spark(self) -> SparkSession:
        """Opened on first use; the lake's lock is held by its JVM from then on."""
        ...

    def progress(
        self, message: str, done: float | None = None, total: float | None = None, **facts: object
    ) -> None: ...

    def emit(self, chunk: bytes) -> None:
        """Result bytes, in order. Blocks while the reader is behind."""
        ...

    def note(self, message: str) -> None:
        """A line for the user's stderr."""
        ...

    def check_cancelled(self) -> None:
        """Raises errors.Cancelled."""
        ...


Job = Callable[[JobContext, dict[str, Any]], dict[str, Any]]
"""Arguments and result are JSON."""


Event = Mapping[str, Any] | bytes
"""`{"event": "progress", "message", "done", "total", …facts}`, `{"event": "note", "message"}`, or result
bytes."""

OnEvent = Callable[[Event], None]


def unheard(event: Event) -> None:
    """For callers that only want the result."""


@dataclass(frozen=True)
class JobTable:
    resolve: Callable[[str], Job]
    on_open: Callable[[JobContext], None]


def load_table(module: str) -> JobTable:
    """Imports the module only when the first job comes: an engine that is only asked for its status stays
    small."""
    from importlib import import_module

    def resolve(name: str) -> Job:
        with importing.alone:
            job: Job = import_module(module).resolve(name)
        return job

    def on_open(context: JobContext) -> None:
        import_module(module).on_open(context)

    return JobTable(resolve, on_open)
