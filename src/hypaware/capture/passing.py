"""Pass-through of one exchange without recording: only the request header is read, everything else is copied.

The request is forwarded with `Connection: close`, so the response ends with its connection and neither side's framing
has to be parsed. If HTTPS_PROXY is set, the connection goes through that proxy with CONNECT.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import ssl
from contextlib import suppress
from functools import cache
from urllib.parse import SplitResult, unquote, urlsplit

from hypaware.capture import handover, own_upstreams
from hypaware.capture.routes import Routes
from hypaware.home import Home

_MOST_HEAD = 1 << 18
_BLOCK = 1 << 16
_HEAD_SECONDS = 600.0
_CONNECT_SECONDS = 20.0
_ONE_CONNECTION = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"te", b"upgrade")
)
_OURS = (b"x-hypaware-", b"x-hyp-")

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def serve(client: socket.socket, home: Home) -> None:
    """Serve one connection until one side closes it. Never raises."""
    reader, writer = await asyncio.open_connection(sock=client, limit=_MOST_HEAD)
    try:
        with suppress(OSError, asyncio.IncompleteReadError, TimeoutError, ValueError):
            await _exchange(reader, writer, home)
    finally:
        await _close(writer)


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, home: Home) -> None:
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEAD_SECONDS)
    except asyncio.LimitOverrunError:
        await _answer(writer, 431, "headers_too_large", "the request header is too large")
        return
    first, *headers = head[:-4].split(b"\r\n")
    if first.count(b" ") != 2:
        await _answer(writer, 400, "malformed_request", "this is not an HTTP/1.1 request")
        return
    method, target, version = first.split(b" ")
    path = target.decode("utf-8", "surrogateescape")
    if path.partition("?")[0] == handover.HEALTH:
        await _send(writer, 200, handover.health(home, "fallback"))
        return
    match = _routes(home).find(path)
    if match is None:
        await _answer(writer, 404, "no_route", f"no upstream is configured for {path.partition('?')[0][:200]}")
        return
    url = urlsplit(match.url)
    try:
        upstream = await asyncio.wait_for(_connected(url), _CONNECT_SECONDS)
    except (OSError, TimeoutError, ValueError) as error:
        await _answer(writer, 502, "upstream_down", f"cannot connect to {url.hostname}: {type(error).__name__}")
        return
    try:
        upstream[1].write(_head(method, match.url, url, version, headers))
        await _pump_both((reader, writer), upstream)
    finally:
        await _close(upstream[1])


def _routes(home: Home) -> Routes:
    """Read the routes for each request, so that changes apply at once. A broken config leaves the presets in place."""
    from hypaware import config
    from hypaware.errors import HypError

    upstreams: list[object] = []
    with suppress(HypError, OSError):
        upstreams += config.load(home).gateway.upstreams
    return Routes([*upstreams, *own_upstreams.read(home)])  # type: ignore[list-item]


def _head(method: bytes, address: str, url: SplitResult, version: bytes, headers: list[bytes]) -> bytes:
    listed = b",".join(each.partition(b":")[2] for each in headers if each.lower().startswith(b"connection:"))
    excluded = _ONE_CONNECTION | {name.strip().lower() for name in listed.split(b",")}
    origin = f"{url.scheme}://{url.netloc}"
    target = address[len(origin) :].encode("utf-8", "surrogateescape") or b"/"
    lines = [b"%s %s %s" % (method, target, version), b"Host: " + url.netloc.rpartition("@")[2].encode()]
    for each in headers:
        name = each.partition(b":")[0].strip().lower()
        if name != b"host" and name not in excluded and not name.startswith(_OURS):
            lines.append(each)
    return b"\r\n".join((*lines, b"Connection: close", b"", b""))


async def _pump_both(client: Stream, upstream: Stream) -> None:
    """Copy in both directions until the response ends or the client closes its connection."""
    upward = asyncio.create_task(_pump(client[0], upstream[1]))
    downward = asyncio.create_task(_pump(upstream[0], client[1]))
    try:
        await asyncio.wait((upward, downward), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (upward, downward):
            task.cancel()
        await asyncio.gather(upward, downward, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while block := await reader.read(_BLOCK):
        writer.write(block)
        await writer.drain()


async def _connected(url: SplitResult) -> Stream:
    host, is_tls = url.hostname or "", url.scheme == "https"
    port = url.port or (443 if is_tls else 80)
    proxy = _proxy(url.scheme, host)
    if proxy is None:
        return await asyncio.open_connection(host, port, ssl=_trust() if is_tls else None, limit=_BLOCK)
    reader, writer = await asyncio.open_connection(proxy.hostname, proxy.port or 3128, limit=_BLOCK)
    lines = [f"CONNECT {host}:{port} HTTP/1.1", f"Host: {host}:{port}"]
    if proxy.username is not None:
        secret = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(secret).decode()}")
    writer.write("\r\n".join((*lines, "", "")).encode())
    response = await reader.readuntil(b"\r\n\r\n")
    if b" 200" not in response.split(b"\r\n")[0]:
        raise ConnectionError("the proxy refused the connection")
    if is_tls:
        await writer.start_tls(_trust(), server_hostname=host)
    return reader, writer


def _proxy(scheme: str, host: str) -> SplitResult | None:
    if host in ("localhost", "127.0.0.1", "::1"):
        return None
    names = (f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY")
    proxy = next((value for name in names if (value := os.environ.get(name))), None)
    no_proxy = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    for each in (part.strip().lstrip("*").lstrip(".") for part in no_proxy.split(",")):
        if each and (host == each or host.endswith(f".{each}")):
            return None
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}") if proxy and no_proxy.strip() != "*" else None


@cache
def _trust() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if extra := os.environ.get("SSL_CERT_FILE"):
        # OpenSSL lets the variable replace the system's certificates; here it adds to them.
        system = ssl.get_default_verify_paths().openssl_cafile
        for file in (extra, system):
            with suppress(OSError):
                context.load_verify_locations(file)
    return context


async def _answer(writer: asyncio.StreamWriter, status: int, kind: str, message: str) -> None:
    await _send(
        writer, status, {"type": "error", "error": {"type": kind, "message": f"HypAware on this machine: {message}"}}
    )


async def _send(writer: asyncio.StreamWriter, status: int, document: dict[str, object]) -> None:
    body = json.dumps(document).encode()
    writer.write(
        b"HTTP/1.1 %d \r\nContent-Type: application/json\r\nContent-Length: %d\r\nServer: hypaware-fallback\r\n"
        b"Connection: close\r\n\r\n" % (status, len(body))
    )
    writer.write(body)
    await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError, ssl.SSLError, TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), 5.0)
