"""The OpenTelemetry SDK, connected to files or to a collector. Imported only when telemetry is on.

Files are JSON lines: `{traces,logs,metrics}-<pid>.jsonl`, mode 0600. Each record is one line and one write, so the
records of a killed process can be read. The folder is created with the first record. The four keys that connect records
(`CORRELATION_KEYS`) appear both at the top level and in `attributes`. Attributes have snake_case keys and plain values;
text is cut at 512 characters.

The providers are private: the global ones belong to a program that embeds us. Errors of the SDK and its exporters do
not leave this module, and the SDK's log messages about an unreachable collector do not reach the user's terminal.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import Token
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO, cast, get_args

from opentelemetry import context, trace
from opentelemetry._logs import SeverityNumber
from opentelemetry.metrics import Meter
from opentelemetry.sdk._logs import LoggerProvider, LogRecordProcessor, ReadableLogRecord
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, ConsoleLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    ConsoleMetricExporter,
    Gauge,
    HistogramDataPoint,
    Metric,
    MetricReader,
    MetricsData,
    NumberDataPoint,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider, sampling
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SimpleSpanProcessor
from opentelemetry.trace import format_span_id, format_trace_id

from hypaware import __version__, telemetry
from hypaware.errors import Cancelled, HypError

CORRELATION_KEYS = ("dev_run_id", "hyp_component", "hyp_operation", "status")
MAX_TEXT = 512

PlainValue = str | bool | int | float
AttributeValue = PlainValue | list[str]

_SCOPE = "hypaware"
_FLUSH_MILLIS = 3_000
_FILE_INTERVAL_MILLIS = 10_000
_UNITS = {
    "hyp_flush_seconds": "s",
    "hyp_gateway_overhead_ms": "ms",
    "hyp_sink_export_bytes": "By",
    "hyp_spool_bytes": "By",
}
_BOUNDS = {
    "hyp_flush_seconds": (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
    "hyp_gateway_overhead_ms": (0.5, 1, 2, 5, 10, 25, 50, 100, 250, 1000),
}
_SEVERITY = {"failed": ("ERROR", SeverityNumber.ERROR), "degraded": ("WARN", SeverityNumber.WARN)}
_CAMEL_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_INVALID_CHARACTERS = re.compile(r"[^a-z0-9_]+")

logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
logging.getLogger("opentelemetry").propagate = False


def create_file_pipeline(folder: Path) -> TelemetryPipeline:
    """Write JSON lines. Metrics are deltas: each line covers the time since the previous one, so lines add up."""
    delta = AggregationTemporality.DELTA
    metrics = ConsoleMetricExporter(
        _record_file(folder, "metrics"), _metric_lines, preferred_temporality={Counter: delta, Histogram: delta}
    )
    return TelemetryPipeline(
        SimpleSpanProcessor(ConsoleSpanExporter(out=_record_file(folder, "traces"), formatter=_span_line)),
        SimpleLogRecordProcessor(ConsoleLogRecordExporter(_record_file(folder, "logs"), _log_line)),
        PeriodicExportingMetricReader(metrics, export_interval_millis=_FILE_INTERVAL_MILLIS),
        sampler=sampling.ALWAYS_ON,
        run_id_on_metrics=True,
    )


def create_collector_pipeline() -> TelemetryPipeline:
    """Send over HTTP to the endpoint that OpenTelemetry's own environment variables name."""
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    # An unreachable collector must not delay a command by the SDK's default of 10 seconds.
    timeout = None if "OTEL_EXPORTER_OTLP_TIMEOUT" in os.environ else _FLUSH_MILLIS / 1000
    return TelemetryPipeline(
        BatchSpanProcessor(OTLPSpanExporter(timeout=timeout)),
        BatchLogRecordProcessor(OTLPLogExporter(timeout=timeout)),
        PeriodicExportingMetricReader(OTLPMetricExporter(timeout=timeout)),
        sampler=None,
        run_id_on_metrics=False,
    )


class TelemetryPipeline:
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
        self._record = _create_instruments(self._metrics.get_meter(_SCOPE, __version__))

    def span(self, name: str, attributes: dict[str, object]) -> RecordedSpan:
        return RecordedSpan(self._tracer, name, attributes)

    def event(self, name: str, attributes: dict[str, object]) -> None:
        text, number = _SEVERITY.get(str(attributes.get("status")), ("INFO", SeverityNumber.INFO))
        with suppress(Exception):
            self._logger.emit(
                timestamp=time.time_ns(),
                event_name=name,
                severity_text=text,
                severity_number=number,
                body=name,
                attributes=clean_attributes(_with_span_context(name, attributes)),
            )

    def measure(self, metric: str, value: float, attributes: dict[str, object]) -> None:
        with suppress(Exception):
            if not self._run_id_on_metrics:
                attributes.pop("dev_run_id", None)
            self._record[metric](value, clean_attributes(_with_span_context(metric, attributes)))

    def flush(self) -> None:
        for provider in (self._traces, self._logs, self._metrics):
            with suppress(Exception):
                provider.force_flush(_FLUSH_MILLIS)

    def close(self) -> None:
        for provider in (self._traces, self._logs, self._metrics):
            with suppress(Exception):
                provider.shutdown()


