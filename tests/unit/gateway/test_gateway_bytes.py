"""The gateway forwards exactly the bytes it receives, compared at the provider and at the client."""

from __future__ import annotations

import base64
import json
import lzma
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hypaware.gateway.routes import Route, Routes
from tests.support.live_gateway import KeptExchanges, LiveGateway, post, routes_to
from tests.support.upstream_stub import (
    JSON,
    Headers,
    ReceivedRequest,
    StubResponse,
    UpstreamStub,
    anthropic_events,
    document,
    gzipped,
)

WIRE = Path(__file__).parents[2] / "fixtures" / "wire"
ONE_CONNECTION = {"connection", "keep-alive", "host", "transfer-encoding"}


class Scripted:
    """Answers with the response that the test has set."""

    def __init__(self) -> None:
        self.answer = StubResponse()

    def __call__(self, _seen: ReceivedRequest) -> StubResponse:
        return self.answer


@pytest.fixture
def script() -> Scripted:
    return Scripted()


@pytest.fixture
def kept() -> KeptExchanges:
    return KeptExchanges()


@pytest.fixture
def stub(script: Scripted) -> Iterator[UpstreamStub]:
    with UpstreamStub(script) as found:
        yield found


@pytest.fixture
def gateway(stub: UpstreamStub, kept: KeptExchanges, tmp_path: Path) -> Iterator[LiveGateway]:
    with LiveGateway(stub, kept, tmp_path / "spill") as found:
        yield found


def head_lines(head: bytes) -> list[str]:
    return head.decode("latin-1").split("\r\n")[:-2]


def end_to_end(headers: list[list[str]]) -> list[str]:
    """Return the recorded headers that must reach the other end."""
    return [f"{name}: {value}" for name, value in headers if name.lower() not in ONE_CONNECTION]


