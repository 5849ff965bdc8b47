"""The OTLP receiver over real connections: what it stores, what it answers, and what it refuses."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from hypaware.home import Home
from hypaware.home.session_context import context_path
from hypaware.otlp import wire
from hypaware.otlp.wire import SIGNALS, OtlpProblem, decode_request
from hypaware.privacy import ignored_sessions
from hypaware.state.home_opener import open_home
from tests.support import light_home, small_disk
from tests.support.light_lake import read_lake
from tests.support.otlp import NOVEMBER, RunningReceiver, make_logs, running_receiver, send, send_json, spooled_rows
from tests.support.processes import PATIENCE

LOGS = "/v1/logs"
SECRET = "sk-ant-api03-" + "A1b2C3d4" * 12


@pytest.fixture
def opened(home: Home) -> Home:
    open_home(home).store.close()
    return home


@pytest.fixture
def running(opened: Home) -> Iterator[RunningReceiver]:
    with running_receiver(opened) as found:
        yield found


def status_of(body: bytes) -> tuple[int, str]:
    """Return the code and the message of a `Status` in protobuf."""
    assert (body[0], body[2]) == (0x08, 0x12)
    length, start = (body[3], 4) if body[3] < 0x80 else (body[3] & 0x7F | body[4] << 7, 5)
    assert len(body) == start + length
    return body[1], body[start:].decode()


JSON_LOGS: dict[str, Any] = {
    "resourceLogs": [
        {
            "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "claude-code"}}]},
            "scopeLogs": [
                {
                    "scope": {"name": "events"},
                    "unknownField": 1,
                    "logRecords": [
                        {
                            "timeUnixNano": str(NOVEMBER),
                            "body": {"stringValue": "a"},
                            "attributes": [{"key": "session.id", "value": {"stringValue": "s-1"}}],
                        }
                    ],
                }
            ],
        }
    ]
}


def test_protobuf_is_stored_before_it_is_answered_in_protobuf(running: RunningReceiver, opened: Home) -> None:
    answer = send(running.port, LOGS, make_logs("a", "b").SerializeToString())

    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/x-protobuf")
    assert answer.body == b"", "a response without a partial success is empty"
    assert [row["body"] for row in spooled_rows(opened, "otel_logs")] == ["a", "b"]


def test_json_gives_the_same_rows_as_protobuf_and_is_answered_in_json(running: RunningReceiver, opened: Home) -> None:
    record = JSON_LOGS["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]
    with_ids = {**record, "traceId": "5B8EFFF798038103D269B633813FC60C", "spanId": "EEE19B7EC3C1B174"}
    binary = make_logs("a")
    binary.resource_logs[0].scope_logs[0].log_records[0].trace_id = bytes.fromhex(with_ids["traceId"])
    binary.resource_logs[0].scope_logs[0].log_records[0].span_id = bytes.fromhex(with_ids["spanId"])
    written = json.dumps(JSON_LOGS).replace(json.dumps(record), json.dumps(with_ids)).encode()

    answer = send_json(running.port, LOGS, written)
    send(running.port, LOGS, binary.SerializeToString())

    assert (answer.status, answer.headers["Content-Type"], answer.body) == (200, "application/json", b"{}")
    first, second = spooled_rows(opened, "otel_logs")
    assert first == second
    assert (first["trace_id"], first["span_id"]) == ("5b8efff798038103d269b633813fc60c", "eee19b7ec3c1b174")


@pytest.mark.parametrize(
    ("service", "client"),
    [
        ("claude-code", "claude"),
        ("codex_cli_rs", "codex"),
        ("codex_exec", "codex"),
        ("gemini-cli", "gemini"),
        ("github-copilot", "copilot"),
        ("qwen-code", "qwen"),
        ("something-else", None),
    ],
)
def test_a_row_is_of_the_client_that_calls_itself_so(
    running: RunningReceiver, opened: Home, service: str, client: str | None
) -> None:
    send(running.port, LOGS, make_logs("one", service=service).SerializeToString())
    assert [row.get("client_name") for row in spooled_rows(opened, "otel_logs")] == [client]


def test_a_repeated_request_is_acknowledged_and_stored_once(running: RunningReceiver, opened: Home) -> None:
    body = make_logs("a", "a", "b").SerializeToString()
    for _ in range(3):
        assert send(running.port, LOGS, body).status == 200
    running.spool.seal()
    light_home.flush(opened, dataset="otel_logs")
    send(running.port, LOGS, body)
    running.spool.seal()
    light_home.flush(opened, dataset="otel_logs")

    assert sorted(row["body"] for row in read_lake(opened, "otel_logs")) == ["a", "a", "b"]


def test_gzip_is_accepted_in_several_members(running: RunningReceiver, opened: Home) -> None:
    body = make_logs("a").SerializeToString()
    packed = gzip.compress(body[:10]) + gzip.compress(body[10:])

    assert send(running.port, LOGS, packed, Content_Encoding="gzip").status == 200
    assert len(spooled_rows(opened, "otel_logs")) == 1


def test_a_record_that_cannot_be_stored_is_counted_and_the_others_are_stored(
    running: RunningReceiver, opened: Home
) -> None:
    request = ExportMetricsServiceRequest()
    metrics = request.resource_metrics.add().scope_metrics.add().metrics
    metrics.add(name="good").histogram.data_points.add(count=1)
    metrics.add(name="huge").histogram.data_points.add(count=2**64 - 1)
    metrics.add(name="unknown")

    answer = send(running.port, "/v1/metrics", request.SerializeToString())

    partial = ExportMetricsServiceResponse.FromString(answer.body).partial_success
    assert (answer.status, partial.rejected_data_points) == (200, 2)
    assert "column count" in partial.error_message
    assert [row["name"] for row in spooled_rows(opened, "otel_metrics")] == ["good"]
    assert running.writer.counts.rejected == 2
    assert "column count" in (running.receiver.last_error or "")


def test_a_partial_success_in_json_names_the_number(running: RunningReceiver) -> None:
    body = {"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "unknown"}]}]}]}

    answer = send_json(running.port, "/v1/metrics", json.dumps(body).encode())

    partial = json.loads(answer.body)["partialSuccess"]
    assert (partial["rejectedDataPoints"], bool(partial["errorMessage"])) == ("1", True)


def in_json(record: bytes) -> tuple[str, bytes]:
    return "application/json", b'{"resourceLogs": [{"scopeLogs": [{"logRecords": [%s]}]}]}' % record


GARBAGE = {
    "bytes": (wire.PROTOBUF, b"\xff\xff\xff garbage"),
    "truncated": (wire.PROTOBUF, make_logs("abc").SerializeToString()[:-3]),
    "invalid UTF-8": (wire.PROTOBUF, make_logs("abc").SerializeToString().replace(b"abc", b"a\xffc")),
    "text": (wire.JSON, b"not json"),
    "list": (wire.JSON, b"[]"),
    "number": (wire.JSON, b'{"resourceLogs": 5}'),
    "NaN": in_json(b'{"timeUnixNano": NaN}'),
    "infinity": in_json(b'{"timeUnixNano": 1e400}'),
    "negative time": in_json(b'{"timeUnixNano": "-1"}'),
    "huge number": in_json(b'{"severityNumber": %d}' % 10**40),
    "id that is not hexadecimal": in_json(b'{"traceId": "xyz"}'),
    "id that is a number": in_json(b'{"traceId": 5}'),
    "lone surrogate": in_json(b'{"body": {"stringValue": "\\ud800"}}'),
    "deep": in_json(b'{"body": %s}' % (b'{"arrayValue":{"values":[' * 5000 + b"]}}" * 5000)),
    "invalid UTF-8 in JSON": in_json(b'{"body": "\xff"}'),
}


@pytest.mark.parametrize(("content_type", "body"), GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_refused_as_a_whole_with_a_status_in_its_encoding(
    running: RunningReceiver, opened: Home, content_type: str, body: bytes
) -> None:
    answer = send(running.port, LOGS, body, content_type)

    assert answer.status == 400
    code, message = (
        status_of(answer.body) if "proto" in content_type else (orjson.loads(answer.body)["code"], "the body is not")
    )
    assert (code, "the body is not" in message) == (3, True)
    assert spooled_rows(opened, "otel_logs") == []


def test_a_deeply_nested_protobuf_value_is_refused(running: RunningReceiver) -> None:
    request = make_logs("a")
    value = request.resource_logs[0].scope_logs[0].log_records[0].body
    for _ in range(80):
        value = value.array_value.values.add()
    # Python's parser has the limit, its serializer does not.
    assert send(running.port, LOGS, request.SerializeToString()).status == 400


def test_bodies_that_are_too_large_are_refused_before_and_after_decompression(
    running: RunningReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = gzip.compress(gzip.compress(b"\0" * (wire.MAX_BODY_BYTES + 1)))
    once = gzip.decompress(bomb)
    assert len(once) < 100_000
    assert send(running.port, LOGS, once, Content_Encoding="gzip").status == 413
    monkeypatch.setattr(wire, "MAX_BODY_BYTES", 1000)
    assert send(running.port, LOGS, b"\0" * 1001).status == 413
    with socket.create_connection(("127.0.0.1", running.port), PATIENCE) as raw:
        # Without a length, and without an end.
        raw.sendall(b"POST /v1/logs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-protobuf\r\n")
        raw.sendall(b"Transfer-Encoding: chunked\r\n\r\n" + b"3e8\r\n" + b"\0" * 1000 + b"\r\n1\r\n\0\r\n")
        assert raw.recv(12) == b"HTTP/1.1 413"


@pytest.mark.parametrize(
    "body",
    [b"not gzip", gzip.compress(b"x")[:-4], gzip.compress(b"") + b"trailing"],
    ids=["no gzip", "truncated", "trailing bytes"],
)
def test_broken_gzip_is_refused(running: RunningReceiver, body: bytes) -> None:
    assert send(running.port, LOGS, body, Content_Encoding="gzip").status == 400


def test_what_is_not_otlp_is_refused(running: RunningReceiver) -> None:
    body = make_logs("a").SerializeToString()
    assert send(running.port, LOGS, body, "text/plain").status == 415
    assert send(running.port, LOGS, body, Content_Encoding="br").status == 415
    assert send(running.port, "/v1/profiles", body).status == 404
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=PATIENCE)
    connection.request("GET", LOGS)
    response = connection.getresponse()
    assert (response.status, response.headers["Allow"]) == (405, "POST")
    connection.close()


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Sec_Fetch_Site": "cross-site"}]
)
def test_requests_of_web_pages_are_refused(running: RunningReceiver, opened: Home, headers: dict[str, str]) -> None:
    assert send(running.port, LOGS, make_logs("a").SerializeToString(), **headers).status == 403
    assert spooled_rows(opened, "otel_logs") == []


def test_an_ignored_session_leaves_only_a_count(running: RunningReceiver, opened: Home) -> None:
    ignored_sessions.ignore_session(opened, "s-private")
    mixed = make_logs("a")
    mixed.MergeFrom(make_logs("hidden", session="s-private"))

    answer = send(running.port, LOGS, mixed.SerializeToString())

    assert (answer.status, answer.body) == (200, b"")
    assert [row["body"] for row in spooled_rows(opened, "otel_logs")] == ["a"]
    assert running.writer.counts.ignored == 1


def test_the_folder_of_a_session_decides_if_a_hook_has_noted_it(
    running: RunningReceiver, opened: Home, tmp_path: Path
) -> None:
    folder = tmp_path / "secret"
    folder.mkdir()
    (folder / ".hypignore").write_text("ignore\n")
    notes = context_path(opened.root, "claude")
    notes.parent.mkdir(parents=True)
    notes.write_text(json.dumps({"session_id": "s-1", "cwd": str(folder), "at": "2026-11-17T00:00:00Z"}) + "\n")

    assert send(running.port, LOGS, make_logs("hidden").SerializeToString()).status == 200
    assert spooled_rows(opened, "otel_logs") == []
    assert running.writer.counts.ignored == 1


def test_secrets_are_replaced_if_the_config_asks_for_it(opened: Home) -> None:
    opened.config.write_text("version = 1\n[redaction]\nkept = true\n")
    request = make_logs(f"key {SECRET}")
    request.resource_logs[0].scope_logs[0].log_records[0].attributes[0].value.string_value = "s-1"
    with running_receiver(opened) as running:
        send(running.port, LOGS, request.SerializeToString())
        (row,) = spooled_rows(opened, "otel_logs")
        assert sum(running.writer.counts.redacted.values()) == 1
    assert SECRET not in json.dumps(row)


def test_an_exporter_gets_a_retryable_status_while_the_disk_is_full(tmp_path: Path) -> None:
    with small_disk.mounted(tmp_path / "disk") as disk:
        home = Home(disk.root / "home")
        open_home(home).store.close()
        body = make_logs("a" * 1000).SerializeToString()
        with running_receiver(home) as running:
            assert send(running.port, LOGS, body).status == 200
            disk.fill()
            refused = send(running.port, LOGS, make_logs("b" * 200_000).SerializeToString())
            assert (refused.status, int(refused.headers["Retry-After"]) > 0) == (503, True)
            disk.make_room()
            assert send(running.port, LOGS, make_logs("b" * 200_000).SerializeToString()).status == 200
        assert [row["body"][0] for row in spooled_rows(home, "otel_logs")] == ["a", "b"]


# fmt: off
FIELDS = (
    "resourceLogs", "scopeLogs", "logRecords", "resource", "attributes", "key", "value", "stringValue", "body",
    "arrayValue", "values", "timeUnixNano", "traceId", "severityNumber", "flags", "scope",
)
# fmt: on
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), children, max_size=4),
    max_leaves=20,
)


def is_refused(content_type: str, encoding: str, body: bytes) -> bool:
    """Decode a request. Nothing but a refusal may be raised."""
    try:
        decode_request(SIGNALS[LOGS], content_type, encoding, body)
    except OtlpProblem as problem:
        return problem.status == 400
    return False


@given(JSON_VALUES)
def test_any_json_is_a_request_or_refused(document: Any) -> None:
    refused = is_refused(wire.JSON, "", orjson.dumps(document))

    assert refused or isinstance(document, dict)


@given(st.binary(min_size=1, max_size=200))
def test_any_bytes_are_a_request_or_refused(body: bytes) -> None:
    is_refused(wire.PROTOBUF, "", body)

    assert is_refused(wire.PROTOBUF, "gzip", body)


def test_bytes_in_json_are_base64() -> None:
    value = {"bytesValue": base64.b64encode(b"\0\1").decode()}
    body = {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": value}]}]}]}
    message = decode_request(SIGNALS[LOGS], wire.JSON, "", orjson.dumps(body))
    assert message.resource_logs[0].scope_logs[0].log_records[0].body.bytes_value == b"\0\1"


def test_the_response_without_rejected_records_has_no_partial_success() -> None:
    assert not ExportLogsServiceResponse.FromString(wire.encode_response(SIGNALS[LOGS], wire.PROTOBUF, 0, "")).HasField(
        "partial_success"
    )
