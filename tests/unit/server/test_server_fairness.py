"""A hostile client takes neither the connections nor the workers of others."""

from __future__ import annotations

import gzip
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hypaware.home import Home
from hypaware.server import validation
from hypaware.server.limits import FairQueue, ServerLimits
from hypaware.server.validation import BatchClaims, ValidatedRows, ValidatorPool
from tests.support.processes import PATIENCE, eventually
from tests.support.receiver import LIMITS, Client, Gateway, Server, served, stored
from tests.support.rows import MESSAGES

CONNECTIONS = 20


@contextmanager
def half_open(server: Server, count: int, message: bytes = b"") -> Iterator[list[socket.socket]]:
    """Open connections that send no request, or only the beginning of one."""
    place = urlsplit(server.url)
    with ExitStack() as opened:
        yield [opened.enter_context(_connect(place.hostname or "", place.port or 0, message)) for _ in range(count)]


def _connect(host: str, port: int, message: bytes) -> socket.socket:
    sock = socket.create_connection((host, port), timeout=PATIENCE)
    sock.sendall(message)
    return sock


@pytest.fixture
def small(home: Home) -> Iterator[Server]:
    with served(home, replace_limits(connections=CONNECTIONS)) as server:
        yield server


def replace_limits(**changed: int) -> ServerLimits:
    return ServerLimits(keep_free_bytes=0, **changed)


@pytest.mark.parametrize("message", [b"", b"POST /v1/ingest/proxy HTTP/1.1\r\nHost: x\r\n"])
def test_half_open_connections_do_not_keep_others_out(small: Server, message: bytes) -> None:
    gateway = small.enrolled()
    with half_open(small, 5 * CONNECTIONS, message) as hostile:
        assert gateway.deliver(0, 5).status == 202
        assert hostile[0].recv(1) == b"", "the oldest idle connection is closed"
        assert small.parts.connections.count <= CONNECTIONS
        # Those that remain keep nobody out either.
        assert gateway.deliver(5, 9).status == 202
    eventually(lambda: small.parts.connections.count == 0)


def test_a_request_in_progress_is_never_disconnected(small: Server) -> None:
    gateway = small.enrolled()
    body = gateway.rows(3)
    lines = ["POST /v1/ingest/proxy HTTP/1.1", "Host: x", f"Authorization: Bearer {gateway.jwt}"]
    lines += ["Content-Type: application/x-ndjson", "X-Hyp-Batch-Id: b-1", f"Content-Length: {len(body)}", "", ""]
    with half_open(small, 1, "\r\n".join(lines).encode() + body[:-1]) as (uploading,):
        eventually(lambda: small.parts.body_memory.reserved)
        with half_open(small, 3 * CONNECTIONS):
            assert Client(small.url).ask("GET", "/healthz").status == 200
            uploading.sendall(body[-1:])
            assert b" 202 " in uploading.recv(100)


def test_a_gateway_with_endless_work_leaves_workers_for_others(
    server: Server, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile, honest = server.enrolled("hostile"), server.enrolled("honest")
    validate, released, working = ValidatorPool.validate, threading.Event(), Counter[str]()

    def validate_slowly(self: ValidatorPool, claims: BatchClaims, body: bytes, incoming: Path) -> ValidatedRows:
        working[str(claims.gateway_id)] += 1
        if claims.gateway_id == "hostile":
            released.wait(PATIENCE)
        return validate(self, claims, body, incoming)

    monkeypatch.setattr(ValidatorPool, "validate", validate_slowly)
    with ThreadPoolExecutor(LIMITS.requests_at_once) as pool:
        try:
            waiting = [pool.submit(hostile.deliver, n, n + 1) for n in range(LIMITS.requests_at_once)]
            eventually(lambda: working["hostile"])
            for number in range(5):
                assert honest.deliver(number, number + 1).status == 202
            assert working["hostile"] <= max(1, ValidatorPool(LIMITS).processes // 2)
        finally:
            released.set()
        assert {each.result().status for each in waiting} == {202}
    assert len(stored(home)) == 5 + LIMITS.requests_at_once


@pytest.mark.parametrize("encoding", [None, "gzip"])
def test_a_large_batch_is_validated_in_a_worker_however_small_it_is_compressed(
    encoding: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("it occupies the process that answers requests")

    content = Gateway("", gateway_id="gw").rows(2_000)
    body = gzip.compress(content) if encoding else content
    assert len(content) > validation._LARGE_BATCH
    assert encoding is None or len(body) < validation._LARGE_BATCH // 4
    monkeypatch.setattr(validation, "validate_batch", refuse)
    pool = ValidatorPool(LIMITS, processes=1)
    try:
        assert pool.validate(BatchClaims(MESSAGES, "gw", encoding, None), body, tmp_path).rows == 2_000
    finally:
        pool.close()


def test_work_of_one_key_waits_for_its_share_and_keys_take_turns() -> None:
    queue, release = FairQueue(3, 2), threading.Event()
    begun: list[str] = []

    def work(name: str) -> None:
        begun.append(name)
        release.wait(PATIENCE)

    for number in range(4):
        queue.submit("a", lambda name=f"a{number}": work(name))  # type: ignore[misc]
    eventually(lambda: len(begun) == 2)
    queue.submit("b", lambda: work("b0"))
    eventually(lambda: len(begun) == 3)
    queue.submit("b", lambda: work("b1"))
    queue.submit("c", lambda: work("c0"))
    assert sorted(begun) == ["a0", "a1", "b0"], "all threads are in use"
    release.set()
    queue.close()

    assert sorted(begun) == ["a0", "a1", "a2", "a3", "b0", "b1", "c0"]
