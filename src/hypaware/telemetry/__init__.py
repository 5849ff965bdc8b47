"""Telemetry: spans, events and metrics of OpenTelemetry, for those who ask for them.

Off unless `HYP_DEV_TELEMETRY=1` (JSON lines in the home's `telemetry/`) or `OTEL_EXPORTER_OTLP_ENDPOINT` is
set (to that collector). Off, a call costs next to nothing and no part of OpenTelemetry is imported. On or
off, nothing here raises into its caller. Names and numbers only: no secret, no header value, no message
text.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Literal, Protocol

from hypaware.home import Home

Status = Literal["ok", "failed", "skipped", "degraded", "cancelled"]
Counter = Literal[
    "hyp_rows_written",
    "hyp_rows_rejected",
    "hyp_sink_exports_total",
    "hyp_sink_export_bytes",
    "hyp_sink_export_failures_total",
    "hyp_sink_rows_withheld_total",
    "hyp_redactions_total",
]
Histogram = Literal["hyp_flush_seconds", "hyp_gateway_overhead_ms"]
Gauge = Literal["hyp_sink_lag_rows", "hyp_spool_bytes"]


class Span(Protocol):
    """One timed piece of work; an exception that leaves it marks it failed and goes on."""

    def set(self, **attributes: object) -> None: ...

    def status(self, status: Status) -> None: ...

    def __enter__(self) -> Span: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class _Pipeline(Protocol):
    def span(self, name: str, attributes: dict[str, object]) -> Span: ...

    def event(self, name: str, attributes: dict[str, object]) -> None: ...

    def measure(self, metric: str, value: float, attributes: dict[str, object]) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class _NoSpan:
    def set(self, **_attributes: object) -> None:
        pass

    def status(self, _status: Status) -> None:
        pass

    def __enter__(self) -> _NoSpan:
        return self

    def __exit__(self, *_exception: object) -> None:
        pass


_NO_SPAN = _NoSpan()
_pipeline: _Pipeline | None = None
_process_run_id: str | None = None
_job_run_id: ContextVar[str | None] = ContextVar("dev_run_id", default=None)


def configure(home: Home) -> None:
    """Called once by each process, before its work; what the environment does not ask for stays off."""
    global _pipeline
    to_files = os.environ.get("HYP_DEV_TELEMETRY") == "1"
    if _pipeline is not None or not (to_files or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")):
        return
    try:
        import atexit

        from hypaware.telemetry import pipeline

        _pipeline = pipeline.to_files(home.telemetry) if to_files else pipeline.to_collector()
        atexit.register(close)
    except Exception as error:
        sys.stderr.write(f"telemetry stays off: {type(error).__name__}: {error}\n")


def is_on() -> bool:
    """Whether anybody hears of it: for what has to be found out first."""
    return _pipeline is not None


def span(name: str, *, component: str, operation: str | None = None, **attributes: object) -> Span:
    """`with span("cache.flush", component="lake", hyp_dataset=name) as s: … s.set(row_count=n)`"""
    if (pipeline := _pipeline) is None:
        return _NO_SPAN
    joining = {"dev_run_id": dev_run_id(), "hyp_component": component, "hyp_operation": operation or name}
    return pipeline.span(name, {**attributes, **joining})


def event(name: str, *, status: Status = "ok", **attributes: object) -> None:
    """One log record. Component and operation are those of the span around it, unless `hyp_component` and
    `hyp_operation` are given."""
    if (pipeline := _pipeline) is not None:
        pipeline.event(name, {**attributes, "dev_run_id": dev_run_id(), "status": status})


def count(metric: Counter, n: int, *, status: Status = "ok", **attributes: object) -> None:
    _measure(metric, n, status, attributes)


def record(metric: Histogram, value: float, *, status: Status = "ok", **attributes: object) -> None:
    _measure(metric, value, status, attributes)


def gauge(metric: Gauge, value: float, *, status: Status = "ok", **attributes: object) -> None:
    _measure(metric, value, status, attributes)


def dev_run_id() -> str:
    """What joins the records of one run: the job's, else DEV_RUN_ID, else one that this process made up."""
    global _process_run_id
    if (job := _job_run_id.get()) is not None:
        return job
    if _process_run_id is None:
        import uuid

        _process_run_id = os.environ.get("DEV_RUN_ID") or f"bf-{uuid.uuid4()}"
    return _process_run_id


@contextmanager
def joined_to(run_id: str | None) -> Iterator[None]:
    """Within it, records of this thread or task belong to the run of the command that asked for the job."""
    token = _job_run_id.set(run_id)
    try:
        yield
    finally:
        _job_run_id.reset(token)


def flush() -> None:
    """Hands over what is buffered; waits a few seconds at most."""
    if (pipeline := _pipeline) is not None:
        pipeline.flush()


def close() -> None:
    """Flushes and turns off; done by itself at exit."""
    global _pipeline
    ending, _pipeline = _pipeline, None
    if ending is not None:
        ending.close()


def _measure(metric: str, value: float, status: Status, attributes: dict[str, object]) -> None:
    if (pipeline := _pipeline) is not None:
        pipeline.measure(metric, value, {**attributes, "dev_run_id": dev_run_id(), "status": status})
