from __future__ import annotations

import gzip
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from hypaware import telemetry
from hypaware.home import Home
from hypaware.telemetry import pipeline

_MESSAGES: dict[str, Any] = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
}


class Collector(ThreadingHTTPServer):
    def __init__(self) -> None:
        self.received: dict[str, list[Any]] = {path: [] for path in _MESSAGES}
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.received[self.path].append(_MESSAGES[self.path].FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector that receives everything, even on a slow machine."""
    monkeypatch.setattr(pipeline, "_FLUSH_MILLIS", 120_000)
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        telemetry.close()
        server.shutdown()
        thread.join()


def attributes(record: Any) -> dict[str, Any]:
    return {each.key: each.value.string_value or each.value.int_value for each in record.attributes}


def test_collector_receives_spans_events_and_metrics_over_http(
    home: Home, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("DEV_RUN_ID", "run-1")
    telemetry.configure(home.telemetry)
    with telemetry.span("cache.flush", component="lake", operation="flush", row_count=2):
        telemetry.event("backfill.start", status="degraded")
        telemetry.count("hyp_rows_written", 2, hyp_dataset="d")
    telemetry.flush()

    resource = collector.received["/v1/traces"][0].resource_spans[0]
    span = resource.scope_spans[0].spans[0]
    assert attributes(resource.resource)["service.name"] == "hypaware"
    assert attributes(span) == {
        "row_count": 2,
        "dev_run_id": "run-1",
        "hyp_component": "lake",
        "hyp_operation": "flush",
        "status": "ok",
    }
    log = collector.received["/v1/logs"][0].resource_logs[0].scope_logs[0].log_records[0]
    assert (log.event_name, log.severity_text, log.span_id) == ("backfill.start", "WARN", span.span_id)
    metrics = collector.received["/v1/metrics"][0].resource_metrics[0]
    metric = metrics.scope_metrics[0].metrics[0]
    assert (metric.name, metric.sum.data_points[0].as_int) == ("hyp_rows_written", 2)
    assert attributes(metrics.resource)["dev_run_id"] == "run-1"
    assert not home.root.exists()


def test_run_id_is_not_sent_with_a_collectors_metrics(
    home: Home, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine may run for months with a job every two minutes."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    telemetry.configure(home.telemetry)
    for run in range(3):
        with telemetry.use_run_id(f"run-{run}"):
            telemetry.count("hyp_rows_written", 1)
    telemetry.flush()

    metric = collector.received["/v1/metrics"][0].resource_metrics[0].scope_metrics[0].metrics[0]
    assert [point.as_int for point in metric.sum.data_points] == [3]


def test_dev_files_take_precedence_over_a_collector(
    home: Home, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("HYP_DEV_TELEMETRY", "1")
    telemetry.configure(home.telemetry)
    with telemetry.span("a", component="b"):
        pass
    telemetry.flush()

    assert not any(collector.received.values())
    assert list(home.telemetry.iterdir())


def test_unreachable_collector_affects_neither_caller_nor_terminal(home: Home) -> None:
    script = textwrap.dedent(
        """
        import logging
        logging.basicConfig(level="DEBUG")
        logging.getLogger("urllib3").disabled = logging.getLogger("urllib3.connectionpool").disabled = True
        from hypaware import telemetry
        from hypaware.home import Home

        telemetry.configure(Home.from_environment().telemetry)
        with telemetry.span("a", component="b"):
            telemetry.event("e")
            telemetry.count("hyp_rows_written", 1)
        telemetry.flush()
"""
    )
    environment = {
        **os.environ,
        "HYP_HOME": str(home.root),
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "0.2",
    }

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_invalid_opentelemetry_settings_turn_telemetry_off_with_one_line(
    home: Home, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")

    telemetry.configure(home.telemetry)
    with telemetry.span("a", component="b"):
        pass

    assert capfd.readouterr().err.startswith("cannot turn telemetry on: ")
