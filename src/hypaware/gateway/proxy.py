"""The reverse proxy of the gateway: one exchange, its streams, its headers and the gateway's own error responses.

Nothing is buffered, decompressed or compressed: each chunk is forwarded as soon as it arrives, and a slow reader slows
down its writer. Every exchange finishes its capture exactly once, even if it was aborted:

    upstream_down    no response: no connection, an invalid certificate, or closed before the first line
    upstream_cut     the response was truncated; the client's connection is closed too, so that it notices
    client_abort     the client disconnected; the connection to the upstream is closed
    gateway_stopped  the gateway stopped before the end

The gateway does not retry requests: a POST may have taken effect. aiohttp retries an idempotent request without a body
once, on a pooled connection that the provider had closed.

Headers are forwarded in their order and spelling, except for hop-by-hop headers (RFC 9110), those that the `Connection`
header names, headers for HypAware itself (`x-hypaware-*`, `x-hyp-*`), the gateway's own `Host`, and the framing. Header
values are UTF-8 or, if invalid, Latin-1; aiohttp writes UTF-8, so a Latin-1 value is the same text in other bytes.

@ref capture#bytes
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from urllib.parse import urlsplit

import aiohttp
import orjson
from aiohttp import web
from aiohttp.connector import AddrInfoType
from multidict import CIMultiDict
from yarl import URL

from hypaware.gateway.exchange import Headers
from hypaware.gateway.recorder import ExchangeCapture, Recorder
from hypaware.gateway.routes import CONNECT_SECONDS, OutboundProxy, Route, RouteMatch, Routes, find_proxy

# fmt: off
_HOP_BY_HOP = frozenset((
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
))
# fmt: on
# Idle upstream connections are closed before the provider does it, so that a request rarely meets a closing one.
_UPSTREAM_IDLE_SECONDS = 45.0
READ_BUFFER = 1 << 16
MAX_HEADER = 1 << 18
MAX_HEADERS = 512
_KEEPALIVE_OPTIONS = {"TCP_KEEPIDLE": 60, "TCP_KEEPALIVE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""Options by name: not every system has all of them, and on macOS the first one has the second name."""
LocalPage = Callable[[], Mapping[str, object]]
log = logging.getLogger("hypaware.gateway")
_OWN_PREFIXES = ("x-hypaware-", "x-hyp-")
_CONTINUE_RESPONSE = b"HTTP/1.1 100 Continue\r\n\r\n"
# Headers that aiohttp's server adds to a response without them.
_DEFAULT_HEADERS = ("Content-Type", "Date", "Server")
_ERRORS = {
    "no_route": (404, "no upstream is configured for {path}. Add one under [[gateway.upstreams]] in the config."),
    "websocket_refused": (426, "WebSockets are not supported. Use HTTP for this provider."),
    "not_a_proxy": (
        421,
        "this is not a general proxy. Set the client's base URL to its address instead of using HTTP_PROXY.",
    ),
    "foreign_host": (
        403,
        "requests for {host} are refused, because a web page may have sent them. Use 127.0.0.1 or localhost in the "
        "client's base URL, or add the name to gateway.allowed_hosts in the config.",
    ),
    "cross_site": (403, "requests from web pages are refused."),
    "malformed_request": (
        400,
        "this is not an HTTP/1.1 request, or its header is too large. Use plain HTTP, not TLS.",
    ),
    "body_broke_off": (400, "the request body ended early."),
    "stopping": (503, "the gateway is stopping. Try again in a moment."),
    "upstream_timeout": (504, "connecting to {upstream} timed out."),
    "upstream_certificate": (
        502,
        "the certificate of {upstream} is not trusted on this machine. "
        "If a proxy intercepts TLS, set SSL_CERT_FILE for the daemon to the file of its certificate authority.",
    ),
    "upstream_unreachable": (502, "cannot connect to {upstream}."),
    "upstream_garbled": (502, "{upstream} sent an invalid HTTP response."),
    "upstream_closed": (502, "{upstream} closed the connection before it responded."),
}
_UPSTREAM_ERRORS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
    (TimeoutError, "upstream_timeout"),
    ((aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError), "upstream_certificate"),
    ((aiohttp.ClientConnectorError, aiohttp.ClientProxyConnectionError), "upstream_unreachable"),
    (aiohttp.ClientResponseError, "upstream_garbled"),
)
# RFC 9110 requires `Upgrade` to name an acceptable protocol.
_EXTRA_HEADERS = {"websocket_refused": {"Upgrade": "HTTP/1.1"}, "stopping": {"Retry-After": "1"}}


