"""Failures are reported to the client truthfully, and every exchange is recorded."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from hypaware.errors import ConfigError, NotReady
from hypaware.gateway import routes as gateway_routes
from hypaware.gateway.proxy import open_socket
from hypaware.gateway.routes import Route, Routes
from tests.support.live_gateway import ClientConnection, KeptExchanges, LiveGateway, post
from tests.support.ports import FreePort
from tests.support.processes import PATIENCE
from tests.support.upstream_stub import (
    ReceivedRequest,
    StubResponse,
    UpstreamStub,
    anthropic_events,
    authority,
    document,
)

pytestmark = pytest.mark.hazard(55)


@pytest.fixture
def kept() -> KeptExchanges:
    return KeptExchanges()


def parse_error(body: bytes) -> tuple[str, str]:
    found = json.loads(body)["error"]
    assert "HypAware" in found["message"]
    return found["type"], found["message"]


def test_an_unreachable_provider_is_reported_by_name(kept: KeptExchanges, tmp_path: Path, free_port: FreePort) -> None:
    port = free_port()
    with LiveGateway(Routes([Route("work", "/", f"https://127.0.0.1:{port}", "x")]), kept, tmp_path) as gateway:
        head, body = gateway.request(post("/v1/messages", b'{"a": 1}'))
        recording, _, answer = kept.only()

    assert head.startswith(b"HTTP/1.1 502")
    kind, message = parse_error(body)
    assert kind == "upstream_unreachable"
    assert f"127.0.0.1:{port} (work)" in message
    assert (recording.status, recording.error, answer) == (None, "upstream_down", b"")


def test_an_untrusted_certificate_is_rejected(kept: KeptExchanges, tmp_path: Path) -> None:
    with UpstreamStub() as stub:
        routes = Routes([Route("work", "/", stub.url, "x")])
        with LiveGateway(routes, kept, tmp_path) as gateway:
            head, body = gateway.request(post())

    assert head.startswith(b"HTTP/1.1 502")
    assert parse_error(body)[0] == "upstream_certificate"
    assert stub.seen == []


def test_ssl_cert_file_adds_to_the_system_authorities(kept: KeptExchanges, tmp_path: Path) -> None:
    with UpstreamStub() as stub:
        routes = Routes([Route("work", "/", stub.url, "x")])
        with LiveGateway(routes, kept, tmp_path, environment={"SSL_CERT_FILE": str(stub.ca_file)}) as gateway:
            head, _ = gateway.request(post())

        own = gateway_routes.build_tls_context({"SSL_CERT_FILE": str(stub.ca_file)})

    assert head.startswith(b"HTTP/1.1 200")
    usual = gateway_routes.build_tls_context({})
    assert own.cert_store_stats()["x509_ca"] > usual.cert_store_stats()["x509_ca"]
    assert own.verify_mode == ssl.CERT_REQUIRED


def test_an_unreadable_ssl_cert_file_is_reported(kept: KeptExchanges, tmp_path: Path) -> None:
    missing = {"SSL_CERT_FILE": str(tmp_path / "missing.pem")}
    with pytest.raises(NotReady, match=r"missing\.pem, which contains no certificates"):
        LiveGateway(Routes([]), kept, tmp_path, environment=missing).__enter__()


def test_upstream_sockets_use_tcp_keep_alive() -> None:
    with open_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))) as opened:
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0


def test_a_path_without_a_route_gets_a_json_error(kept: KeptExchanges, tmp_path: Path) -> None:
    with LiveGateway(Routes([]), kept, tmp_path) as gateway:
        head, body = gateway.request(b"GET /favicon.ico?secret=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 404")
    kind, message = parse_error(body)
    assert kind == "no_route"
    assert "/favicon.ico" in message
    assert "secret" not in message


@pytest.mark.hazard(111)
def test_a_websocket_is_refused_immediately_so_that_the_client_uses_http(kept: KeptExchanges, tmp_path: Path) -> None:
    asked = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n"
    with UpstreamStub() as stub, LiveGateway(stub, kept, tmp_path) as gateway:
        head, body = gateway.request(b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\n" + asked + b"\r\n")
        without_route, _ = gateway.request(b"GET /voice HTTP/1.1\r\nHost: localhost\r\n" + asked + b"\r\n")

    assert head.startswith(b"HTTP/1.1 426")
    assert without_route.startswith(b"HTTP/1.1 426")
    assert b"\r\nupgrade: http/1.1\r\n" in head.lower()
    assert parse_error(body)[0] == "websocket_refused"
    assert stub.seen == []
    assert kept.wait(0) == [], "the client sends the same request again, as HTTP"


def test_a_provider_that_closes_before_responding_is_reported(kept: KeptExchanges, tmp_path: Path) -> None:
    with UpstreamStub(lambda _seen: StubResponse(cut="head")) as stub, LiveGateway(stub, kept, tmp_path) as gateway:
        head, body = gateway.request(post("/v1/messages", b"{}"))
        recording, request, _ = kept.only()

    assert head.startswith(b"HTTP/1.1 502")
    assert parse_error(body)[0] == "upstream_closed"
    assert (recording.error, request) == ("upstream_down", b"{}")
    assert len(stub.seen) == 1, "a POST may have taken effect, so the gateway must not repeat it"


def test_an_invalid_http_response_is_distinguished_from_no_response(kept: KeptExchanges, tmp_path: Path) -> None:
    answer = StubResponse(headers=(("content-length", "3"), ("content-length", "4")), framing="none")
    with UpstreamStub(lambda _seen: answer) as stub, LiveGateway(stub, kept, tmp_path) as gateway:
        head, body = gateway.request(post("/v1/messages", b"{}"))

    assert head.startswith(b"HTTP/1.1 502")
    assert parse_error(body)[0] == "upstream_garbled"


def read_until_cut(pieces: Iterable[bytes]) -> bytes:
    got = b""
    try:
        for piece in pieces:
            got += piece
    except (EOFError, ConnectionResetError):
        return got
    pytest.fail("it ended as if it were whole")


@pytest.mark.parametrize("framing", ["chunked", "length"])
def test_a_truncated_stream_is_truncated_for_the_client_too(framing: str, kept: KeptExchanges, tmp_path: Path) -> None:
    answer = (
        StubResponse(pieces=anthropic_events()[:3], cut="body")
        if framing == "chunked"
        else StubResponse(pieces=anthropic_events()[:3], framing="length", length=10_000, cut="body")
    )
    whole = b"".join(anthropic_events()[:3])
    with UpstreamStub(lambda _seen: answer) as stub, LiveGateway(stub, kept, tmp_path) as gateway:
        with gateway.connect() as wire:
            wire.send(post())
            head = wire.head()
            pieces = iter(wire.chunk, b"") if framing == "chunked" else iter(lambda: wire.exactly(1), b"")
            got = read_until_cut(pieces)
        recording, _, body = kept.only()

    assert head.startswith(b"HTTP/1.1 200")
    assert got == body == whole
    assert (recording.status, recording.error, recording.response.complete) == (200, "upstream_cut", True)


def test_an_error_of_the_provider_is_forwarded_and_recorded(kept: KeptExchanges, tmp_path: Path) -> None:
    overloaded = document(
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, 529, "Busy"
    )
    with UpstreamStub(lambda _seen: overloaded) as stub, LiveGateway(stub, kept, tmp_path) as gateway:
        head, body = gateway.request(post())
        recording, _, answer = kept.only()

    assert head.startswith(b"HTTP/1.1 529 Busy\r\n")
    assert json.loads(body)["error"]["type"] == "overloaded_error"
    assert (recording.status, recording.error, answer) == (529, None, body)


def test_a_disconnecting_client_frees_its_provider_and_is_recorded(kept: KeptExchanges, tmp_path: Path) -> None:
    never = threading.Event()
    with (
        UpstreamStub(lambda _seen: StubResponse(pieces=(b"first", never))) as stub,
        LiveGateway(stub, kept, tmp_path) as gateway,
    ):
        with gateway.connect() as wire:
            wire.send(post())
            wire.head()
            assert wire.chunk() == b"first"
        recording, _, body = kept.only()
        never.set()
        assert stub.ended.acquire(timeout=PATIENCE)

    assert (recording.status, recording.error, body) == (200, "client_abort", b"first")


def test_a_client_that_disconnects_before_the_response_is_recorded(kept: KeptExchanges, tmp_path: Path) -> None:
    never = threading.Event()
    heard = threading.Event()

    def answer(_seen: ReceivedRequest) -> StubResponse:
        heard.set()
        return StubResponse(cut="head")

    with UpstreamStub(answer) as stub, LiveGateway(stub, kept, tmp_path) as gateway:
        with gateway.connect() as wire:
            wire.send(b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nonly this")
            stub.wait_received(9)
        recording, request, _ = kept.only()
        assert stub.ended.acquire(timeout=PATIENCE)
        never.set()

    assert (recording.status, recording.error, request) == (None, "client_abort", b"only this")


def test_a_response_that_precedes_the_end_of_the_request_is_forwarded(kept: KeptExchanges, tmp_path: Path) -> None:
    early = StubResponse(413, "Too Large", pieces=(b'{"error": "too large"}',), framing="length", before_body=True)
    with UpstreamStub(lambda _seen: early) as stub, LiveGateway(stub, kept, tmp_path) as gateway:
        with gateway.connect() as wire:
            wire.send(
                b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nX-Answer-Early: 1\r\n"
                b"Content-Length: 100000\r\n\r\nsome"
            )
            head, body = wire.answer()
        recording, _, answer = kept.only()

    assert head.startswith(b"HTTP/1.1 413 Too Large")
    assert b"connection: close" in head.lower()
    assert body == answer == b'{"error": "too large"}'
    assert (recording.status, recording.error) == (413, None)


def test_a_pooled_connection_that_the_provider_closed_is_not_reused(kept: KeptExchanges, tmp_path: Path) -> None:
    with (
        UpstreamStub(lambda _seen: document({"ok": True})) as stub,
        LiveGateway(stub, kept, tmp_path) as gateway,
        gateway.connect() as wire,
    ):
        for number in range(5):
            wire.send(post("/v1/messages", b"%d" % number))
            assert wire.answer()[0].startswith(b"HTTP/1.1 200")
            stub.close_idle()

    assert [seen.body for seen in stub.seen] == [b"0", b"1", b"2", b"3", b"4"]
    assert stub.connections == 5


def test_a_get_on_a_closing_connection_is_retried_once(kept: KeptExchanges, tmp_path: Path) -> None:
    """The provider closes the connection on its second request, once."""
    hang_up = iter((False, True))

    def answer(_seen: ReceivedRequest) -> StubResponse:
        return StubResponse(cut="head") if next(hang_up, False) else document({"ok": True})

    with (
        UpstreamStub(answer) as stub,
        LiveGateway(stub, kept, tmp_path) as gateway,
        gateway.connect() as wire,
    ):
        for _ in range(2):
            wire.send(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert wire.answer()[0].startswith(b"HTTP/1.1 200")

    assert [seen.connection for seen in stub.seen] == [0, 0, 1]


def test_a_malformed_request_is_rejected_and_the_next_client_is_served(
    kept: KeptExchanges, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with UpstreamStub() as stub, LiveGateway(stub, kept, tmp_path) as gateway:
        for garbage in (
            b"\x16\x03\x01\x02\x00 this is TLS, not HTTP\r\n\r\n",
            b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: many\r\n\r\n",
        ):
            with gateway.connect() as wire:
                wire.send(garbage)
                head, body = wire.answer()
                assert head.split(b" ")[1] == b"400"
                assert b"application/json" in head
                assert parse_error(body)[0] == "malformed_request"
        chunked = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nnot a size\r\n"
        with gateway.connect() as wire:
            wire.send(chunked)
            assert b" 400 " in wire.head()
        assert gateway.request(post())[0].startswith(b"HTTP/1.1 200")

    assert sum(seen.complete for seen in stub.seen) == 1
    assert "not a size" not in caplog.text, "client data must not appear in a log"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_an_upstream_that_points_at_the_gateway_is_rejected(
    host: str, kept: KeptExchanges, tmp_path: Path, free_port: FreePort
) -> None:
    port = free_port()
    gateway = LiveGateway(Routes([Route("me", "/", f"http://{host}:{port}", "x")]), kept, tmp_path, port=port)
    with pytest.raises(ConfigError, match="loop forever"), gateway:
        pass


def test_an_address_in_use_is_reported_with_a_repair(kept: KeptExchanges, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(NotReady, match=f"cannot listen on 127.0.0.1:{port}") as refused:
            LiveGateway(Routes([]), kept, tmp_path, port=port).__enter__()

    assert refused.value.repair == (f"hyp config set gateway.listen 127.0.0.1:{port + 1}",)


def request_while_stopping(wire: ClientConnection) -> tuple[bytes, bytes]:
    while True:
        wire.send(post("/other"))
        head, body = wire.answer()
        if not head.startswith(b"HTTP/1.1 200"):
            return head, body


def test_stopping_lets_a_running_stream_finish_and_rejects_new_requests(
    kept: KeptExchanges, tmp_path: Path, free_port: FreePort
) -> None:
    go_on = threading.Event()

    def answer(seen: ReceivedRequest) -> StubResponse:
        return document({}) if seen.target == "/other" else StubResponse(pieces=(b"first", go_on, b"last"))

    with (
        UpstreamStub(answer) as stub,
        LiveGateway(stub, kept, tmp_path, port=free_port()) as gateway,
        gateway.connect() as wire,
        gateway.connect() as other,
    ):
        wire.send(post("/v1/messages"))
        wire.head()
        assert wire.chunk() == b"first"
        stopping = threading.Thread(target=gateway.stop, args=(60,))
        stopping.start()
        refused = request_while_stopping(other)
        with pytest.raises(ConnectionRefusedError):
            gateway.connect()
        go_on.set()
        assert (wire.chunk(), wire.chunk()) == (b"last", b"")
        stopping.join()
        recording, _, body = kept.wait(1)[-1]

    assert refused[0].startswith(b"HTTP/1.1 503")
    assert parse_error(refused[1])[0] == "stopping"
    assert (recording.path, recording.error, body) == ("/v1/messages", None, b"firstlast")


def test_stopping_aborts_streams_after_the_grace_period_and_records_them(kept: KeptExchanges, tmp_path: Path) -> None:
    never = threading.Event()
    with (
        UpstreamStub(lambda _seen: StubResponse(pieces=(b"first", never))) as stub,
        LiveGateway(stub, kept, tmp_path) as gateway,
        gateway.connect() as wire,
    ):
        wire.send(post())
        wire.head()
        assert wire.chunk() == b"first"
        gateway.stop(0)
        assert wire.is_closed()
        ((recording, _, body),) = kept.wait(1)
        never.set()

    assert (recording.status, recording.error, body) == (200, "gateway_stopped", b"first")


def test_a_listening_socket_can_be_handed_over_and_handed_on(kept: KeptExchanges, tmp_path: Path) -> None:
    """The socket outlives the gateway: connections after `stop_listening` wait for the next one."""
    with (
        socket.create_server(("127.0.0.1", 0)) as kept_open,
        UpstreamStub() as stub,
        LiveGateway(stub, kept, tmp_path, listen=kept_open.dup()) as gateway,
        gateway.connect() as wire,
    ):
        assert gateway.port == kept_open.getsockname()[1]
        assert gateway.request(post())[0].startswith(b"HTTP/1.1 200")
        gateway.stop_listening()
        with socket.create_connection(kept_open.getsockname()), kept_open.accept()[0] as mine:
            assert mine.getsockname() == kept_open.getsockname()
        wire.send(post())
        assert wire.answer()[0].startswith(b"HTTP/1.1 200"), "open connections are still served"
        assert len(kept.wait(2)) == 2


@pytest.mark.parametrize("steps", range(5))
def test_a_connection_that_arrives_while_the_gateway_stops_listening_is_served_by_it_or_by_the_next_one(
    steps: int, kept: KeptExchanges, tmp_path: Path
) -> None:
    """`steps` of the event loop lie between the connection and the stop: accepting takes several."""
    with (
        socket.create_server(("127.0.0.1", 0)) as kept_open,
        UpstreamStub() as stub,
        LiveGateway(stub, kept, tmp_path / "first", listen=kept_open.dup()) as gateway,
    ):

        async def connect_and_stop() -> ClientConnection:
            wire = gateway.connect()
            wire.send(post())
            for _ in range(steps):
                await asyncio.sleep(0)
            await gateway.gateway.stop_listening()
            return wire

        with gateway.run(connect_and_stop()) as wire, LiveGateway(stub, kept, tmp_path / "next", listen=kept_open):
            assert wire.answer()[0].startswith(b"HTTP/1.1 200")


def test_local_pages_are_answered_directly_and_not_recorded(kept: KeptExchanges, tmp_path: Path) -> None:
    pages = {"/_hypaware/health": lambda: {"hypaware": "gateway"}}
    with UpstreamStub() as stub, LiveGateway(stub, kept, tmp_path, local_pages=pages) as gateway:
        _, body = gateway.request(b"GET /_hypaware/health?x HTTP/1.1\r\nHost: localhost\r\n\r\n")

    assert json.loads(body) == {"hypaware": "gateway"}
    assert stub.seen == []
    assert gateway.counts.kept == 0


def test_the_gateway_uses_the_configured_proxy(kept: KeptExchanges, tmp_path: Path) -> None:
    asked: list[bytes] = []

    def tunnel(server: socket.socket, target: int) -> None:
        inside, _ = server.accept()
        with inside, socket.create_connection(("127.0.0.1", target)) as outside:
            asked.append(inside.recv(1 << 16))
            inside.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=_copy, args=(outside, inside))
            back.start()
            _copy(inside, outside)
            back.join()

    with UpstreamStub() as stub, socket.create_server(("127.0.0.1", 0)) as server:
        port = int(stub.url.rpartition(":")[2])
        passing = threading.Thread(target=tunnel, args=(server, port))
        passing.start()
        routes = Routes([Route("far", "/", "https://provider.example:8443", "x")])
        environment = {"https_proxy": f"http://us%65r:pw@127.0.0.1:{server.getsockname()[1]}"}
        authority().issue_cert("provider.example")
        with LiveGateway(routes, kept, tmp_path, stub=stub, environment=environment) as gateway:
            gateway.request(post())
        passing.join()

    assert asked[0].startswith(b"CONNECT provider.example:8443 HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic dXNlcjpwdw==" in asked[0]


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while piece := source.recv(1 << 16):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return


@pytest.mark.parametrize(
    ("url", "environment", "expected"),
    [
        ("https://api.anthropic.com", {}, None),
        ("https://api.anthropic.com", {"HTTPS_PROXY": "http://p:3128"}, "http://p:3128"),
        ("https://api.anthropic.com", {"https_proxy": "p:3128"}, "http://p:3128"),
        ("https://api.anthropic.com", {"ALL_PROXY": "http://p:1"}, "http://p:1"),
        ("https://api.anthropic.com", {"HTTP_PROXY": "http://p:1"}, None),
        ("http://inner.example", {"HTTP_PROXY": "http://p:1"}, "http://p:1"),
        ("https://api.anthropic.com", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "x, .anthropic.com"}, None),
        ("https://api.anthropic.com", {"HTTPS_PROXY": "http://p:1", "no_proxy": "*"}, None),
        ("https://notanthropic.com", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "anthropic.com"}, "http://p:1"),
        ("https://127.0.0.1:4000", {"HTTPS_PROXY": "http://p:1"}, None),
        ("http://localhost:4000", {"ALL_PROXY": "http://p:1"}, None),
    ],
)
def test_the_environment_selects_the_proxy(url: str, environment: dict[str, str], expected: str | None) -> None:
    found = gateway_routes.find_proxy(url, environment)

    assert (found.url if found else None) == expected
