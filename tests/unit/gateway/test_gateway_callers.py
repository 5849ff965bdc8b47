"""Who may send requests through the gateway: clients on this machine, but no web page and no other machine."""

from __future__ import annotations

import json
import lzma
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypaware.config import CurrentConfig
from hypaware.config.edit import set_value
from hypaware.errors import ConfigError
from hypaware.gateway import handover
from hypaware.gateway.routes import Route, Routes
from hypaware.home import Home
from tests.support.live_gateway import ClientConnection, KeptExchanges, LiveGateway, post
from tests.support.ports import FreePort
from tests.support.processes import PATIENCE
from tests.support.upstream_stub import UpstreamStub

WIRE = Path(__file__).parents[2] / "fixtures" / "wire"
# What browsers send: a form, `fetch` of another site, a page on another port, a sandboxed frame, a rebound name.
FROM_WEB_PAGES = [
    ("cross_site", ["Origin: https://evil.example", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: cors"]),
    ("cross_site", ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"]),
    ("cross_site", ["Origin: http://evil.example"]),
    ("cross_site", ["Origin: null"]),
    ("cross_site", ["Origin: http://localhost:3000", "Sec-Fetch-Site: same-site"]),
    ("cross_site", ["Origin: http://127.0.0.1:3000"]),
    ("foreign_host", ["Host: evil.example:18521", "Origin: http://evil.example:18521", "Sec-Fetch-Site: same-origin"]),
    ("foreign_host", ["Host: localhost.evil.example"]),
    ("foreign_host", ["Host: 127.0.0.1.evil.example"]),
    ("foreign_host", ["Host: [::1"]),
]


def build_request(fields: list[str], method: str = "POST") -> bytes:
    host = [] if any(field.startswith("Host:") for field in fields) else ["Host: 127.0.0.1:18521"]
    return "\r\n".join([f"{method} /v1/messages HTTP/1.1", *host, *fields, "Content-Length: 2", "", "{}"]).encode()


@pytest.fixture
def kept() -> KeptExchanges:
    return KeptExchanges()


@pytest.mark.hazard(109)
@pytest.mark.parametrize("method", ["POST", "OPTIONS"])
@pytest.mark.parametrize(("kind", "fields"), FROM_WEB_PAGES)
def test_a_request_of_a_web_page_is_refused_and_not_recorded(
    kind: str, fields: list[str], method: str, kept: KeptExchanges, tmp_path: Path
) -> None:
    with UpstreamStub() as stub, LiveGateway(stub, kept, tmp_path) as gateway:
        head, body = gateway.request(build_request(fields, method))
        gateway.request(post())
        kept.wait(1)

    assert head.startswith(b"HTTP/1.1 403")
    assert b"access-control" not in head.lower()
    answer = json.loads(body)
    assert (answer["type"], answer["error"]["type"]) == ("error", kind)
    assert len(stub.seen) == 1, "only the client's request reaches the provider"
    assert kept.only()


@pytest.mark.hazard(109)
def test_the_health_page_is_not_shown_to_web_pages(kept: KeptExchanges, tmp_path: Path) -> None:
    pages = {"/health": lambda: {"pid": 1}}
    with LiveGateway(Routes([]), kept, tmp_path, local_pages=pages) as gateway:
        head, _ = gateway.request(b"GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 403")


@pytest.mark.hazard(109)
@pytest.mark.parametrize(("kind", "fields"), FROM_WEB_PAGES)
def test_the_fallback_refuses_web_pages_too(kind: str, fields: list[str], fallback: int) -> None:
    address = ("127.0.0.1", fallback)
    with ClientConnection(socket.create_connection(address, timeout=PATIENCE)) as wire:
        wire.send(build_request(fields))
        head, body = wire.answer(b"POST")

    assert head.startswith(b"HTTP/1.1 403")
    assert json.loads(body)["error"]["type"] == kind


@pytest.fixture(scope="module")
def fallback(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Run a fallback without a daemon and return its port."""
    home = Home(tmp_path_factory.mktemp("fallback") / "home")
    home.root.mkdir(mode=0o700)
    held = handover.acquire_socket(home, "127.0.0.1:0")
    port = held.address[1]
    held.release()
    yield port
    control = handover.connect_fallback(home)
    control.sendall(json.dumps({"wants": "leave", "address": "127.0.0.1:0"}).encode())
    control.recv(1)
    control.close()


def client_headers() -> Iterator[tuple[str, list[list[str]]]]:
    for path in sorted(WIRE.rglob("*.ndjson.xz")):
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield str(path.relative_to(WIRE)), json.loads(line)["request"]["headers"]


def test_every_recorded_request_of_a_real_client_is_accepted() -> None:
    routes = Routes([])
    recorded = list(client_headers())

    assert len(recorded) > 50
    assert {where for where, headers in recorded if routes.find_refusal((n, v) for n, v in headers)} == set()


@pytest.mark.parametrize(
    "fields",
    [
        ["Sec-Fetch-Mode: cors"],
        ["Host: localhost:18521"],
        ["Host: LOCALHOST:18521"],
        ["Host: work.localhost:18521"],
        ["Host: [::1]:18521"],
        ["Host: 192.0.2.7:18521"],
        ["Host: host.docker.internal:18521"],
        ["Host: 127.0.0.1:18521", "Origin: http://127.0.0.1:18521", "Sec-Fetch-Site: same-origin"],
        ["Sec-Fetch-Site: none"],
    ],
)
def test_own_names_addresses_and_allowed_hosts_are_accepted(
    fields: list[str], kept: KeptExchanges, tmp_path: Path
) -> None:
    with UpstreamStub() as stub:
        routes = Routes([Route("stub", "/", stub.url, "anthropic")], allowed_hosts=["host.docker.internal"])
        with LiveGateway(routes, kept, tmp_path, stub=stub) as gateway:
            head, _ = gateway.request(build_request(fields))

    assert head.startswith(b"HTTP/1.1 200")


def test_the_password_of_a_base_url_is_neither_sent_nor_shown(
    kept: KeptExchanges, tmp_path: Path, free_port: FreePort
) -> None:
    with UpstreamStub() as stub:
        address = stub.url.removeprefix("https://")
        routes = Routes([Route("own", "/", f"https://me:hunter2@{address}", "x")])
        with LiveGateway(routes, kept, tmp_path, stub=stub) as gateway:
            anonymous, _ = gateway.request(post())
            named, _ = gateway.request(post("/v1/messages", b"{}", "Authorization: Bearer mine"))
    assert anonymous.startswith(b"HTTP/1.1 200")
    assert named.startswith(b"HTTP/1.1 200")
    assert b"authorization" not in stub.seen[0].head.lower()
    assert b"Authorization: Bearer mine" in stub.seen[1].head

    routes = Routes([Route("own", "/", f"https://me:hunter2@127.0.0.1:{free_port()}", "x")])
    with LiveGateway(routes, kept, tmp_path) as gateway:
        head, body = gateway.request(post())
    assert head.startswith(b"HTTP/1.1 502")
    assert b"hunter2" not in body


def test_listening_beyond_loopback_needs_allowed_hosts(home: Home) -> None:
    for address in ("0.0.0.0:18521", "[::]:18521", "192.0.2.7:18521", "buildbox:18521"):
        with pytest.raises(ConfigError, match=r"other machines can reach.*gateway\.allowed_hosts"):
            set_value(home, "gateway.listen", address)
    for address in ("127.0.0.1:18521", "127.8.8.8:1", "[::1]:18521", "localhost:18521"):
        set_value(home, "gateway.listen", address)

    set_value(home, "gateway.allowed_hosts", '["192.0.2.7", "BuildBox"]')
    set_value(home, "gateway.listen", "0.0.0.0:18521")

    assert CurrentConfig(home)().gateway.allowed_hosts == ("192.0.2.7", "buildbox")