class ReverseProxy:
    """Relays each request to its upstream and records the exchange."""

    def __init__(
        self, recorder: Recorder, report_overhead: Callable[[float], None], local_pages: Mapping[str, LocalPage]
    ) -> None:
        self._recorder = recorder
        self._report_overhead = report_overhead
        self._local_pages = local_pages
        self._routes = Routes([])
        self._outbound: dict[str, OutboundProxy | None] = {}
        self.session: aiohttp.ClientSession | None = None
        self.own_authorities: set[str] = set()
        """The `host:port` texts that address this gateway in an absolute URL."""
        self._running: set[asyncio.Task[object]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False

    def update_routes(self, routes: Routes, environment: Mapping[str, str]) -> None:
        self._outbound = {route.base_url: find_proxy(route.base_url, environment) for route in routes.all()}
        self._routes = routes

    async def drain(self, grace: float) -> None:
        """Refuse new requests, and abort those that still run after the grace period."""
        self._stopping = True
        try:
            async with asyncio.timeout(grace):
                await self._idle.wait()
        except TimeoutError:
            for task in self._running:
                task.cancel()
            await self._idle.wait()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request, GatewayRequest)
        task = asyncio.current_task()
        assert task is not None
        try:
            began_at = time.perf_counter()
            headers = decode_headers(request.raw_headers)
            if (refusal := self._routes.find_refusal(headers)) is not None:
                return build_error(refusal, host=request.headers.get("Host", ""))
            page = self._local_pages.get(request.raw_path.partition("?")[0])
            if page is not None:
                return web.Response(body=orjson.dumps(page()), content_type="application/json")
            if "websocket" in request.headers.get("Upgrade", "").lower():
                # Codex asks for a WebSocket first. With 426 it uses HTTP immediately, otherwise after seconds.
                return build_error("websocket_refused")
            if self._stopping:
                return build_error("stopping")
            self._running.add(task)
            self._idle.clear()
            target = request.raw_path
            if not target.startswith("/"):
                # An absolute URL is accepted if it names this gateway.
                scheme, _, rest = target.partition("://")
                name, slash, path = rest.partition("/")
                is_own = scheme.lower() == "http" and name.lower() in self.own_authorities
                target = (slash + path or "/") if is_own else ""
            if not target or request.method == "CONNECT":
                return build_error("not_a_proxy")
            match = self._routes.find(target)
            if match is None:
                return build_error("no_route", close=False, path=target)
            return await self._relay(request, headers, match, began_at)
        except ConnectionError:
            raise
        except Exception as error:
            # A bug in the gateway. The error's text may quote the exchange, so only its type is logged.
            log.error("the gateway failed to handle an exchange: %s", type(error).__name__)
            if request.transport is not None:
                request.transport.close()
            raise ConnectionAbortedError from None
        finally:
            self._running.discard(task)
            if not self._running:
                self._idle.set()

    async def _relay(
        self, request: GatewayRequest, headers: Headers, match: RouteMatch, began_at: float
    ) -> web.StreamResponse:
        assert self.session is not None
        capture = ExchangeCapture(self._recorder, match.route, request.method, match.path, headers)
        try:
            upload = Upload(request, capture) if request.body_exists else None
            outbound = self._outbound.get(match.route.base_url)
            forwarded = select_headers(headers, of_request=True)
            sent_at = time.perf_counter()
            try:
                upstream = await self.session.request(
                    request.method,
                    URL(match.url, encoded=True),
                    headers=forwarded,
                    data=upload.chunks() if upload else None,
                    allow_redirects=False,
                    proxy=outbound.url if outbound else None,
                    proxy_headers=outbound.headers if outbound else None,
                )
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                if upload is not None and upload.client_aborted:
                    capture.finish("client_abort")
                    return build_error("body_broke_off")
                capture.finish("upstream_down")
                return build_upstream_error(match.route, error)
            answered_at = time.perf_counter()
            try:
                capture.status, capture.response_headers = upstream.status, decode_headers(upstream.raw_headers)
                response = RelayedResponse(upstream, capture.response_headers)
                if not request.content.is_eof():
                    # The upstream responded before it had read the whole body; the rest has no receiver.
                    response.force_close()
                with contextlib.suppress(ConnectionError):
                    await response.prepare(request)
                self._report_overhead((sent_at - began_at + time.perf_counter() - answered_at) * 1000)
                capture.finish(await stream_response(request, upstream, response, capture))
            finally:
                # A finished connection is back in the pool by now; any other is closed.
                upstream.close()
            return response
        except asyncio.CancelledError:
            capture.finish("gateway_stopped" if self._stopping else "client_abort")
            raise
        finally:
            capture.finish("gateway_failed")


