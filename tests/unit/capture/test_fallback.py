"""The gateway's address answers with and without a running daemon; the tests kill real processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest
import trustme

from hypaware import lock_file
from hypaware.capture import handover, own_upstreams
from hypaware.capture.fallback import Fallback
from hypaware.clients import undo
from hypaware.errors import NotReady
from hypaware.home import Home
from tests import processes
from tests.ports import FreePort
from tests.processes import eventually

# A minimal daemon: it takes the socket and answers every request itself.
DAEMON = """
import os, socket, sys, time
from hypaware.capture import handover
from hypaware.home import Home
held = handover.take(Home.from_environment(), sys.argv[1])
held.socket.setblocking(True)
print(held.address[1], flush=True)
while True:
    client, _ = held.socket.accept()
    client.recv(65536)
    body = b"daemon %d" % os.getpid()
    client.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\nConnection: close\\r\\n\\r\\n%s" % (len(body), body))
    client.close()
"""


class Provider(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        seen = {"path": self.path, "headers": {k.lower(): v for k, v in self.headers.items()}, "bytes": len(body)}
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for piece in (b"data: one\n\n", json.dumps(seen).encode()):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST

    def log_message(self, *_arguments: object) -> None:
        pass


@contextmanager
def provider(context: ssl.SSLContext | None = None) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    with serving(server) as port:
        yield port


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def listening(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A home whose fallback is stopped at the end of the test."""
    for name in ("_START_SECONDS", "_ANSWER_SECONDS"):
        monkeypatch.setattr(handover, name, 120.0)
    home.root.mkdir(mode=0o700)
    try:
        yield home
    finally:
        if (pid := lock_file.holder(handover.lock_path(home))) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            eventually(lambda: not lock_file.is_taken(handover.lock_path(home)))


def upstream(home: Home, url: str) -> None:
    home.config.write_text(
        f'version = 1\n[[gateway.upstreams]]\nname = "stub"\npath_prefix = "/"\nbase_url = "{url}"\n'
    )


