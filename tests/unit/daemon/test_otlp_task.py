"""The OTLP receiver in a real daemon process: real exporters, kills, config changes and the status."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from datetime import UTC, datetime

import pytest
from opentelemetry._logs import SeverityNumber
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from hypaware.cli.status import StatusStyle, render_status
from hypaware.gateway.handover import bind_listener
from hypaware.home import Home
from hypaware.status.snapshot import collect_snapshot
from tests.support import light_home, processes
from tests.support.daemon_home import NO_CLIENTS, DaemonHome, daemon_part
from tests.support.delivery_home import write_config
from tests.support.light_lake import read_lake
from tests.support.otlp import Answer, make_logs, send, spooled_rows
from tests.support.ports import FreePort
from tests.support.processes import eventually

RESOURCE = Resource({"service.name": "claude-code", "service.version": "2.1.0"})


def declare(daemon: DaemonHome, listen: str = "127.0.0.1:0", more: str = "") -> None:
    # The engine stays off, so that the spool shows every request.
    write_config(daemon.home, f'{NO_CLIENTS}[otlp]\nlisten = "{listen}"\n[flush]\ncold_interval = "10d"\n{more}')


def port_of(home: Home) -> int:
    return int(daemon_part(home, "otlp")["listen"].rpartition(":")[2])


def try_send(port: int, body: bytes) -> Answer | None:
    """Return the answer, or None if the receiver died before it answered."""
    try:
        return send(port, "/v1/logs", body)
    except OSError:
        return None


def test_the_exporters_of_the_sdk_store_logs_spans_and_metrics(daemon: DaemonHome) -> None:
    declare(daemon)
    with daemon.running() as running:
        address = f"http://127.0.0.1:{port_of(daemon.home)}"
        traces = TracerProvider(resource=RESOURCE)
        traces.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{address}/v1/traces")))
        logs = LoggerProvider(RESOURCE)
        logs.add_log_record_processor(
            SimpleLogRecordProcessor(OTLPLogExporter(f"{address}/v1/logs", compression=Compression.Gzip))
        )
        metrics = MeterProvider(
            [PeriodicExportingMetricReader(OTLPMetricExporter(f"{address}/v1/metrics"))], resource=RESOURCE
        )
        with traces.get_tracer("tracer", "1").start_as_current_span("turn", attributes={"session.id": "s-1"}) as span:
            logs.get_logger("logger").emit(
                body="hello",
                severity_number=SeverityNumber.WARN,
                severity_text="WARN",
                event_name="user_prompt",
                attributes={"session.id": "s-1", "prompt_length": 5},
            )
        metrics.get_meter("meter").create_counter("claude_code.cost.usage", "USD").add(0.25, {"session.id": "s-1"})
        metrics.get_meter("meter").create_histogram("latency", "ms").record(12)
        for provider in (traces, logs, metrics):
            provider.shutdown()
        found = {name: spooled_rows(daemon.home, name) for name in ("otel_logs", "otel_spans", "otel_metrics")}
        eventually(lambda: daemon_part(daemon.home, "otlp").get("rows") == 4)
        output = running.stop()
    (log,), (turn,) = found["otel_logs"], found["otel_spans"]
    context = span.get_span_context()
    assert (log["body"], log["event_name"], log["severity_number"]) == ("hello", "user_prompt", 13)
    assert (log["session_id"], log["client_name"], log["service_name"]) == ("s-1", "claude", "claude-code")
    assert log["trace_id"] == turn["trace_id"] == f"{context.trace_id:032x}"
    assert log["span_id"] == turn["span_id"] == f"{context.span_id:016x}"
    assert (turn["name"], turn["kind"], turn["scope_name"], turn["scope_version"]) == (
        "turn",
        "internal",
        "tracer",
        "1",
    )
    points = {row["name"]: row for row in found["otel_metrics"]}
    cost = points["claude_code.cost.usage"]
    assert (cost["type"], cost["value"], cost["unit"], cost["session_id"]) == ("sum", 0.25, "USD", "s-1")
    assert (points["latency"]["count"], points["latency"]["sum"]) == (1, 12.0)
    assert json.loads(cost["resource"])["service.version"] == "2.1.0"
    assert "pyarrow" not in output


def test_a_daemon_without_the_setting_loads_and_opens_nothing(daemon: DaemonHome) -> None:
    with daemon.running() as running:
        assert daemon_part(daemon.home, "otlp")["state"] == "off"
        output = running.stop()
    assert "google.protobuf" not in output
    assert not (daemon.home.root / "spool" / "otel_logs").exists()


@pytest.mark.hazard(4)
@pytest.mark.parametrize(
    "point",
    ["otlp.store.before-append", "spool.append.before-fsync", "spool.append.after-fsync", "otlp.store.after-append"],
)
def test_a_request_killed_before_its_answer_is_stored_once_when_it_is_repeated(
    daemon: DaemonHome, point: str, free_port: FreePort
) -> None:
    """Real SIGKILLs: what is durable without an answer is sent again and stored once; what was answered is there."""
    declare(daemon, f"127.0.0.1:{free_port()}")
    body = make_logs("a", "a", "b").SerializeToString()
    with daemon.running(crash_at=f"{point}:2") as doomed:
        port = port_of(daemon.home)
        first = try_send(port, make_logs("answered").SerializeToString())
        assert first is not None
        assert first.status == 200
        assert try_send(port, body) is None
        assert doomed.process.wait(processes.PATIENCE) == -signal.SIGKILL
    with daemon.running() as next_daemon:
        answer = try_send(port_of(daemon.home), body)
        assert answer is not None
        assert answer.status == 200
        next_daemon.stop()
    light_home.flush(daemon.home, dataset="otel_logs")
    found = Counter(row["body"] for row in read_lake(daemon.home, "otel_logs"))
    assert found == {"answered": 1, "a": 2, "b": 1}


def test_an_address_in_use_is_reported_and_opened_when_it_is_free(daemon: DaemonHome, free_port: FreePort) -> None:
    port = free_port()
    declare(daemon, f"127.0.0.1:{port}")
    with bind_listener(f"127.0.0.1:{port}"), daemon.running() as running:
        assert daemon_part(daemon.home, "otlp")["state"] == "down"
        found = collect_snapshot(daemon.home)
        (problem,) = [each for each in found.diagnostics if each.kind == "otlp_down"]
        assert str(port) in problem.message
        assert problem.repair[0].startswith("hyp config set otlp.listen 127.0.0.1:")
        declare(daemon)
        os.kill(running.process.pid, signal.SIGHUP)
        eventually(lambda: daemon_part(daemon.home, "otlp")["state"] == "listening")
        assert try_send(port_of(daemon.home), make_logs("a").SerializeToString())
        declare(daemon, "")
        eventually(lambda: daemon_part(daemon.home, "otlp")["state"] == "off")
        running.stop()
    assert len(spooled_rows(daemon.home, "otel_logs")) == 1


def test_the_status_shows_the_receiver_its_rows_and_what_it_rejected(daemon: DaemonHome) -> None:
    declare(daemon)
    with daemon.running() as running:
        port = port_of(daemon.home)
        send(port, "/v1/logs", make_logs("a", "b").SerializeToString())
        send(port, "/v1/logs", make_logs("a", service="x" * 300).SerializeToString())
        eventually(lambda: daemon_part(daemon.home, "otlp").get("rejected") == 1)
        found = collect_snapshot(daemon.home)
        (receiver,) = [each for each in found.sources if each["kind"] == "telemetry"]
        assert (receiver["state"], receiver["rows"], receiver["by_dataset"]) == ("listening", 2, {"otel_logs": 2})
        assert "service.name" in receiver["last_error"]
        assert [each.kind for each in found.diagnostics if each.kind.startswith("telemetry")] == ["telemetry_rejected"]
        lines = "\n".join(render_status(found.as_json(), datetime.now(UTC), StatusStyle()))
        assert f"telemetry on 127.0.0.1:{port}: 2 rows" in lines
        running.stop()


def test_a_home_whose_receiver_is_configured_needs_a_daemon(home: Home) -> None:
    home.root.mkdir()
    write_config(home, 'version = 1\n[otlp]\nlisten = "127.0.0.1:4318"\n')

    found = collect_snapshot(home)

    assert any("otlp.listen is set" in each.message for each in found.diagnostics if each.kind == "daemon_down")