def open_session(tls: ssl.SSLContext) -> aiohttp.ClientSession:
    """Open a pooled HTTP client that adds nothing to the requests that it forwards.

    Connecting has a timeout, responding has none: a model may think for a long time. TCP keep-alive detects a peer that
    has disappeared, so a stream that died with the network ends instead of waiting forever. `trust_env` is off, because
    it would also add passwords from ~/.netrc to requests.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0, ssl=tls, keepalive_timeout=_UPSTREAM_IDLE_SECONDS, ttl_dns_cache=60, socket_factory=open_socket
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, connect=2 * CONNECT_SECONDS, sock_connect=CONNECT_SECONDS),
        skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        auto_decompress=False,
        trust_env=False,
        read_bufsize=READ_BUFFER,
        max_line_size=MAX_HEADER,
        max_field_size=MAX_HEADER,
        max_headers=MAX_HEADERS,
    )


def open_socket(address: AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in _KEEPALIVE_OPTIONS.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
    return sock


async def stream_response(
    request: GatewayRequest, upstream: aiohttp.ClientResponse, response: web.StreamResponse, capture: ExchangeCapture
) -> str | None:
    """Stream the response to the client; return why it ended early, or None."""
    content = upstream.content
    while True:
        try:
            chunk = await content.readany()
        except (aiohttp.ClientError, OSError):
            if request.transport is not None:
                request.transport.close()
            return "upstream_cut"
        if chunk:
            capture.response.add(chunk)
        is_last = content.at_eof()
        try:
            await (response.write_eof(chunk) if is_last else response.write(chunk))
        except ConnectionError:
            return "client_abort"
        if is_last:
            return None


class Upload:
    """The request body, read on demand. A client that waits for `100 Continue` gets it when the upstream reads."""

    def __init__(self, request: GatewayRequest, capture: ExchangeCapture) -> None:
        self._request, self._capture = request, capture
        self._expects_continue = request.headers.get("Expect", "").lower() == "100-continue"
        self.client_aborted = False

    async def chunks(self) -> AsyncIterator[bytes]:
        if self._expects_continue and self._request.transport is not None:
            self._request.transport.write(_CONTINUE_RESPONSE)
        content = self._request.content
        if not content.is_eof():
            # aiohttp sends the header with the first chunk, but a client may need a response before it sends one.
            yield b""
        while True:
            try:
                chunk = await content.readany()
            except Exception:
                self.client_aborted = True
                raise
            if not chunk:
                return
            self._capture.request.add(chunk)
            yield chunk


class GatewayRequest(web.BaseRequest):
    """A request without aiohttp's application layer, whose own routing would add a tenth to the cost of an exchange."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        if isinstance(response, RelayedResponse):
            for name in response.defaults:
                response.headers.popall(name, None)


class RelayedResponse(web.StreamResponse):
    """An upstream's response on its way to the client, with the headers that the upstream sent."""

    def __init__(self, upstream: aiohttp.ClientResponse, sent_headers: Headers) -> None:
        forwarded = select_headers(sent_headers, of_request=False)
        super().__init__(status=upstream.status, reason=upstream.reason, headers=forwarded)
        self.defaults = [name for name in _DEFAULT_HEADERS if name not in forwarded]
        """Headers that aiohttp adds, to be removed again."""


def decode_headers(raw: Iterable[tuple[bytes, bytes]]) -> Headers:
    return [(_decode_header(name), _decode_header(value)) for name, value in raw]


def _decode_header(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def select_headers(headers: Headers, *, of_request: bool) -> CIMultiDict[str]:
    """Return the headers to forward.

    The HTTP client sets the `Host` of a request, and the gateway has already answered its `Expect`.
    """
    excluded = _HOP_BY_HOP | {
        listed.strip().lower() for name, value in headers if name.lower() == "connection" for listed in value.split(",")
    }
    forwarded: CIMultiDict[str] = CIMultiDict()
    spelling: dict[str, str] = {}
    for name, value in headers:
        lower = name.lower()
        if lower in excluded:
            continue
        if of_request and (lower == "host" or lower.startswith(_OWN_PREFIXES)):
            continue
        if of_request and lower == "expect" and value.lower() == "100-continue":
            continue
        # aiohttp treats two spellings of a name as a replacement.
        forwarded.add(spelling.setdefault(lower, name), value)
    return forwarded


def build_error(kind: str, *, close: bool = True, path: str = "", upstream: str = "", host: str = "") -> web.Response:
    """Build the response for a kind of error. It closes the connection, unless the whole request was read."""
    status, message = _ERRORS[kind]
    message = message.format(path=path.partition("?")[0][:200], upstream=upstream, host=host[:200])
    response = web.Response(
        status=status,
        body=orjson.dumps(
            {"type": "error", "error": {"type": kind, "message": f"HypAware gateway on this machine: {message}"}}
        ),
        content_type="application/json",
        headers={"Server": "hypaware-gateway", **_EXTRA_HEADERS.get(kind, {})},
    )
    if close:
        response.force_close()
    return response


def build_upstream_error(route: Route, error: Exception) -> web.Response:
    """Build the response for an upstream that could not be reached or did not respond."""
    kind = next((kind for types, kind in _UPSTREAM_ERRORS if isinstance(error, types)), "upstream_closed")
    return build_error(kind, upstream=f"{urlsplit(route.base_url).netloc} ({route.name})")
