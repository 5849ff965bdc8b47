"""Proxies, private certificate authorities, and stores that ignore conditional writes."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme
from aiohttp import web

from hypaware.errors import NotReady
from hypaware.export.sink import DestinationDenied
from hypaware.export.sinks.blob import parse_location
from hypaware.export.sinks.blob.object_store import BucketStore
from hypaware.home import Home, storage
from tests.support.forward_servers import chunk, lines, opened, settings
from tests.support.plain_server import PlainServer
from tests.support.processes import PATIENCE

_NOTHING = '<?xml version="1.0"?><ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated></ListBucketResult>'


@contextmanager
def _store(*, honest: bool, tls: ssl.SSLContext | None = None) -> Iterator[tuple[str, dict[str, bytes], list[str]]]:
    """Serve as much of S3 as a probe and an upload need: (URL, objects by path, Host headers)."""
    objects: dict[str, bytes] = {}
    hosts: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        hosts.append(request.host)
        if request.method != "PUT":
            return web.Response(text=_NOTHING, content_type="application/xml")
        if honest and request.headers.get("If-None-Match") == "*" and request.path in objects:
            return web.Response(status=412)
        objects[request.path] = await request.read()
        return web.Response(headers={"ETag": '"1"'})

    with _served(answer, tls) as url:
        yield url, objects, hosts


@contextmanager
def _served(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]], tls: ssl.SSLContext | None
) -> Iterator[str]:
    loop, started, addresses = asyncio.new_event_loop(), threading.Event(), []

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        addresses.append(runner.addresses[0])
        started.set()
        return runner

    runner = loop.create_task(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        assert started.wait(PATIENCE)
        yield f"{'https' if tls else 'http'}://127.0.0.1:{addresses[0][1]}"
    finally:
        asyncio.run_coroutine_threadsafe(_close(runner.result()), loop).result(PATIENCE)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _close(runner: web.AppRunner) -> None:
    """End the server and its connections. Closing one with TLS takes until the client has answered."""
    assert runner.server is not None
    transports = [each.transport for each in runner.server.connections if each.transport is not None]
    sockets = [transport.get_extra_info("socket") for transport in transports]
    await runner.cleanup()
    while any(each is not None and each.fileno() >= 0 for each in sockets):
        await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


def _write(endpoint: str) -> None:
    options = {"destination": "s3://b/here", "endpoint": endpoint}
    location = parse_location(options)

    async def work() -> None:
        store = BucketStore(location, options)  # type: ignore[arg-type]
        await store.open()
        await store.write("rows", memoryview(b"rows"), "text/plain")

    asyncio.run(work())


def test_a_shared_lake_is_not_put_into_a_store_that_ignores_create_only_puts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    for honest in (True, False):
        with _store(honest=honest) as (url, _, _):
            root = storage.ObjectPath(f"s3://bucket-{honest}/lake".lower())
            storage.register_bucket(root.bucket, storage.BucketSettings(url, "us-east-1", path_style=True))
            if honest:
                storage.check_bucket(root)
                continue
            with pytest.raises(NotReady, match=r"lake\.warehouse.*If-None-Match") as refused:
                storage.check_bucket(root)
            assert refused.value.kind == "unsupported_store"


def test_a_store_that_ignores_create_only_puts_is_refused_before_the_first_object() -> None:
    with _store(honest=False) as (url, objects, _), pytest.raises(DestinationDenied, match="If-None-Match") as denied:
        _write(url)
    assert denied.value.kind == "unsupported_store"
    assert not any(path.endswith("/rows") for path in objects)


def test_a_store_with_create_only_puts_is_used() -> None:
    with _store(honest=True) as (url, objects, _):
        _write(url)
        _write(url)
    assert sum(path.endswith("/rows") for path in objects) == 1


def test_the_blob_sink_uses_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with _store(honest=True) as (url, objects, hosts):
        monkeypatch.setenv("http_proxy", url)
        _write("http://store.example")
    assert set(hosts) == {"store.example"}
    assert any(path.endswith("/rows") for path in objects)


def test_the_blob_sink_trusts_a_private_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    with _store(honest=True, tls=tls) as (url, objects, _):
        _write(url)
    assert any(path.endswith("/rows") for path in objects)


@pytest.mark.parametrize("exceptions", ["", "other.example"])
def test_the_forward_sink_uses_the_proxy(home: Home, monkeypatch: pytest.MonkeyPatch, exceptions: str) -> None:
    """The server is the proxy: it receives requests for another host."""
    with PlainServer(token=None) as server:
        monkeypatch.setenv("HTTP_PROXY", server.url.replace("://", "://me:p%40ss@"))
        monkeypatch.setenv("NO_PROXY", exceptions)

        async def work() -> None:
            async with opened(settings(home, "http://team.example")) as sink:
                await sink.ship(chunk(), lines(3), 0)

        asyncio.run(work())
    assert len(server.rows()) == 3
    assert {request.headers["Host"] for request in server.requests} == {"team.example"}
    assert {request.headers["Proxy-Authorization"] for request in server.requests} == {"Basic bWU6cEBzcw=="}


def test_the_forward_sink_uses_no_proxy_for_this_machine(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with PlainServer(token=None) as server:

        async def work() -> None:
            async with opened(settings(home, server.url)) as sink:
                await sink.ship(chunk(), lines(3), 0)

        asyncio.run(work())
    assert len(server.rows()) == 3
