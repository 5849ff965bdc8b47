"""The OpenTelemetry SDK, connected to files or to a collector. Imported only when telemetry is on.

The providers are private: the global ones belong to a program that embeds us. Errors of the SDK and its exporters do
not leave this module, and the SDK's log messages about an unreachable collector do not reach the user's terminal.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import Token
from pathlib import Path
from types import TracebackType
from typing import get_args

from opentelemetry import context, trace
from opentelemetry._logs import SeverityNumber
from opentelemetry.metrics import Meter
from opentelemetry.sdk._logs import LoggerProvider, LogRecordProcessor
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider, sampling
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

from hypaware import __version__, telemetry
from hypaware.errors import Cancelled, HypError
from hypaware.telemetry import files
from hypaware.telemetry.attributes import Value, clean

_SCOPE = "hypaware"
_FLUSH_MILLIS = 3_000
_FILE_INTERVAL_MILLIS = 10_000
_UNITS = {
    "hyp_flush_seconds": "s",
    "hyp_gateway_overhead_ms": "ms",
    "hyp_sink_export_bytes": "By",
    "hyp_spool_bytes": "By",
}
_KINDS = (telemetry.Counter, telemetry.Histogram, telemetry.Gauge)
_BOUNDS = {
    "hyp_flush_seconds": (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
    "hyp_gateway_overhead_ms": (0.5, 1, 2, 5, 10, 25, 50, 100, 250, 1000),
}
_SEVERITY = {
    "failed": ("ERROR", SeverityNumber.ERROR),
    "degraded": ("WARN", SeverityNumber.WARN),
}

logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
logging.getLogger("opentelemetry").propagate = False


def to_files(folder: Path) -> Pipeline:
    return Pipeline(
        SimpleSpanProcessor(files.SpanFile(folder)),
        SimpleLogRecordProcessor(files.LogFile(folder)),
        PeriodicExportingMetricReader(files.MetricFile(folder), export_interval_millis=_FILE_INTERVAL_MILLIS),
        sampler=sampling.ALWAYS_ON,
        run_id_on_metrics=True,
    )


def to_collector() -> Pipeline:
    """Send over HTTP to the endpoint that OpenTelemetry's own environment variables name."""
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    # An unreachable collector must not delay a command by the SDK's default of 10 seconds.
    timeout = None if "OTEL_EXPORTER_OTLP_TIMEOUT" in os.environ else _FLUSH_MILLIS / 1000
    return Pipeline(
        BatchSpanProcessor(OTLPSpanExporter(timeout=timeout)),
        BatchLogRecordProcessor(OTLPLogExporter(timeout=timeout)),
        PeriodicExportingMetricReader(OTLPMetricExporter(timeout=timeout)),
        sampler=None,
        run_id_on_metrics=False,
    )


class Pipeline:
    """One provider per signal.

    Metrics sent to a collector carry no run id: every run would create a time series that is kept forever.
    """

    def __init__(
        self,
        spans: SpanProcessor,
        logs: LogRecordProcessor,
        metrics: MetricReader,
        *,
        sampler: sampling.Sampler | None,
        run_id_on_metrics: bool,
    ) -> None:
        resource = Resource.create(
            {
                "service.name": os.environ.get("OTEL_SERVICE_NAME", "hypaware"),
                "service.version": __version__,
                "process.pid": os.getpid(),
                "dev_run_id": telemetry.dev_run_id(),
            }
        )
        self._run_id_on_metrics = run_id_on_metrics
        self._traces = TracerProvider(sampler, resource, shutdown_on_exit=False)
        self._traces.add_span_processor(spans)
        self._logs = LoggerProvider(resource, shutdown_on_exit=False)
        self._logs.add_log_record_processor(logs)
        self._metrics = MeterProvider([metrics], resource, shutdown_on_exit=False)
        self._tracer = self._traces.get_tracer(_SCOPE, __version__)
        self._logger = self._logs.get_logger(_SCOPE, __version__)
        self._record = _instruments(self._metrics.get_meter(_SCOPE, __version__))

    def span(self, name: str, attributes: dict[str, object]) -> LiveSpan:
        return LiveSpan(self._tracer, name, attributes)

    def event(self, name: str, attributes: dict[str, object]) -> None:
        text, number = _SEVERITY.get(str(attributes.get("status")), ("INFO", SeverityNumber.INFO))
        with suppress(Exception):
            self._logger.emit(
                timestamp=time.time_ns(),
                event_name=name,
                severity_text=text,
                severity_number=number,
                body=name,
                attributes=clean(_with_span_context(name, attributes)),
            )

    def measure(self, metric: str, value: float, attributes: dict[str, object]) -> None:
        with suppress(Exception):
            if not self._run_id_on_metrics:
                attributes.pop("dev_run_id", None)
            self._record[metric](value, clean(_with_span_context(metric, attributes)))

    def flush(self) -> None:
        for provider in (self._traces, self._logs, self._metrics):
            with suppress(Exception):
                provider.force_flush(_FLUSH_MILLIS)

    def close(self) -> None:
        for provider in (self._traces, self._logs, self._metrics):
            with suppress(Exception):
                provider.shutdown()


class LiveSpan:
    def __init__(self, tracer: trace.Tracer, name: str, attributes: dict[str, object]) -> None:
        self._tracer = tracer
        self._name = name
        self._attributes = attributes
        self._status: telemetry.Status = "ok"
        self._span: trace.Span = trace.INVALID_SPAN
        self._token: Token[context.Context] | None = None

    def set(self, **attributes: object) -> None:
        with suppress(Exception):
            self._span.set_attributes(clean(attributes))

    def status(self, status: telemetry.Status) -> None:
        self._status = status

    def __enter__(self) -> LiveSpan:
        with suppress(Exception):
            self._span = self._tracer.start_span(self._name, attributes=clean(self._attributes))
            self._token = context.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace_: TracebackType | None
    ) -> None:
        with suppress(Exception):
            if error is not None:
                # Record only the kind: a message may contain user text.
                cancelled = isinstance(error, Cancelled | KeyboardInterrupt)
                self._status = "cancelled" if cancelled else "failed"
                self.set(error_kind=error.kind if isinstance(error, HypError) else type(error).__name__)
            self.set(status=self._status)
            if self._status == "failed":
                self._span.set_status(trace.StatusCode.ERROR)
            self._span.end()
            if self._token is not None:
                context.detach(self._token)


def _with_span_context(name: str, attributes: dict[str, object]) -> dict[str, object]:
    """Add the component and operation of the enclosing span, unless they are given."""
    enclosing = getattr(trace.get_current_span(), "attributes", None) or {}
    component = enclosing.get("hyp_component", "hypaware")
    operation = enclosing.get("hyp_operation", name)
    return {"hyp_component": component, "hyp_operation": operation, **attributes}


def _instruments(meter: Meter) -> dict[str, Callable[[float, Mapping[str, Value]], None]]:
    units = {name: _UNITS.get(name, "1") for kind in _KINDS for name in get_args(kind)}
    counters = {name: meter.create_counter(name, units[name]).add for name in get_args(telemetry.Counter)}
    histograms = {
        name: meter.create_histogram(name, units[name], explicit_bucket_boundaries_advisory=_BOUNDS[name]).record
        for name in get_args(telemetry.Histogram)
    }
    gauges = {name: meter.create_gauge(name, units[name]).set for name in get_args(telemetry.Gauge)}
    return {**counters, **histograms, **gauges}
