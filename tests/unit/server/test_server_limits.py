"""Limits: requests over a limit are rejected with the reason or Retry-After, and nothing is stored."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from hypaware.home import Home
from hypaware.server.http import HttpProblem
from hypaware.server.limits import MIB, ByteBudget, ConcurrencyLimit, RateLimiter, ServerLimits
from tests.support.processes import PATIENCE, eventually
from tests.support.receiver import Gateway, Server, incoming_files, served, stored

pytestmark = pytest.mark.hazard(60)


@contextmanager
def limited(home: Home, **limits: float) -> Iterator[tuple[Server, Gateway]]:
    """Run a server with these limits. The gateway enrols before them, so that they do not affect its enrolment."""
    with served(home) as before:
        gateway = before.enrolled()
    with served(home, ServerLimits(keep_free_bytes=0, **limits)) as server:  # type: ignore[arg-type]
        yield server, replace(gateway, url=server.url)


def test_limits_are_published(server: Server) -> None:
    answer = server.client.ask("GET", "/v1/capabilities")

    reported = answer.json
    assert (reported["server"], reported["api"]) == ("hypaware", 1)
    assert reported["extensions"] == ["batches", "watermark", "ranges", "dedupe"]
    assert reported["encodings"] == ["gzip", "zstd"]
    assert reported["limits"] == {
        "max_body_bytes": 8 * MIB,
        "max_decompressed_bytes": 64 * MIB,
        "max_rows": 10_000,
        "max_line_bytes": 8 * MIB,
    }
    assert reported["server_id"].startswith("srv-")


def test_large_body_is_rejected(home: Home) -> None:
    with limited(home, max_body_bytes=10_000) as (_, gateway):
        answer = gateway.send("b-1", gateway.rows(100))
        assert (answer.status, answer.error, answer.json["limit"]) == (413, "body_too_large", 10_000)
        assert gateway.send("b-1", gateway.rows(1)).status == 202
    assert len(stored(home)) == 1


def test_chunked_body_is_rejected_when_it_exceeds_the_limit(home: Home) -> None:
    with limited(home, max_body_bytes=100_000) as (_, gateway), raw(gateway) as wire:
        wire.sendall(head(gateway, "Transfer-Encoding: chunked"))
        piece = b" " * 10_000
        for _ in range(11):
            wire.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
        assert b" 413 " in wire.recv(100)
    assert stored(home) == []


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_decompression_bomb_stops_at_the_limit(gateway: Gateway, home: Home, encoding: str) -> None:
    size = 1 << 30
    bomb = _gzip_bomb(size) if encoding == "gzip" else _zstd_bomb(size)
    assert len(bomb) < 2 * MIB

    answer = gateway.send("b-1", bomb, Content_Encoding=encoding)
    assert (answer.status, answer.error, answer.json["limit"]) == (413, "body_too_large", 64 * MIB)
    assert stored(home) == []


def test_too_many_rows_are_rejected(home: Home) -> None:
    with limited(home, max_rows=10) as (_, gateway):
        answer = gateway.send("b-1", gateway.rows(11))
        assert (answer.status, answer.error, answer.json["limit"]) == (413, "too_many_rows", 10)
        assert gateway.send("b-1", gateway.rows(10)).status == 202
    assert len(stored(home)) == 10


def test_long_line_is_rejected_with_its_number(home: Home) -> None:
    with limited(home, max_line_bytes=2_000) as (_, gateway):
        answer = gateway.send("b-1", gateway.rows(2) + gateway.rows(1, start=2, content_text="x" * 3_000))
        assert (answer.status, answer.json["line"]) == (422, 3)
    assert stored(home) == []


def test_long_header_is_rejected(gateway: Gateway) -> None:
    assert gateway.send("b-1", gateway.rows(1), X_Hyp_Host="h" * 10_000).status == 400


def test_gateway_over_its_rate_limit_gets_retry_after(home: Home) -> None:
    with limited(home, requests_per_second=0.001) as (_, gateway):
        answer = gateway.send("b-1", gateway.rows(1))
        assert (answer.status, answer.error) == (429, "too_many_requests")
        assert int(answer.headers["retry-after"]) >= 1
    assert stored(home) == []


def test_concurrent_requests_are_limited_per_gateway(home: Home) -> None:
    with limited(home, requests_at_once=2) as (server, gateway), raw(gateway) as one, raw(gateway) as two:
        for number, wire in enumerate((one, two)):
            wire.sendall(head(gateway, "Content-Length: 10", f"X-Hyp-Batch-Id: slow-{number}"))
        eventually(lambda: server.parts.concurrency._active["gw-1"] == 2)
        answer = gateway.send("b-1", gateway.rows(1))
        assert (answer.status, answer.error, answer.headers["retry-after"]) == (429, "too_many_at_once", "1")
        assert server.enrolled("gw-2").send("b-1", b"").status == 202
        one.close()
        eventually(lambda: gateway.send("b-1", gateway.rows(1)).status == 202)


def test_memory_of_all_bodies_is_limited(home: Home) -> None:
    with limited(home, held_bytes=50_000) as (server, gateway), raw(gateway) as wire:
        wire.sendall(head(gateway, "Content-Length: 45000", "X-Hyp-Batch-Id: slow") + b" " * 40_000)
        eventually(lambda: server.parts.body_memory.reserved == 40_000)
        answer = server.enrolled("gw-2").send("b-1", gateway.rows(40))
        assert (answer.status, answer.error, answer.headers["retry-after"]) == (503, "busy", "1")
        wire.close()
        eventually(lambda: server.parts.body_memory.reserved == 0)
        assert gateway.send("b-1", gateway.rows(40)).status == 202
    assert len(stored(home)) == 40


def test_body_that_stalls_is_aborted(home: Home) -> None:
    with limited(home, idle_seconds=0.05) as (_, gateway), raw(gateway) as wire:
        wire.sendall(head(gateway, "Content-Length: 100") + b"{")
        assert b" 408 " in wire.recv(100)
    assert stored(home) == []


def test_slow_body_is_aborted(home: Home) -> None:
    with limited(home, body_seconds=0.3, idle_seconds=60) as (_, gateway), raw(gateway) as wire:
        wire.sendall(head(gateway, "Content-Length: 1000000"))
        stop = threading.Event()

        def drip() -> None:
            # The server may close the connection before we notice that we should stop.
            with suppress(OSError):
                while not stop.wait(0.01):
                    wire.sendall(b" ")

        dripping = threading.Thread(target=drip)
        dripping.start()
        answer = wire.recv(100)
        stop.set()
        dripping.join()
        assert b" 408 " in answer
    assert stored(home) == []


@pytest.mark.parametrize("message", [b"", b"POST /v1/ingest/proxy HTTP/1.1\r\nHost: x\r\n"])
def test_idle_connection_is_closed(home: Home, message: bytes) -> None:
    with limited(home, quiet_seconds=0.05) as (_, gateway), raw(gateway) as wire:
        wire.sendall(message)
        assert wire.recv(100) == b""


def test_truncated_body_stores_nothing(home: Home) -> None:
    with limited(home) as (server, gateway):
        with raw(gateway) as wire:
            body = gateway.rows(10)
            wire.sendall(head(gateway, f"Content-Length: {len(body)}", "X-Hyp-Batch-Id: b-1") + body[:-1])
            eventually(lambda: server.parts.body_memory.reserved)
        eventually(lambda: not server.parts.body_memory.reserved)
        assert stored(home) == []
        assert gateway.send("b-1", gateway.rows(10)).json["stored"] == 10
    assert incoming_files(home) == []


def test_rate_limit_is_per_key_and_recovers() -> None:
    now = [0.0]
    pace = RateLimiter(2.0, 3.0, lambda: now[0])
    for _ in range(3):
        pace.take("a")
    pace.take("b")
    with pytest.raises(HttpProblem) as refused:
        pace.take("a")
    assert (refused.value.status, refused.value.retry_after) == (429, 1.0)
    now[0] = 0.5
    pace.take("a")
    with pytest.raises(HttpProblem):
        pace.take("a")
    now[0] = 1_000.0
    for _ in range(3):
        pace.take("a")
    with pytest.raises(HttpProblem):
        pace.take("a")


def test_rate_limit_remembers_a_bounded_number_of_keys() -> None:
    pace = RateLimiter(1.0, 1.0, lambda: 0.0)
    for number in range(20_000):
        pace.take(str(number))
    assert len(pace._buckets) == 10_000


def test_limits_are_released_after_errors() -> None:
    concurrency, memory = ConcurrencyLimit(1), ByteBudget(10)

    def take_too_much() -> None:
        with concurrency.one("a"), memory.reserve() as share:
            share.grow_to(7)
            share.grow_to(11)

    for _ in range(3):
        with pytest.raises(HttpProblem, match="busy"):
            take_too_much()
    assert (memory.reserved, concurrency._active) == (0, {})


@contextmanager
def raw(gateway: Gateway) -> Iterator[socket.socket]:
    place = urlsplit(gateway.url)
    with socket.create_connection((place.hostname, place.port or 0), timeout=PATIENCE) as wire:
        yield wire


def head(gateway: Gateway, *lines: str) -> bytes:
    common = ["POST /v1/ingest/proxy HTTP/1.1", "Host: x", f"Authorization: Bearer {gateway.jwt}"]
    named = [] if any(line.startswith("X-Hyp-Batch-Id") for line in lines) else ["X-Hyp-Batch-Id: b-1"]
    return "\r\n".join([*common, "Content-Type: application/x-ndjson", *named, *lines, "", ""]).encode()


def _gzip_bomb(size: int) -> bytes:
    piece = gzip.compress(bytes(16 * MIB))
    return piece * (size // (16 * MIB))


def _zstd_bomb(size: int) -> bytes:
    piece: bytes = pa.Codec("zstd").compress(bytes(16 * MIB), asbytes=True)
    return piece * (size // (16 * MIB))


def test_all_errors_are_json(server: Server) -> None:
    for method, path, status in (
        ("GET", "/nowhere", 404),
        ("GET", "/v1/ingest/proxy", 405),
        ("PUT", "/v1/identity/bootstrap", 405),
    ):
        answer = server.client.ask(method, path)
        assert answer.status == status
        assert json.loads(answer.body).keys() == {"error"}
        assert answer.headers["server"] == "hypaware"
