"""Telemetry: OpenTelemetry spans, events and metrics, off by default.

`HYP_DEV_TELEMETRY=1` writes JSON lines into the home's `telemetry/`; `OTEL_EXPORTER_OTLP_ENDPOINT` sends to that
collector. While telemetry is off, a call costs almost nothing and OpenTelemetry is not imported. Nothing here raises an
exception into its caller. Records contain names and numbers only: no secrets, no header values, no message text.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from hypaware.errors import NotReady

if TYPE_CHECKING:
    from hypaware.telemetry.pipeline import TelemetryPipeline

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


class Span:
    """One timed operation. This one does nothing, because telemetry is off.

    An exception that leaves the block marks a recorded span failed and propagates.
    """

    def set(self, **attributes: object) -> None:
        pass

    def status(self, status: Status) -> None:
        pass

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


_NO_SPAN = Span()
_pipeline: TelemetryPipeline | None = None
_process_run_id: str | None = None
_job_run_id: ContextVar[str | None] = ContextVar("dev_run_id", default=None)


def configure(folder: Path) -> None:
    """Turn telemetry on if the environment asks for it. Each process calls this once, with the home's folder for it."""
    global _pipeline
    to_files = os.environ.get("HYP_DEV_TELEMETRY") == "1"
    if _pipeline is not None or not (to_files or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")):
        return
    try:
        import atexit

        from hypaware import extras

        extras.require("telemetry")
        from hypaware.telemetry import pipeline

        _pipeline = pipeline.create_file_pipeline(folder) if to_files else pipeline.create_collector_pipeline()
        atexit.register(close)
    except NotReady as error:
        sys.stderr.write(f"cannot turn telemetry on: {error.message}; run: {error.repair[0]}\n")
    except Exception as error:
        sys.stderr.write(f"cannot turn telemetry on: {type(error).__name__}: {error}\n")


def is_on() -> bool:
    """Return whether telemetry is on, for values that are costly to compute."""
    return _pipeline is not None


def span(name: str, *, component: str, operation: str | None = None, **attributes: object) -> Span:
    """Start a span: `with span("cache.flush", component="lake", hyp_dataset=name) as s: … s.set(row_count=n)`"""
    if (pipeline := _pipeline) is None:
        return _NO_SPAN
    correlation = {"dev_run_id": dev_run_id(), "hyp_component": component, "hyp_operation": operation or name}
    return pipeline.span(name, {**attributes, **correlation})


def event(name: str, *, status: Status = "ok", **attributes: object) -> None:
    """Emit a log record. Component and operation default to those of the enclosing span."""
    if (pipeline := _pipeline) is not None:
        pipeline.event(name, {**attributes, "dev_run_id": dev_run_id(), "status": status})


def count(metric: Counter, n: int, *, status: Status = "ok", **attributes: object) -> None:
    _measure(metric, n, status, attributes)


def record(metric: Histogram, value: float, *, status: Status = "ok", **attributes: object) -> None:
    _measure(metric, value, status, attributes)


def gauge(metric: Gauge, value: float, *, status: Status = "ok", **attributes: object) -> None:
    _measure(metric, value, status, attributes)


def dev_run_id() -> str:
    """Return the id that connects the records of one run: the job's, else DEV_RUN_ID, else a random one per process."""
    global _process_run_id
    if (job := _job_run_id.get()) is not None:
        return job
    if _process_run_id is None:
        import uuid

        _process_run_id = os.environ.get("DEV_RUN_ID") or f"bf-{uuid.uuid4()}"
    return _process_run_id


@contextmanager
def use_run_id(run_id: str | None) -> Iterator[None]:
    """Within the block, records of this thread or task carry the run id of the command that requested the job."""
    token = _job_run_id.set(run_id)
    try:
        yield
    finally:
        _job_run_id.reset(token)


def flush() -> None:
    """Export buffered records, waiting a few seconds at most."""
    if (pipeline := _pipeline) is not None:
        pipeline.flush()


def close() -> None:
    """Flush and turn telemetry off. Runs automatically at exit."""
    global _pipeline
    pipeline, _pipeline = _pipeline, None
    if pipeline is not None:
        pipeline.close()


def _measure(metric: str, value: float, status: Status, attributes: dict[str, object]) -> None:
    if (pipeline := _pipeline) is not None:
        pipeline.measure(metric, value, {**attributes, "dev_run_id": dev_run_id(), "status": status})