class RecordedSpan(telemetry.Span):
    def __init__(self, tracer: trace.Tracer, name: str, attributes: dict[str, object]) -> None:
        self._tracer = tracer
        self._name = name
        self._attributes = attributes
        self._status: telemetry.Status = "ok"
        self._span: trace.Span = trace.INVALID_SPAN
        self._token: Token[context.Context] | None = None

    def set(self, **attributes: object) -> None:
        with suppress(Exception):
            self._span.set_attributes(clean_attributes(attributes))

    def status(self, status: telemetry.Status) -> None:
        self._status = status

    def __enter__(self) -> RecordedSpan:
        with suppress(Exception):
            self._span = self._tracer.start_span(self._name, attributes=clean_attributes(self._attributes))
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


def _create_instruments(meter: Meter) -> dict[str, Callable[[float, Mapping[str, AttributeValue]], None]]:
    counters = {name: meter.create_counter(name, _UNITS.get(name, "1")).add for name in get_args(telemetry.Counter)}
    gauges = {name: meter.create_gauge(name, _UNITS.get(name, "1")).set for name in get_args(telemetry.Gauge)}
    histograms = {
        name: meter.create_histogram(name, _UNITS[name], explicit_bucket_boundaries_advisory=_BOUNDS[name]).record
        for name in get_args(telemetry.Histogram)
    }
    return {**counters, **histograms, **gauges}


def clean_attributes(attributes: Mapping[str, object]) -> dict[str, AttributeValue]:
    """Return the attributes without None values. Lists become lists of text; other objects become text."""
    cleaned: dict[str, AttributeValue] = {}
    for key, value in attributes.items():
        name = _INVALID_CHARACTERS.sub("_", _CAMEL_BOUNDARY.sub("_", key).lower())[:MAX_TEXT]
        if isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**63):
            cleaned[name] = value
        elif isinstance(value, list | tuple | set | frozenset):
            cleaned[name] = [str(item)[:MAX_TEXT] for item in value]
        elif value is not None:
            cleaned[name] = str(value)[:MAX_TEXT]
    return cleaned


class _RecordFile:
    """Appends to the file of this process. No file is kept open, and a forked process writes its own file."""

    def __init__(self, folder: Path, signal: str) -> None:
        self._folder = folder
        self._signal = signal

    def write(self, lines: str) -> None:
        if not lines:
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / f"{self._signal}-{os.getpid()}.jsonl"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(fd, lines.encode("utf-8", "backslashreplace"))
        finally:
            os.close(fd)

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""


def _record_file(folder: Path, signal: str) -> TextIO:
    return cast(TextIO, _RecordFile(folder, signal))


def _json_line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


def _span_line(span: ReadableSpan) -> str:
    start, end = span.start_time or 0, span.end_time or 0
    return _json_line(
        {
            "name": span.name,
            "trace_id": format_trace_id(span.context.trace_id) if span.context else None,
            "span_id": format_span_id(span.context.span_id) if span.context else None,
            "parent_span_id": format_span_id(span.parent.span_id) if span.parent else None,
            "start_time": _format_time(start),
            "end_time": _format_time(end),
            "duration_ms": round((end - start) / 1e6, 3),
            **_with_correlation(span.attributes),
        }
    )


def _log_line(record: ReadableLogRecord) -> str:
    log = record.log_record
    return _json_line(
        {
            "name": log.event_name,
            "time": _format_time(log.timestamp or log.observed_timestamp or 0),
            "severity": log.severity_text,
            "trace_id": format_trace_id(log.trace_id) if log.trace_id else None,
            "span_id": format_span_id(log.span_id) if log.span_id else None,
            **_with_correlation(log.attributes),
        }
    )


def _metric_lines(data: MetricsData) -> str:
    metrics = (
        metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics
    )
    return "".join(_json_line(_metric_record(metric, point)) for metric in metrics for point in metric.data.data_points)


def _metric_record(metric: Metric, point: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": metric.name, "unit": metric.unit}
    if isinstance(point, HistogramDataPoint):
        facts |= {"kind": "histogram", "count": point.count, "sum": point.sum, "min": point.min, "max": point.max}
        facts |= {"bounds": list(point.explicit_bounds), "bucket_counts": list(point.bucket_counts)}
    elif isinstance(point, NumberDataPoint):
        facts |= {"kind": "gauge" if isinstance(metric.data, Gauge) else "counter", "value": point.value}
    return {**facts, "time": _format_time(point.time_unix_nano), **_with_correlation(point.attributes)}


def _with_correlation(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in (attributes or {}).items()}
    return {**{key: plain.get(key) for key in CORRELATION_KEYS}, "attributes": plain}


def _format_time(nanoseconds: int) -> str:
    moment = datetime.fromtimestamp(nanoseconds // 1_000_000_000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{nanoseconds // 1000 % 1_000_000:06d}Z"
