"""The gateway's address answers with and without a running daemon; the tests kill real processes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
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

from hypaware.clients import attach
from hypaware.errors import NotReady
from hypaware.gateway import handover, routes
from hypaware.gateway.fallback import Fallback
from hypaware.home import Home, locks
from tests.support import processes
from tests.support.ports import FreePort
from tests.support.processes import PATIENCE, eventually
from tests.support.tunnel import tunnel_to

# A minimal daemon: it takes the socket and answers every request itself.
DAEMON = """
import os, socket, sys, time
from hypaware.gateway import handover
from hypaware.home import Home

held = handover.acquire_socket(Home.from_environment(), sys.argv[1])
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
    with serve(server) as port:
        yield port


@contextmanager
def serve(server: ThreadingHTTPServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def fallback_home(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A home whose fallback is stopped at the end of the test."""
    for name in ("_START_SECONDS", "_ANSWER_SECONDS"):
        monkeypatch.setattr(handover, name, 120.0)
    home.root.mkdir(mode=0o700)
    try:
        yield home
    finally:
        if (pid := locks.lock_holder(handover.fallback_lock_path(home))) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            eventually(lambda: not locks.is_locked(handover.fallback_lock_path(home)))


def configure_upstream(home: Home, url: str) -> None:
    home.config.write_text(
        f'version = 1\n[[gateway.upstreams]]\nname = "stub"\npath_prefix = "/"\nbase_url = "{url}"\n'
    )


def request(
    port: int, path: str = "/claude/v1/messages?beta=true", body: bytes = b"{}", **headers: str
) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
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
def test_a_client_reaches_its_provider_before_during_and_after_a_daemon_runs(fallback_home: Home, address: str) -> None:
    port = int(address.rpartition(":")[2])
    with provider() as upstream_port:
        configure_upstream(fallback_home, f"http://127.0.0.1:{upstream_port}")
        assert handover.ensure_listener(fallback_home, f"http://{address}/claude")
        assert not handover.ensure_listener(fallback_home, f"http://{address}/claude")
        status, answer = request(port, body=b"x" * 3_000_000)
        assert (status, answer.startswith("data: one\n\n")) == (200, True)
        seen = json.loads(answer.partition("\n\n")[2])
        assert (seen["path"], seen["bytes"]) == ("/v1/messages?beta=true", 3_000_000)
        assert seen["headers"]["host"] == f"127.0.0.1:{upstream_port}"
        assert seen["headers"]["x-api-key"] == "k"
        assert "accept-encoding" in seen["headers"]
        assert "x-hyp-dev-run-id" not in seen["headers"]
        fallback_pid = locks.lock_holder(handover.fallback_lock_path(fallback_home))
        for _ in range(2):
            with processes.running(DAEMON, fallback_home, address) as daemon:
                assert daemon.stdout is not None
                assert int(daemon.stdout.readline()) == port
                assert [request(port) for _ in range(5)] == [(200, f"daemon {daemon.pid}")] * 5
                daemon.send_signal(signal.SIGKILL)
                daemon.wait(PATIENCE)
                # At once: a connection that arrived in between waits in the same queue.
                assert request(port)[1].startswith("data: one")
        assert locks.lock_holder(handover.fallback_lock_path(fallback_home)) == fallback_pid
        status, answer = request(port, handover.HEALTH_PATH)
        assert (status, json.loads(answer)) == (
            200,
            {**handover.describe_health(fallback_home, "fallback"), "pid": fallback_pid},
        )
        with (
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client,
            client.makefile("rb") as answered,
        ):
            client.sendall(b"this is no request\r\n\r\n")
            head, _, body = answered.read().partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400")
            assert json.loads(body)["error"]["type"] == "malformed_request"


@pytest.mark.hazard(111)
def test_the_fallback_refuses_a_websocket_immediately(fallback_home: Home, address: str) -> None:
    """Codex then uses HTTP immediately; after any other answer it tries again for seconds."""
    with handover.acquire_socket(fallback_home, address) as held, provider() as upstream_port:
        port = held.address[1]
        configure_upstream(fallback_home, f"http://127.0.0.1:{upstream_port}")
    status, answer = request(port, "/codex/v1/responses", Connection="Upgrade", Upgrade="websocket")
    assert (status, json.loads(answer)["error"]["type"]) == (426, "websocket_refused")


@pytest.mark.hazard(63)
def test_when_the_fallback_is_killed_the_daemon_keeps_serving_and_starts_another(
    fallback_home: Home, address: str
) -> None:
    with handover.acquire_socket(fallback_home, address) as held, provider() as upstream_port:
        configure_upstream(fallback_home, f"http://127.0.0.1:{upstream_port}")
        assert not held.ensure_fallback()
        first = locks.lock_holder(handover.fallback_lock_path(fallback_home))
        assert first is not None
        os.kill(first, signal.SIGKILL)
        eventually(lambda: not locks.is_locked(handover.fallback_lock_path(fallback_home)))
        assert held.ensure_fallback()
        assert not held.ensure_fallback()
        assert locks.lock_holder(handover.fallback_lock_path(fallback_home)) not in (None, first)
        held.release()
        assert request(port_of(address))[1].startswith("data: one")


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


@pytest.mark.hazard(63)
def test_after_an_upgrade_a_fallback_of_the_new_version_takes_over(
    fallback_home: Home, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handover.acquire_socket(fallback_home, address).release()
    old = locks.lock_holder(handover.fallback_lock_path(fallback_home))
    with provider() as upstream_port:
        configure_upstream(fallback_home, f"http://127.0.0.1:{upstream_port}")
        monkeypatch.setattr(handover, "__version__", "of another time")
        with handover.acquire_socket(fallback_home, address):
            new = locks.lock_holder(handover.fallback_lock_path(fallback_home))
            assert new not in (None, old)
            processes.wait_until_gone(old or 0)
        assert request(port_of(address))[1].startswith("data: one")


def test_concurrent_starts_yield_one_fallback(fallback_home: Home, address: str) -> None:
    codes = processes.together([lambda: handover.acquire_socket(fallback_home, address).release() for _ in range(4)])
    assert codes == [0] * 4
    pid = locks.lock_holder(handover.fallback_lock_path(fallback_home))

    def list_processes() -> list[int]:
        found = psutil.process_iter(["cmdline"])
        return [each.pid for each in found if str(fallback_home.root) in (each.info["cmdline"] or ())]

    # The processes that lost the race have reported it and are exiting.
    eventually(lambda: list_processes() == [pid])


def test_an_address_that_is_in_use_is_reported(fallback_home: Home) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(NotReady, match="cannot listen"):
            handover.acquire_socket(fallback_home, f"127.0.0.1:{other.getsockname()[1]}")


@pytest.mark.hazard(63)
def test_the_fallback_verifies_its_provider_and_reports_errors(
    fallback_home: Home, address: str, free_port: FreePort, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    good, bad = (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) for _ in range(2))
    authority.issue_cert("localhost").configure_cert(good)
    trustme.CA().issue_cert("localhost").configure_cert(bad)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with handover.acquire_socket(fallback_home, address) as held:
        port = held.address[1]
    with provider(good) as upstream_port:
        configure_upstream(fallback_home, f"https://localhost:{upstream_port}")
        assert request(port)[1].startswith("data: one")
    with provider(bad) as upstream_port:
        configure_upstream(fallback_home, f"https://localhost:{upstream_port}")
        status, answer = request(port)
        assert (status, json.loads(answer)["error"]["type"]) == (502, "upstream_down")
    configure_upstream(fallback_home, f"http://127.0.0.1:{free_port()}")
    assert request(port)[0] == 502
    fallback_home.config.write_text("version = 1")
    assert request(port, "/nowhere/at/all")[0] == 404


@pytest.mark.hazard(63)
def test_a_broken_config_or_a_removed_home_leaves_a_client_at_its_own_upstream(
    fallback_home: Home, address: str, tmp_path: Path
) -> None:
    """Its keys are for that upstream; the provider's own must not see them."""
    with provider() as upstream_port:
        own = attach.PreviousUpstream("/codex", f"http://127.0.0.1:{upstream_port}/llm")
        record = attach.AttachRecord("codex", "/x", True, "", "", (), "http://127.0.0.1:7/codex", upstreams=(own,))
        attach.write_record(fallback_home, record)
        configure_upstream(fallback_home, f"http://127.0.0.1:{upstream_port}")
        with handover.acquire_socket(fallback_home, address) as held:
            port = held.address[1]
        fallback_home.config.write_text("this is no config")
        assert '"path": "/v1/messages"' in request(port, "/claude/v1/messages")[1]
        fallback_home.root.rename(tmp_path / "removed")
        assert '"path": "/v1/messages"' in request(port, "/claude/v1/messages")[1]
        assert '"path": "/llm/v1/responses"' in request(port, "/codex/v1/responses")[1]
        (tmp_path / "removed").rename(fallback_home.root)


@pytest.mark.hazard(63)
def test_the_fallback_uses_the_configured_proxy(
    fallback_home: Home, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("provider.example").configure_cert(context)
    with provider(context) as upstream_port, tunnel_to(upstream_port) as tunnel:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        monkeypatch.setenv("HTTPS_PROXY", tunnel.url.replace("://", "://me:p%40ss@"))
        monkeypatch.setenv("NO_PROXY", "elsewhere.example, .internal.example")
        configure_upstream(fallback_home, f"https://provider.example:{upstream_port}")
        with handover.acquire_socket(fallback_home, address) as held:
            port = held.address[1]
        assert request(port)[1].startswith("data: one")
        assert tunnel.asked == [(f"provider.example:{upstream_port}", "Basic bWU6cEBzcw==")]


@pytest.mark.hazard(63)
def test_requests_still_go_through_the_users_own_proxy(fallback_home: Home, address: str) -> None:
    with provider() as upstream_port:
        own = attach.PreviousUpstream("/claude", f"http://127.0.0.1:{upstream_port}/llm")
        attach.write_record(
            fallback_home,
            # The fallback opens this address too, so it is one that no other test expects to be closed.
            attach.AttachRecord("claude", "/x", True, "", "", (), "http://127.0.0.1:7/claude", upstreams=(own,)),
        )
        assert routes.has_attached_client(fallback_home)
        with handover.acquire_socket(fallback_home, address) as held:
            port = held.address[1]
        assert '"path": "/llm/v1/messages"' in request(port, "/claude/v1/messages")[1]
        # A session that is open when its client is detached still calls this address, with the keys of that proxy.
        attach.remove_record(fallback_home, "claude")
        assert not routes.has_attached_client(fallback_home)
        assert '"path": "/llm/v1/messages"' in request(port, "/claude/v1/messages")[1]


def test_the_custom_upstream_of_a_detached_client_is_used_for_a_week_or_until_the_next_attach(home: Home) -> None:
    own = attach.PreviousUpstream("/claude", "http://127.0.0.1:1/llm")
    record = attach.AttachRecord("claude", "/x", True, "", "", (), "http://127.0.0.1:1/claude", upstreams=(own,))
    attach.write_record(home, record)
    attach.remove_record(home, "claude")
    assert [each.base_url for each in routes.read_custom_upstreams(home)] == [own.base_url]
    left = attach.left_upstream_path(attach.record_path(home, "claude"))
    os.utime(left, (time.time() - 8 * 86_400,) * 2)
    assert routes.read_custom_upstreams(home) == ()
    os.utime(left)
    attach.write_record(home, replace(record, upstreams=()))
    assert routes.read_custom_upstreams(home) == ()
    attach.remove_record(home, "claude")
    assert routes.read_custom_upstreams(home) == ()
    assert not left.exists()


def test_the_fallback_exits_when_it_is_not_needed(home: Home) -> None:
    home.run.mkdir(parents=True)
    path = attach.record_path(home, "claude")
    path.parent.mkdir(parents=True)
    path.write_text("{}")

    async def life() -> bool:
        fallback = Fallback(home, linger=-1)
        kept = not fallback._is_superfluous()
        path.unlink()
        await asyncio.wait_for(fallback.run([]), PATIENCE)
        return kept

    assert asyncio.run(life())


def test_the_fallback_uses_little_memory(fallback_home: Home, address: str) -> None:
    with handover.acquire_socket(fallback_home, address), provider() as upstream_port:
        configure_upstream(fallback_home, f"http://127.0.0.1:{upstream_port}")
        process = psutil.Process(locks.lock_holder(handover.fallback_lock_path(fallback_home)))
        loaded = {Path(each.path).name.partition(".")[0] for each in process.memory_maps()}
        assert not {name for name in loaded if "arrow" in name or "pyspark" in name or "aiohttp" in name}
        assert process.memory_info().rss < 60 << 20


@pytest.mark.hazard(110)
@pytest.mark.parametrize("made_by", ["another user", "everyone", "a link"])
def test_a_socket_in_the_temporary_folder_that_others_made_is_not_used(made_by: str, tmp_path: Path) -> None:
    """The home's path is too long for a socket."""
    home = Home(tmp_path / ("long-" * 30))
    home.root.mkdir(mode=0o700)
    path = handover.control_socket_path(home)
    assert not path.is_relative_to(home.root)
    theirs = tmp_path / "theirs" if made_by == "a link" else path.parent
    theirs.mkdir(mode=0o700)
    if made_by == "a link":
        path.parent.symlink_to(theirs)
    elif made_by == "everyone":
        theirs.chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(theirs, 65534, 65534)
    else:
        pytest.skip("only root can create a folder for another user")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as impostor:
            impostor.bind(str(path))
            impostor.listen()
            with pytest.raises(NotReady, match="is not private to you") as refused:
                handover.open_address(home, "127.0.0.1:0")
            impostor.setblocking(False)
            with pytest.raises(BlockingIOError):
                impostor.accept()
    finally:
        shutil.rmtree(theirs)
        path.parent.unlink(missing_ok=True)
    assert refused.value.kind == "fallback_socket_unsafe"
    assert str(path.parent) in refused.value.message