def read_samples(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    lines = (lzma.decompress(data) if path.suffix == ".xz" else data).splitlines()
    found: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return [each for each in found if each["response"]["status"] != 101 and not each["response"].get("aborted")]


@pytest.mark.hazard(55)
@pytest.mark.hazard(65)
@pytest.mark.parametrize(
    "path", sorted(WIRE.glob("*/*.ndjson*")), ids=lambda path: f"{path.parent.name}/{path.name.split('.')[0]}"
)
def test_recorded_traffic_is_forwarded_byte_for_byte_and_recorded(
    path: Path, script: Scripted, stub: UpstreamStub, gateway: LiveGateway, kept: KeptExchanges
) -> None:
    for number, each in enumerate(read_samples(path), 1):
        request, response = each["request"], each["response"]
        first, body = f"{request['method']} {request['path']} HTTP/1.1", request["body"].encode()
        answer = base64.b64decode(response["wire_b64"]) if "wire_b64" in response else response["body"].encode()
        if request["method"] == "HEAD":
            answer = b""
        headers: Headers = tuple((name, value) for name, value in response["headers"] if name != "transfer-encoding")
        framing: list[str] = ["Transfer-Encoding: chunked"] if len(headers) < len(response["headers"]) else []
        script.answer = StubResponse(
            response["status"], "As Recorded", headers, (answer,), "chunked" if framing else "none"
        )
        written = [first, *(f"{name}: {value}" for name, value in request["headers"]), "", ""]

        head, got = gateway.request("\r\n".join(written).encode("latin-1") + body)

        seen = stub.seen[-1]
        host = f"Host: {stub.url.removeprefix('https://')}"
        assert head_lines(seen.head) == [first, host, *end_to_end(request["headers"])]
        assert seen.body == body
        status = f"HTTP/1.1 {response['status']} As Recorded"
        assert head_lines(head) == [status, *end_to_end(response["headers"]), *framing]
        assert got == answer
        found, request_body, response_body = kept.wait(number)[-1]
        assert (found.status, found.error, request_body, response_body) == (response["status"], None, body, answer)
        assert [list(pair) for pair in found.request_headers] == request["headers"]
    assert stub.seen


@pytest.mark.hazard(65)
def test_the_gateway_adds_no_headers_to_a_minimal_request(
    script: Scripted, stub: UpstreamStub, gateway: LiveGateway
) -> None:
    script.answer = StubResponse(headers=(), pieces=(b"x",), framing="length")

    head, body = gateway.request(b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}")

    assert head_lines(stub.seen[0].head)[2:] == ["content-length: 2"]
    assert head_lines(head) == ["HTTP/1.1 200 OK", "content-length: 1"]
    assert body == b"x"


@pytest.mark.hazard(65)
def test_compressed_requests_and_responses_stay_compressed(
    script: Scripted, stub: UpstreamStub, gateway: LiveGateway, kept: KeptExchanges
) -> None:
    script.answer = gzipped(StubResponse(pieces=anthropic_events()))
    packed = b"".join(piece for piece in script.answer.pieces if isinstance(piece, bytes))

    _, body = gateway.request(post("/v1/messages", b"\x28\xb5\x2f\xfd not really zstd", "Content-Encoding: zstd"))

    assert body == packed
    assert stub.seen[0].body == b"\x28\xb5\x2f\xfd not really zstd"
    assert kept.only()[2] == packed


@pytest.mark.hazard(65)
def test_unusual_headers_keep_their_spelling_order_and_number(
    script: Scripted, stub: UpstreamStub, gateway: LiveGateway
) -> None:
    odd = ("x-LOWER-Upper: a", "Accept:", "X-Twice: 1", "x-between: !#$%&'*+", "X-Twice: 2", f"x-long: {'l' * 100_000}")
    script.answer = StubResponse(
        headers=(("Set-Cookie", "a=1"), ("x-Odd", ""), ("Set-Cookie", "b=2")), framing="length"
    )

    head, _ = gateway.request(post("/v1/messages", b"{}", *odd))

    sent = head_lines(stub.seen[0].head)
    assert [line.replace(": ", ":", 1) for line in sent[2:8]] == [line.replace(": ", ":", 1) for line in odd]
    assert head_lines(head)[1:4] == ["Set-Cookie: a=1", "x-Odd: ", "Set-Cookie: b=2"]


@pytest.mark.hazard(65)
def test_header_values_outside_ascii_keep_their_text(
    script: Scripted, stub: UpstreamStub, gateway: LiveGateway
) -> None:
    script.answer = StubResponse(headers=(("x-utf", "zoë".encode().decode("latin-1")),), framing="length")
    utf8, latin1 = b"x-utf: caf\xc3\xa9", b"x-latin: caf\xe9"

    head, _ = gateway.request(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n" + utf8 + b"\r\n" + latin1 + b"\r\n\r\n")

    assert utf8 in stub.seen[0].head
    assert b"x-latin: caf\xc3\xa9" in stub.seen[0].head
    assert "x-utf: zoë".encode() in head


def test_hop_by_hop_and_hypaware_headers_are_not_forwarded(
    script: Scripted, stub: UpstreamStub, gateway: LiveGateway, kept: KeptExchanges
) -> None:
    script.answer = StubResponse(
        headers=(("Keep-Alive", "timeout=5"), ("Connection", "x-private"), ("X-Private", "1"), ("x-public", "1")),
        framing="length",
    )
    private = (
        "Connection: keep-alive, X-Mine",
        "X-Mine: 1",
        "Keep-Alive: 5",
        "Proxy-Authorization: Basic eA==",
        "TE: trailers",
        "X-HypAware-Session: s",
        "x-hyp-dev-run-id: bf-1",
    )

    head, _ = gateway.request(post("/v1/messages", b"{}", *private, "X-Kept: 1"))

    assert head_lines(stub.seen[0].head)[2:] == ["X-Kept: 1", "Content-Length: 2"]
    assert head_lines(head)[1:] == ["x-public: 1", "content-length: 0"]
    assert ("x-hyp-dev-run-id", "bf-1") in kept.only()[0].request_headers


@pytest.mark.hazard(61)
@pytest.mark.parametrize(
    "target",
    [
        "/v1/../../etc/passwd",
        "/v1/%2e%2e/%2F%00?q=%20a+b&c=%C3%A9",
        "//evil.example/v1/messages",
        "/v1//messages/./x;y=1",
        "/v1/messages?a=http://x/?y#",
        "/@evil.example/",
        "/v1/a|b^c`{}",
    ],
)
def test_a_path_is_forwarded_as_written(target: str, stub: UpstreamStub, gateway: LiveGateway) -> None:
    gateway.request(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    assert stub.seen[0].target == target.rstrip("#")


def test_an_absolute_url_of_the_gateway_is_treated_as_its_path(stub: UpstreamStub, gateway: LiveGateway) -> None:
    whole = f"http://127.0.0.1:{gateway.port}/v1/messages?beta=true"

    head, _ = gateway.request(f"GET {whole} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    assert head.startswith(b"HTTP/1.1 200")
    assert stub.seen[0].target == "/v1/messages?beta=true"


@pytest.mark.parametrize("target", ["http://example.com/v1/messages", "https://127.0.0.1/v1", "ftp://x", "*"])
def test_the_gateway_rejects_requests_for_other_hosts(target: str, stub: UpstreamStub, gateway: LiveGateway) -> None:
    method = "OPTIONS" if target == "*" else "GET"

    head, body = gateway.request(f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    assert head.startswith(b"HTTP/1.1 421"), head
    assert json.loads(body)["error"]["type"] == "not_a_proxy"
    assert stub.seen == []


@pytest.mark.parametrize("status", [204, 304])
def test_a_response_without_a_body_stays_without_one(status: int, script: Scripted, gateway: LiveGateway) -> None:
    script.answer = StubResponse(status, "Nothing", (("ETag", '"a"'),), framing="none")

    with gateway.connect() as wire:
        for _ in range(2):
            wire.send(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert head_lines(wire.head()) == [f"HTTP/1.1 {status} Nothing", 'ETag: "a"']


def test_the_response_to_head_keeps_its_content_length(script: Scripted, gateway: LiveGateway) -> None:
    script.answer = StubResponse(headers=(*JSON, ("content-length", "79")), framing="none")

    with gateway.connect() as wire:
        for _ in range(2):
            wire.send(b"HEAD /api/hello HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert head_lines(wire.head())[-1] == "content-length: 79"


def test_a_response_without_framing_is_framed_for_the_client(script: Scripted, gateway: LiveGateway) -> None:
    script.answer = StubResponse(headers=JSON, pieces=(b'{"a"', b": 1}"), framing="close")

    with gateway.connect() as wire:
        for _ in range(2):
            wire.send(post())
            assert wire.answer()[1] == b'{"a": 1}'


def test_a_chunked_request_stays_chunked_even_if_empty(stub: UpstreamStub, gateway: LiveGateway) -> None:
    head = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n"

    gateway.request(head + b"3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\nX-T: 1\r\n\r\n")
    gateway.request(head + b"0\r\n\r\n")

    assert [seen.header("transfer-encoding") for seen in stub.seen] == ["chunked", "chunked"]
    assert [seen.header("content-length") for seen in stub.seen] == [None, None]
    assert [seen.body for seen in stub.seen] == [b"abcde", b""]


def test_a_client_that_expects_100_continue_gets_it(stub: UpstreamStub, gateway: LiveGateway) -> None:
    with gateway.connect() as wire:
        wire.send(b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        assert wire.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
        wire.send(b"body")
        head, _ = wire.answer()

    assert head.startswith(b"HTTP/1.1 200")
    assert (stub.seen[0].body, stub.seen[0].header("expect")) == (b"body", None)


def test_a_client_gets_no_100_continue_if_the_upstream_does_not_read_the_body(
    kept: KeptExchanges, tmp_path: Path
) -> None:
    with LiveGateway(Routes([Route("gone", "/", "http://127.0.0.1:1", "x")]), kept, tmp_path) as gateway:
        head, _ = gateway.request(
            b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"
        )

    assert head.startswith(b"HTTP/1.1 502")


def test_an_http_1_0_client_is_served(script: Scripted, gateway: LiveGateway) -> None:
    script.answer = StubResponse(pieces=(b"one", b"two"))

    with gateway.connect() as wire:
        wire.send(b"GET /v1/models HTTP/1.0\r\nHost: localhost\r\n\r\n")
        head = wire.head()
        assert wire.exactly(6) == b"onetwo"
        assert wire.is_closed()

    assert b"chunked" not in head.lower()


def test_routes_reach_their_upstreams_and_identify_the_client(
    stub: UpstreamStub, kept: KeptExchanges, tmp_path: Path
) -> None:
    routes = Routes(
        [Route("inner", "/inner", f"{stub.url}/api/v2", "openai", strip_prefix=True), Route("all", "/", stub.url, "a")],
        recorded=("claude",),
    )
    with LiveGateway(routes, kept, tmp_path, stub=stub) as gateway:
        for path in ("/inner/x?y", "/claude/v1/messages?beta=true", "/codex/v1/responses", "/v1/messages"):
            gateway.request(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        found = [(recording.upstream, recording.client_name, recording.path) for recording, _, _ in kept.wait(3)]

    assert [seen.target for seen in stub.seen] == [
        "/api/v2/x?y",
        "/v1/messages?beta=true",
        "/v1/responses",
        "/v1/messages",
    ]
    assert found == [
        ("inner", None, "/x?y"),
        ("all", "claude", "/v1/messages?beta=true"),
        ("all", None, "/v1/messages"),
    ]


def test_the_overhead_of_the_gateway_is_reported(stub: UpstreamStub, kept: KeptExchanges, tmp_path: Path) -> None:
    measured: list[float] = []
    with LiveGateway(stub, kept, tmp_path, report_overhead=measured.append) as gateway:
        gateway.request(post())

    assert len(measured) == 1
    assert measured[0] > 0


def test_a_thousand_requests_use_one_connection_on_each_side(
    script: Scripted, stub: UpstreamStub, gateway: LiveGateway, kept: KeptExchanges
) -> None:
    script.answer = document({"ok": True})

    with gateway.connect() as wire:
        for number in range(1000):
            body = b'{"n": %d}' % number
            wire.send(post("/v1/messages", body))
            assert wire.answer()[1] == b'{"ok": true}'

    assert stub.connections == 1
    assert [request for _, request, _ in kept.wait(1000)] == [b'{"n": %d}' % number for number in range(1000)]


def test_pipelined_requests_are_answered_in_order(script: Scripted, stub: UpstreamStub, gateway: LiveGateway) -> None:
    script.answer = document({"ok": True})

    with gateway.connect() as wire:
        wire.send(b"".join(post("/v1/messages", b"%d" % number) for number in range(20)))
        assert [wire.answer()[1] for _ in range(20)] == [b'{"ok": true}'] * 20

    assert [seen.body for seen in stub.seen] == [b"%d" % number for number in range(20)]


def test_a_slow_client_does_not_delay_another_one(script: Scripted, kept: KeptExchanges, tmp_path: Path) -> None:
    held = threading.Event()

    def answer(seen: ReceivedRequest) -> StubResponse:
        return StubResponse(pieces=(b"first", held, b"last") if seen.target == "/slow" else (b"all",))

    with (
        UpstreamStub(answer) as stub,
        LiveGateway(routes_to(stub), kept, tmp_path, stub=stub) as gateway,
        gateway.connect() as slow,
    ):
        slow.send(post("/slow"))
        slow.head()
        assert slow.chunk() == b"first"
        assert gateway.request(post("/fast"))[1] == b"all"
        held.set()
        assert slow.chunk() == b"last"
