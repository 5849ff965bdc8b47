"""Records of a request become rows with ids that recognize the repetition of the request."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from hypaware.model.datasets import coerce_row
from hypaware.model.otel_schemas import OTEL_LOGS, OTEL_METRICS, OTEL_SPANS
from hypaware.otlp import records
from hypaware.otlp.records import RecordReader
from hypaware.otlp.wire import OtlpProblem
from tests.support.otlp import NOVEMBER, attribute, make_logs

RECEIVED = datetime(2026, 11, 18, 9, tzinfo=UTC)
READER = RecordReader(b"k" * 32, RECEIVED, {"claude-code": "claude"}.get)


def read_rows(request: Any, reader: RecordReader = READER) -> list[dict[str, Any]]:
    found = list(reader.read(request))
    assert not [record.problem for record in found if record.problem]
    return [record.row for record in found]


def ids_of(request: Any, reader: RecordReader = READER) -> list[str]:
    return [row["record_id"] for row in read_rows(request, reader)]


def test_a_log_record_becomes_a_row_with_the_columns_that_people_query() -> None:
    request = make_logs("hello")
    record = request.resource_logs[0].scope_logs[0].log_records[0]
    record.severity_number, record.severity_text = 9, "INFO"
    record.trace_id, record.span_id, record.flags = b"\1" * 16, b"\2" * 8, 1
    record.observed_time_unix_nano = NOVEMBER + 5_000
    record.attributes.append(attribute("event.name", "user_prompt"))
    record.event_name = "event main.rs:7"
    record.attributes.append(KeyValue(key="cost", value=AnyValue(double_value=0.25)))
    request.resource_logs[0].schema_url = "https://example.org/1"

    (row,) = read_rows(request)

    assert coerce_row(OTEL_LOGS, row, "g") == {
        "record_id": row["record_id"],
        "gateway_id": "g",
        "client_name": "claude",
        "service_name": "claude-code",
        "session_id": "s-1",
        "scope_name": "events",
        "logged_at": "2026-11-17T00:00:00.000000Z",
        "observed_at": "2026-11-17T00:00:00.000005Z",
        "event_name": "user_prompt",
        "severity_number": 9,
        "severity_text": "INFO",
        "body": "hello",
        "trace_id": "01" * 16,
        "span_id": "02" * 8,
        "attributes": '{"cost":0.25,"event.name":"user_prompt","session.id":"s-1"}',
        "resource": '{"service.name":"claude-code"}',
        "details": '{"event_name":"event main.rs:7","flags":1,"resource_schema_url":"https://example.org/1"}',
    }


def test_the_same_request_gives_the_same_ids_and_equal_records_of_a_request_different_ones() -> None:
    assert ids_of(make_logs("a", "b")) == ids_of(make_logs("a", "b"))
    twice = make_logs("a")
    records_of = twice.resource_logs[0].scope_logs[0].log_records
    records_of.add().CopyFrom(records_of[0])

    first, second = ids_of(twice)

    assert (first, second) == (ids_of(make_logs("a"))[0], f"{first}-1")


def test_an_id_depends_on_resource_scope_time_content_and_key() -> None:
    changed = [make_logs("a") for _ in range(5)]
    changed[1].resource_logs[0].resource.attributes.append(attribute("host.name", "other"))
    changed[2].resource_logs[0].scope_logs[0].scope.version = "2"
    changed[3].resource_logs[0].scope_logs[0].log_records[0].time_unix_nano += 1
    changed[4].resource_logs[0].scope_logs[0].log_records[0].body.string_value = "b"

    ids = [ids_of(request)[0] for request in changed]

    assert len(set(ids)) == 5
    assert ids_of(changed[0], RecordReader(b"x" * 32, RECEIVED, lambda _name: None)) != ids[:1]


def test_a_record_without_a_time_gets_the_time_of_its_request_and_the_same_id_again() -> None:
    request = make_logs("a")
    request.resource_logs[0].scope_logs[0].log_records[0].time_unix_nano = 0
    later = RecordReader(READER.key, datetime(2026, 11, 19, tzinfo=UTC), READER.find_client)

    (row,) = read_rows(request)

    assert row["logged_at"] == "2026-11-18T09:00:00.000000Z"
    assert ids_of(request, later) == [row["record_id"]]


@pytest.mark.parametrize(
    ("name", "where"), [("gen_ai.conversation.id", "record"), ("conversation.id", "record"), ("session.id", "resource")]
)
def test_the_session_id_is_found_under_its_names_and_on_the_resource(name: str, where: str) -> None:
    request = make_logs("a")
    group = request.resource_logs[0]
    del group.scope_logs[0].log_records[0].attributes[:]
    holder = group.resource if where == "resource" else group.scope_logs[0].log_records[0]
    holder.attributes.append(attribute(name, "c-7"))

    assert [row["session_id"] for row in read_rows(request)] == ["c-7"]


def test_a_body_that_is_not_text_is_stored_as_json() -> None:
    request = make_logs("")
    body = request.resource_logs[0].scope_logs[0].log_records[0].body
    body.kvlist_value.values.append(attribute("tool", "Bash"))
    body.kvlist_value.values.append(KeyValue(key="bytes", value=AnyValue(bytes_value=b"\xff\0")))
    body.kvlist_value.values.append(KeyValue(key="none", value=AnyValue()))
    array = body.kvlist_value.values.add(key="list").value.array_value
    array.values.extend([AnyValue(double_value=math.nan), AnyValue(double_value=-math.inf), AnyValue(bool_value=True)])

    (row,) = read_rows(request)

    assert json.loads(row["body"]) == {
        "tool": "Bash",
        "bytes": "/wA=",
        "none": None,
        "list": ["NaN", "-Infinity", True],
    }


def test_a_span_keeps_its_nanoseconds_events_and_links() -> None:
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    span = group.scope_spans.add().spans.add(
        name="claude_code.llm_request",
        kind=3,
        trace_id=b"\1" * 16,
        span_id=b"\2" * 8,
        parent_span_id=b"\3" * 8,
        start_time_unix_nano=NOVEMBER,
        end_time_unix_nano=NOVEMBER + 1_500_001,
    )
    span.status.code, span.status.message = 2, "overloaded"
    span.events.add(name="retry", time_unix_nano=NOVEMBER + 1000, attributes=[attribute("n", "1")])
    span.links.add(trace_id=b"\4" * 16, span_id=b"\5" * 8)

    (row,) = read_rows(request)

    stored = coerce_row(OTEL_SPANS, row, "g")
    assert (stored["started_at"], stored["ended_at"]) == ("2026-11-17T00:00:00.000000Z", "2026-11-17T00:00:00.001500Z")
    assert stored["duration_ms"] == 1.500001
    assert (stored["kind"], stored["status"], stored["status_message"]) == ("client", "error", "overloaded")
    assert stored["parent_span_id"] == "03" * 8
    assert json.loads(stored["events"]) == [
        {"time": "2026-11-17T00:00:00.000001Z", "name": "retry", "attributes": {"n": "1"}}
    ]
    assert json.loads(stored["links"]) == [{"trace_id": "04" * 16, "span_id": "05" * 8, "attributes": {}}]
    assert OTEL_SPANS.source_of(stored) == "unknown"


def test_every_kind_of_data_point_becomes_a_row() -> None:
    request = ExportMetricsServiceRequest()
    metrics = request.resource_metrics.add().scope_metrics.add().metrics
    metrics.add(name="cost", unit="USD").sum.data_points.add(as_double=0.5, time_unix_nano=NOVEMBER)
    metrics[0].sum.aggregation_temporality, metrics[0].sum.is_monotonic = 1, True
    metrics.add(name="big").gauge.data_points.add(as_int=2**60 + 1)
    metrics.add(name="odd").gauge.data_points.add(as_double=math.nan)
    metrics.add(name="empty").gauge.data_points.add(flags=1)
    metrics.add(name="time", unit="ms").histogram.data_points.add(
        count=3, sum=6.0, min=1.0, max=3.0, bucket_counts=[1, 2], explicit_bounds=[2.0]
    )
    wide = metrics.add(name="wide").exponential_histogram.data_points.add(count=1, scale=3, zero_count=1)
    wide.positive.offset = 2
    wide.positive.bucket_counts.extend([1])
    metrics.add(name="old").summary.data_points.add(count=2, sum=4.0).quantile_values.add(quantile=0.5, value=2.0)

    rows = [coerce_row(OTEL_METRICS, row, "g") for row in read_rows(request)]

    cost, big, odd, empty, time, wide_row, old = rows
    assert (cost["type"], cost["temporality"], cost["is_monotonic"], cost["value"]) == ("sum", "delta", True, 0.5)
    assert json.loads(big["details"]) == {"exact_value": 2**60 + 1}
    assert ("value" in odd, json.loads(odd["details"])) == (False, {"value": "NaN"})
    assert ("value" in empty, json.loads(empty["details"])) == (False, {"flags": 1})
    assert (time["count"], time["sum"], time["min"], time["max"]) == (3, 6.0, 1.0, 3.0)
    assert json.loads(time["details"]) == {"bucket_counts": [1, 2], "explicit_bounds": [2.0]}
    assert json.loads(wide_row["details"])["positive"] == {"bucket_counts": [1], "offset": 2}
    assert "sum" not in wide_row
    assert (old["sum"], json.loads(old["details"])) == (4.0, {"quantiles": [[0.5, 2.0]]})
    assert len({row["record_id"] for row in rows}) == len(rows)


def test_points_of_two_metrics_with_equal_values_have_different_ids() -> None:
    request = ExportMetricsServiceRequest()
    metrics = request.resource_metrics.add().scope_metrics.add().metrics
    for name in ("input", "output"):
        metrics.add(name=name).gauge.data_points.add(as_int=1, time_unix_nano=NOVEMBER)

    assert len(set(ids_of(request))) == 2


def test_a_metric_of_an_unknown_type_and_an_unusable_service_name_are_problems() -> None:
    request = ExportMetricsServiceRequest()
    group = request.resource_metrics.add()
    group.scope_metrics.add().metrics.add(name="new")
    unnamed = make_logs("a", service="x" * 201)
    hidden = make_logs("a", service="x\ny")

    for refused in (request, unnamed, hidden):
        (record,) = READER.read(refused)
        assert record.problem
        assert not record.row


def test_a_small_request_cannot_become_many_large_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resource is sent once and stored with each record."""
    request = make_logs(*["a"] * 100)
    request.resource_logs[0].resource.attributes.append(attribute("long", "x" * 1000))
    monkeypatch.setattr(records, "MAX_ROW_BYTES", 100_000)
    with pytest.raises(OtlpProblem, match="too many records") as refused:
        list(READER.read(request))
    assert refused.value.status == 413
    monkeypatch.setattr(records, "MAX_ROW_BYTES", 1 << 20)
    monkeypatch.setattr(records, "MAX_RECORDS", 99)
    with pytest.raises(OtlpProblem, match="too many records"):
        list(READER.read(request))
