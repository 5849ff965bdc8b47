"""Exporters that write OpenTelemetry records as JSON lines: `{traces,logs,metrics}-<pid>.jsonl`, mode 0600.

Each record is one line and one write, so the records of a killed process can be read. The folder is created with the
first record. The four keys that connect records (`JOINING`) appear both at the top level and in `attributes`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.metrics import Counter, Histogram
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
)
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import format_span_id, format_trace_id

JOINING = ("dev_run_id", "hyp_component", "hyp_operation", "status")


class SpanFile(SpanExporter):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        _append(self._folder, "traces", map(_span, spans))
        return SpanExportResult.SUCCESS


class LogFile(LogRecordExporter):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        _append(self._folder, "logs", map(_log, batch))
        return LogRecordExportResult.SUCCESS

    def shutdown(self) -> None:
        """Do nothing: no file is kept open."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return True


class MetricFile(MetricExporter):
    """Writes deltas: each line covers the time since the previous one, so lines can be added up."""

    def __init__(self, folder: Path) -> None:
        delta = AggregationTemporality.DELTA
        super().__init__(preferred_temporality={Counter: delta, Histogram: delta})
        self._folder = folder

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_kwargs: Any) -> MetricExportResult:
        metrics = (
            metric
            for resource in metrics_data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        )
        lines = (_point(metric, point) for metric in metrics for point in metric.data.data_points)
        _append(self._folder, "metrics", lines)
        return MetricExportResult.SUCCESS

    def shutdown(self, timeout_millis: float = 30_000, **_kwargs: Any) -> None:
        """Do nothing: no file is kept open."""

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True


def _append(folder: Path, what: str, records: Iterable[dict[str, Any]]) -> None:
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    if not lines:
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Read the pid each time, so that a forked process writes its own file.
    path = folder / f"{what}-{os.getpid()}.jsonl"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(fd, lines.encode("utf-8", "backslashreplace"))
    finally:
        os.close(fd)


def _span(span: ReadableSpan) -> dict[str, Any]:
    start, end = span.start_time or 0, span.end_time or 0
    return {
        "name": span.name,
        "trace_id": format_trace_id(span.context.trace_id) if span.context else None,
        "span_id": format_span_id(span.context.span_id) if span.context else None,
        "parent_span_id": format_span_id(span.parent.span_id) if span.parent else None,
        "start_time": _time(start),
        "end_time": _time(end),
        "duration_ms": round((end - start) / 1e6, 3),
        **_joined(span.attributes),
    }


def _log(record: ReadableLogRecord) -> dict[str, Any]:
    log = record.log_record
    return {
        "name": log.event_name,
        "time": _time(log.timestamp or log.observed_timestamp or 0),
        "severity": log.severity_text,
        "trace_id": format_trace_id(log.trace_id) if log.trace_id else None,
        "span_id": format_span_id(log.span_id) if log.span_id else None,
        **_joined(log.attributes),
    }


def _point(metric: Metric, point: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": metric.name, "unit": metric.unit}
    if isinstance(point, HistogramDataPoint):
        facts |= {
            "kind": "histogram",
            "count": point.count,
            "sum": point.sum,
            "min": point.min,
            "max": point.max,
        }
        facts |= {"bounds": list(point.explicit_bounds), "bucket_counts": list(point.bucket_counts)}
    elif isinstance(point, NumberDataPoint):
        facts |= {"kind": "gauge" if isinstance(metric.data, Gauge) else "counter", "value": point.value}
    return {**facts, "time": _time(point.time_unix_nano), **_joined(point.attributes)}


def _joined(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in (attributes or {}).items()}
    return {**{key: plain.get(key) for key in JOINING}, "attributes": plain}


def _time(nanoseconds: int) -> str:
    moment = datetime.fromtimestamp(nanoseconds // 1_000_000_000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{nanoseconds // 1000 % 1_000_000:06d}Z"