def ask(port: int, path: str = "/claude/v1/messages?beta=true", body: bytes = b"{}", **headers: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", path, body, {"X-Api-Key": "k", "x-hyp-dev-run-id": "r", **headers})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.fixture
def address(free_port: FreePort) -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.mark.hazard(63)
def test_a_client_reaches_its_provider_before_during_and_after_a_daemon_runs(listening: Home, address: str) -> None:
    port = int(address.rpartition(":")[2])
    with provider() as upstream_port:
        upstream(listening, f"http://127.0.0.1:{upstream_port}")
        assert handover.wake(listening, f"http://{address}/claude")
        assert not handover.wake(listening, f"http://{address}/claude")
        status, answer = ask(port, body=b"x" * 3_000_000)
        assert (status, answer.startswith("data: one\n\n")) == (200, True)
        seen = json.loads(answer.partition("\n\n")[2])
        assert (seen["path"], seen["bytes"]) == ("/v1/messages?beta=true", 3_000_000)
        assert seen["headers"]["host"] == f"127.0.0.1:{upstream_port}"
        assert seen["headers"]["x-api-key"] == "k"
        assert "accept-encoding" in seen["headers"]
        assert "x-hyp-dev-run-id" not in seen["headers"]
        fallback_pid = lock_file.holder(handover.lock_path(listening))
        for _ in range(2):
            with processes.running(DAEMON, listening, address) as daemon:
                assert daemon.stdout is not None
                assert int(daemon.stdout.readline()) == port
                assert [ask(port) for _ in range(5)] == [(200, f"daemon {daemon.pid}")] * 5
                daemon.send_signal(signal.SIGKILL)
                daemon.wait(60)
                # At once: a connection that arrived in between waits in the same queue.
                assert ask(port)[1].startswith("data: one")
        assert lock_file.holder(handover.lock_path(listening)) == fallback_pid
        status, answer = ask(port, handover.HEALTH)
        assert (status, json.loads(answer)) == (200, {**handover.health(listening, "fallback"), "pid": fallback_pid})
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client, client.makefile("rb") as answered:
            client.sendall(b"this is no request\r\n\r\n")
            head, _, body = answered.read().partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400")
            assert json.loads(body)["error"]["type"] == "malformed_request"


@pytest.mark.hazard(63)
def test_when_the_fallback_is_killed_the_daemon_keeps_serving_and_starts_another(listening: Home, address: str) -> None:
    with handover.take(listening, address) as held, provider() as upstream_port:
        upstream(listening, f"http://127.0.0.1:{upstream_port}")
        assert not held.ensure_fallback()
        first = lock_file.holder(handover.lock_path(listening))
        assert first is not None
        os.kill(first, signal.SIGKILL)
        eventually(lambda: not lock_file.is_taken(handover.lock_path(listening)))
        assert held.ensure_fallback()
        assert not held.ensure_fallback()
        assert lock_file.holder(handover.lock_path(listening)) not in (None, first)
        held.release()
        assert ask(taken_port(address))[1].startswith("data: one")


def taken_port(address: str) -> int:
    return int(address.rpartition(":")[2])


@pytest.mark.hazard(63)
def test_after_an_upgrade_a_fallback_of_the_new_version_takes_over(
    listening: Home, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handover.take(listening, address).release()
    old = lock_file.holder(handover.lock_path(listening))
    with provider() as upstream_port:
        upstream(listening, f"http://127.0.0.1:{upstream_port}")
        monkeypatch.setattr(handover, "__version__", "of another time")
        with handover.take(listening, address):
            new = lock_file.holder(handover.lock_path(listening))
            assert new not in (None, old)
            processes.wait_until_gone(old or 0)
        assert ask(taken_port(address))[1].startswith("data: one")


def test_concurrent_starts_yield_one_fallback(listening: Home, address: str) -> None:
    codes = processes.together([lambda: handover.take(listening, address).release() for _ in range(4)])
    assert codes == [0] * 4
    pid = lock_file.holder(handover.lock_path(listening))

    def named() -> list[int]:
        found = psutil.process_iter(["cmdline"])
        return [each.pid for each in found if str(listening.root) in (each.info["cmdline"] or ())]

    # The processes that lost the race have reported it and are exiting.
    eventually(lambda: named() == [pid])


def test_an_address_that_is_in_use_is_reported(listening: Home) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(NotReady, match="cannot listen"):
            handover.take(listening, f"127.0.0.1:{other.getsockname()[1]}")


@pytest.mark.hazard(63)
def test_the_fallback_verifies_its_provider_and_reports_errors(
    listening: Home, address: str, free_port: FreePort, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    good, bad = (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) for _ in range(2))
    authority.issue_cert("localhost").configure_cert(good)
    trustme.CA().issue_cert("localhost").configure_cert(bad)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with handover.take(listening, address) as held:
        port = held.address[1]
    with provider(good) as upstream_port:
        upstream(listening, f"https://localhost:{upstream_port}")
        assert ask(port)[1].startswith("data: one")
    with provider(bad) as upstream_port:
        upstream(listening, f"https://localhost:{upstream_port}")
        status, answer = ask(port)
        assert (status, json.loads(answer)["error"]["type"]) == (502, "upstream_down")
    upstream(listening, f"http://127.0.0.1:{free_port()}")
    assert ask(port)[0] == 502
    listening.config.write_text("this is no config")
    assert ask(port, "/nowhere/at/all")[0] == 404


class Tunnel(BaseHTTPRequestHandler):
    """A proxy that resolves every name to this machine."""

    def do_CONNECT(self) -> None:
        asked.append((self.path, self.headers.get("Proxy-Authorization")))
        with socket.create_connection(("127.0.0.1", int(self.path.rpartition(":")[2]))) as other:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            upward = threading.Thread(target=copy, args=(self.connection, other))
            upward.start()
            copy(other, self.connection)
            self.connection.shutdown(socket.SHUT_RDWR)
            upward.join()

    def log_message(self, *_arguments: object) -> None:
        pass


asked: list[tuple[str, str | None]] = []


def copy(source: socket.socket, to: socket.socket) -> None:
    with suppress(OSError):
        while block := source.recv(65536):
            to.sendall(block)


@pytest.mark.hazard(63)
def test_the_fallback_uses_the_configured_proxy(
    listening: Home, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("provider.example").configure_cert(context)
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Tunnel)) as proxy_port, provider(context) as upstream_port:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:p%40ss@127.0.0.1:{proxy_port}")
        monkeypatch.setenv("NO_PROXY", "elsewhere.example, .internal.example")
        upstream(listening, f"https://provider.example:{upstream_port}")
        with handover.take(listening, address) as held:
            port = held.address[1]
        assert ask(port)[1].startswith("data: one")
        assert asked == [(f"provider.example:{upstream_port}", "Basic bWU6cEBzcw==")]


@pytest.mark.hazard(63)
def test_requests_still_go_through_the_users_own_proxy(listening: Home, address: str) -> None:
    with provider() as upstream_port:
        own = undo.OwnUpstream("/claude", f"http://127.0.0.1:{upstream_port}/llm")
        undo.write(listening, undo.Record("claude", "/x", True, "", "", (), "http://127.0.0.1:1/claude", upstream=own))
        assert own_upstreams.attached(listening)
        with handover.take(listening, address) as held:
            port = held.address[1]
        assert '"path": "/llm/v1/messages"' in ask(port, "/claude/v1/messages")[1]
        # A session that is open when its client is detached still calls this address, with the keys of that proxy.
        undo.remove(listening, "claude")
        assert not own_upstreams.attached(listening)
        assert '"path": "/llm/v1/messages"' in ask(port, "/claude/v1/messages")[1]


def test_the_custom_upstream_of_a_detached_client_is_used_for_a_week_or_until_the_next_attach(home: Home) -> None:
    own = undo.OwnUpstream("/claude", "http://127.0.0.1:1/llm")
    record = undo.Record("claude", "/x", True, "", "", (), "http://127.0.0.1:1/claude", upstream=own)
    undo.write(home, record)
    undo.remove(home, "claude")
    assert [each.base_url for each in own_upstreams.read(home)] == [own.base_url]
    left = own_upstreams.left_path(undo.path_of(home, "claude"))
    os.utime(left, (time.time() - 8 * 86_400,) * 2)
    assert own_upstreams.read(home) == ()
    os.utime(left)
    undo.write(home, replace(record, upstream=None))
    assert own_upstreams.read(home) == ()
    undo.remove(home, "claude")
    assert own_upstreams.read(home) == ()
    assert not left.exists()


def test_the_fallback_exits_when_it_is_not_needed(home: Home) -> None:
    home.run.mkdir(parents=True)
    path = undo.path_of(home, "claude")
    path.parent.mkdir(parents=True)
    path.write_text("{}")

    async def life() -> bool:
        fallback = Fallback(home, linger=-1)
        kept = not fallback._is_superfluous()
        path.unlink()
        await asyncio.wait_for(fallback.run([]), 60)
        return kept

    assert asyncio.run(life())


def test_the_fallback_uses_little_memory(listening: Home, address: str) -> None:
    with handover.take(listening, address), provider() as upstream_port:
        upstream(listening, f"http://127.0.0.1:{upstream_port}")
        process = psutil.Process(lock_file.holder(handover.lock_path(listening)))
        loaded = {Path(each.path).name.partition(".")[0] for each in process.memory_maps()}
        assert not {name for name in loaded if "arrow" in name or "pyspark" in name or "aiohttp" in name}
        assert process.memory_info().rss < 60 << 20
