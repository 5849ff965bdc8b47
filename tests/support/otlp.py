"""Requests to an OTLP receiver: messages made by hand, and a receiver in this process."""

from __future__ import annotations

import asyncio
import http.client
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import orjson
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from hypaware import config as configuration
from hypaware.gateway.handover import bind_listener
from hypaware.home import Home
from hypaware.otlp.receiver import OtlpReceiver
from hypaware.otlp.wire import JSON, PROTOBUF
from hypaware.otlp.writer import TelemetryWriter
from hypaware.spool import segments
from hypaware.spool.writer import Spool
from tests.support.processes import PATIENCE

NOVEMBER = 1_794_873_600_000_000_000
"""2026-11-17 00:00 UTC in nanoseconds."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


def send(port: int, path: str, body: bytes, content_type: str = PROTOBUF, **headers: str) -> Answer:
    """Send a request. Headers are named like `Content_Encoding`."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        written = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("POST", path, body, {"Content-Type": content_type, **written})
        response = connection.getresponse()
        return Answer(response.status, dict(response.headers), response.read())
    finally:
        connection.close()


def send_json(port: int, path: str, body: bytes, **headers: str) -> Answer:
    return send(port, path, body, JSON, **headers)


def attribute(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


def make_logs(*bodies: str, service: str = "claude-code", session: str = "s-1") -> ExportLogsServiceRequest:
    """Return a request with a log record for each body, a millisecond apart."""
    request = ExportLogsServiceRequest()
    group = request.resource_logs.add()
    group.resource.attributes.append(attribute("service.name", service))
    scope = group.scope_logs.add()
    scope.scope.name = "events"
    for at, body in enumerate(bodies):
        record = scope.log_records.add(time_unix_nano=NOVEMBER + at * 1_000_000)
        record.body.string_value = body
        record.attributes.append(attribute("session.id", session))
    return request


def spooled_rows(home: Home, dataset: str) -> list[dict[str, Any]]:
    """Return the rows of the spool in the order in which they arrived, with duplicates."""
    folder = segments.spool_folder(home, dataset)
    files = [path for state in (folder.sealed, folder.active) if state.is_dir() for path in state.glob("*.jsonl")]
    lines = [line for path in sorted(files, key=lambda each: each.name) for line in path.read_bytes().splitlines()]
    return [orjson.loads(line)["row"] for line in lines]


@dataclass(frozen=True)
class RunningReceiver:
    port: int
    receiver: OtlpReceiver
    writer: TelemetryWriter
    spool: Spool


@contextmanager
def running_receiver(home: Home) -> Iterator[RunningReceiver]:
    """Run a receiver on a thread of this process, with the config of the home."""
    ready = threading.Event()
    found: list[RunningReceiver] = []
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    failure: list[BaseException] = []

    async def serve() -> None:
        with Spool(home) as spool:
            writer = TelemetryWriter(spool, configuration.load(home))
            listener = bind_listener("127.0.0.1:0")
            receiver = OtlpReceiver(listener, writer)
            await receiver.start()
            found.append(RunningReceiver(listener.getsockname()[1], receiver, writer, spool))
            ready.set()
            await stop.wait()
            await receiver.stop(PATIENCE)

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        except BaseException as error:
            failure.append(error)
        finally:
            loop.close()
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        assert not failure, failure
        yield found[0]
    finally:
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)
        thread.join()
    assert not failure, failure
