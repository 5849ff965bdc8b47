"""The columns of the datasets of received telemetry: `otel_logs`, `otel_spans` and `otel_metrics`.

A row is a log record, a span or a data point, as an exporter sent it over OTLP. Columns hold what people query; the
JSON columns hold the rest. Attributes are JSON objects by name. A number that JSON does not have is the text `NaN`,
`Infinity` or `-Infinity`, bytes are base64.
"""

from __future__ import annotations

from hypaware.model.columns import Column, ColumnType
from hypaware.model.datasets import Dataset

OTEL_RETENTION_DAYS = 30
_S, _I, _L, _D = ColumnType.STRING, ColumnType.INT, ColumnType.BIGINT, ColumnType.DOUBLE
_B, _T, _J = ColumnType.BOOLEAN, ColumnType.TIMESTAMP, ColumnType.JSON
_ORIGIN = (
    Column("record_id", _S, "Keyed hash of the record as it was sent; unique, the row's key.", required=True),
    Column("gateway_id", _S, "Id of the installation that recorded the row.", required=True),
    Column("client_name", _S, "The client that sent it, if its service name is known: claude, codex, or a plugin's."),
    Column("service_name", _S, "The service.name of the resource."),
    Column("session_id", _S, "The client's session id: session.id, gen_ai.conversation.id or conversation.id."),
    Column("scope_name", _S, "The instrumentation scope."),
    Column("scope_version", _S, "Version of the instrumentation scope."),
)
_TRACE = (
    Column("trace_id", _S, "Trace, in hexadecimal digits."),
    Column("span_id", _S, "Span, in hexadecimal digits."),
)
_REST = (
    Column("attributes", _J, "Attributes of the record."),
    Column("resource", _J, "Attributes of the resource."),
)
_DETAILS = Column("details", _J, "Everything else: flags, dropped counts, schema addresses, the scope's attributes.")
_SOURCES = ("client_name", "service_name")

OTEL_LOGS = Dataset(
    name="otel_logs",
    about="One row per log record or event received over OTLP.",
    columns=(
        *_ORIGIN,
        Column("logged_at", _T, "When it happened; if unknown, when it was observed or received (UTC).", required=True),
        Column("observed_at", _T, "When the exporter's process observed it (UTC)."),
        Column("event_name", _S, "Name of the event: the event.name attribute, or else the name of the record."),
        Column("severity_number", _I, "Severity, 1 to 24; 9 is INFO, 17 is ERROR."),
        Column("severity_text", _S, "Severity, as the program names it."),
        Column("body", _S, "The body; JSON text if it is not plain text."),
        *_TRACE,
        *_REST,
        _DETAILS,
    ),
    time_column="logged_at",
    source_columns=_SOURCES,
    key_column="record_id",
    derive=lambda _row, gateway_id: {"gateway_id": gateway_id},
    retention_days=OTEL_RETENTION_DAYS,
)

OTEL_SPANS = Dataset(
    name="otel_spans",
    about="One row per span received over OTLP.",
    columns=(
        *_ORIGIN,
        Column("started_at", _T, "When the span began (UTC).", required=True),
        Column("ended_at", _T, "When the span ended (UTC)."),
        Column("duration_ms", _D, "Milliseconds from start to end, with nanoseconds as the fraction."),
        Column("name", _S, "Name of the span."),
        Column("kind", _S, "internal, server, client, producer or consumer."),
        Column("status", _S, "ok or error; null if it was not set."),
        Column("status_message", _S, "Description of the status."),
        *_TRACE,
        Column("parent_span_id", _S, "The span that this one is part of, in hexadecimal digits."),
        Column("trace_state", _S, "State of the trace, as in W3C's header."),
        *_REST,
        Column("events", _J, "Array of the events of the span: time, name, attributes."),
        Column("links", _J, "Array of the links of the span: trace_id, span_id, attributes."),
        _DETAILS,
    ),
    time_column="started_at",
    source_columns=_SOURCES,
    key_column="record_id",
    derive=lambda _row, gateway_id: {"gateway_id": gateway_id},
    retention_days=OTEL_RETENTION_DAYS,
)

OTEL_METRICS = Dataset(
    name="otel_metrics",
    about="One row per data point of a metric received over OTLP.",
    columns=(
        *_ORIGIN,
        Column("measured_at", _T, "Time of the data point (UTC); when it was received, if it has none.", required=True),
        Column("started_at", _T, "Start of the interval that the data point covers (UTC)."),
        Column("name", _S, "Name of the metric."),
        Column("type", _S, "gauge, sum, histogram, exponential_histogram or summary.", required=True),
        Column("unit", _S, "Unit of the metric."),
        Column("description", _S, "Description of the metric."),
        Column("temporality", _S, "delta or cumulative; null for a gauge or a summary."),
        Column("is_monotonic", _B, "Whether a sum only grows."),
        Column("value", _D, "Value of a gauge or sum; details has a whole number that a DOUBLE cannot hold."),
        Column("count", _L, "Number of values in a histogram or summary."),
        Column("sum", _D, "Sum of the values in a histogram or summary."),
        Column("min", _D, "Smallest value in a histogram."),
        Column("max", _D, "Largest value in a histogram."),
        *_REST,
        Column("details", _J, "Everything else: buckets, quantiles, exemplars, flags, metadata, exact values."),
    ),
    time_column="measured_at",
    source_columns=_SOURCES,
    key_column="record_id",
    derive=lambda _row, gateway_id: {"gateway_id": gateway_id},
    retention_days=OTEL_RETENTION_DAYS,
)
