"""The proxy handler: one exchange through the gateway, streamed in both directions.

Nothing is buffered, decompressed or compressed: each chunk is forwarded as soon as it arrives, and a slow reader slows
down its writer. An `ExchangeCapture` copies both directions. Every exchange finishes its capture exactly once,
including an aborted one:

    upstream_down    no response: no connection, an invalid certificate, or closed before the first line
    upstream_cut     the response was truncated; the client's connection is closed too, so that it notices
    client_abort     the client disconnected; the connection to the upstream is closed
    gateway_stopped  the gateway stopped before the end

The gateway does not retry requests. The only exception is aiohttp's single retry of an idempotent request without a
body on a pooled connection that the provider had closed. A POST may have taken effect, so only its client can decide.

Headers are forwarded in their order and spelling, except for:

- hop-by-hop headers (RFC 9110) and those that the `Connection` header names;
- headers for HypAware itself (`x-hypaware-*`, `x-hyp-*`) and the gateway's own `Host`;
- the framing, which each connection has for itself (a known length is kept).

Header values are UTF-8 or, if invalid, Latin-1. aiohttp always writes UTF-8, so a Latin-1 value is forwarded as the
same text in different bytes; all other values are forwarded byte for byte.

Error responses of the gateway itself are JSON that the clients can display and that names HypAware as the sender.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from urllib.parse import urlsplit

import aiohttp
import orjson
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from hypaware.gateway.exchange import Headers
from hypaware.gateway.recorder import ExchangeCapture, Recorder
from hypaware.gateway.routes import Route, RouteMatch, Routes
from hypaware.gateway.upstreams import OutboundProxy

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_OWN_PREFIXES = ("x-hypaware-", "x-hyp-")
_CONTINUE_RESPONSE = b"HTTP/1.1 100 Continue\r\n\r\n"
log = logging.getLogger("hypaware.gateway")
LocalPage = Callable[[], Mapping[str, object]]
# Headers that aiohttp's server adds to a response without them.
_DEFAULT_HEADERS = ("Content-Type", "Date", "Server")
_ERRORS = {
    "no_route": (404, "no upstream is configured for {path}. Add one under [[gateway.upstreams]] in the config."),
    "websocket_refused": (426, "WebSockets are not supported. Use HTTP for this provider."),
    "not_a_proxy": (
        421,
        "this is not a general proxy. Set the client's base URL to its address instead of using HTTP_PROXY.",
    ),
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
# RFC 9110 requires `Upgrade` to name an acceptable protocol.
_EXTRA_HEADERS = {"websocket_refused": {"Upgrade": "HTTP/1.1"}, "stopping": {"Retry-After": "1"}}


class ProxyHandler:
    """Handles every request of the gateway."""

    def __init__(
        self,
        routes: Routes,
        session: aiohttp.ClientSession,
        recorder: Recorder,
        *,
        proxies: Mapping[str, OutboundProxy],
        own_authorities: Collection[str],
        report_overhead: Callable[[float], None],
        local_pages: Mapping[str, LocalPage],
    ) -> None:
        """Create the handler.

        `proxies` maps base URLs to outbound proxies. `own_authorities` are the `host:port` texts that address this
        gateway in an absolute URL. `report_overhead` receives milliseconds.
        """
        self._routes, self._session, self._recorder = routes, session, recorder
        self._proxies, self._own_authorities, self._report_overhead, self._local_pages = (
            proxies,
            own_authorities,
            report_overhead,
            local_pages,
        )
        self._running: set[asyncio.Task[object]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request, GatewayRequest)
        task = asyncio.current_task()
        assert task is not None
        try:
            page = self._local_pages.get(request.raw_path.partition("?")[0])
            if page is not None:
                return web.Response(body=orjson.dumps(page()), content_type="application/json")
            if self._stopping:
                return build_error("stopping")
            self._running.add(task)
            self._idle.clear()
            return await self._handle(request)
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

    def update_routes(self, routes: Routes, proxies: Mapping[str, OutboundProxy]) -> None:
        self._routes, self._proxies = routes, proxies

    async def drain(self, grace: float) -> None:
        """Reject new requests, let running ones finish within the grace period, then cancel them."""
        self._stopping = True
        try:
            await asyncio.wait_for(self._idle.wait(), grace)
        except TimeoutError:
            for task in self._running:
                task.cancel()
            await self._idle.wait()

    async def _handle(self, request: GatewayRequest) -> web.StreamResponse:
        began_at = time.perf_counter()
        target = self._origin_form(request.raw_path)
        if target is None or request.method == "CONNECT":
            return build_error("not_a_proxy")
        match = self._routes.find(target)
        if match is None:
            return build_error("no_route", close=False, path=target)
        sent = _decode_headers(request.raw_headers)
        capture = ExchangeCapture(self._recorder, match.route, request.method, match.path, sent)
        try:
            if "websocket" in request.headers.get("Upgrade", "").lower():
                capture.finish("websocket_refused")
                return build_error("websocket_refused")
            return await self._relay(request, match, capture, _select_request_headers(sent), began_at)
        except asyncio.CancelledError:
            capture.finish("gateway_stopped" if self._stopping else "client_abort")
            raise
        finally:
            capture.finish("gateway_failed")

    async def _relay(
        self,
        request: GatewayRequest,
        match: RouteMatch,
        capture: ExchangeCapture,
        sent: CIMultiDict[str],
        began_at: float,
    ) -> web.StreamResponse:
        upload = _Upload(request, capture) if request.body_exists else None
        proxy = self._proxies.get(match.route.base_url)
        sent_at = time.perf_counter()
        try:
            upstream = await self._session.request(
                request.method,
                URL(match.url, encoded=True),
                headers=sent,
                data=upload.chunks() if upload else None,
                allow_redirects=False,
                proxy=proxy.url if proxy else None,
                proxy_headers=proxy.headers if proxy else None,
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if upload is not None and upload.client_aborted:
                capture.finish("client_abort")
                return build_error("body_broke_off")
            capture.finish("upstream_down")
            return build_upstream_error(match.route, error)
        answered_at = time.perf_counter()
        try:
            sent_headers = _decode_headers(upstream.raw_headers)
            capture.status, capture.response_headers = upstream.status, sent_headers
            response = RelayedResponse(upstream, sent_headers)
            if not request.content.is_eof():
                # The upstream responded before it had read the whole body; the rest has no receiver.
                response.force_close()
            with contextlib.suppress(ConnectionError):
                await response.prepare(request)
            self._report_overhead((sent_at - began_at + time.perf_counter() - answered_at) * 1000)
            capture.finish(await _stream_response(request, upstream, response, capture))
        finally:
            # A finished connection is back in the pool by now; any other is closed.
            upstream.close()
        return response

    def _origin_form(self, target: str) -> str | None:
        """Return path and query of a request target, which may also be an absolute URL of this gateway."""
        if target.startswith("/"):
            return target
        scheme, _, rest = target.partition("://")
        name, slash, path = rest.partition("/")
        return slash + path or "/" if scheme.lower() == "http" and name.lower() in self._own_authorities else None


async def _stream_response(
    request: GatewayRequest, upstream: aiohttp.ClientResponse, response: RelayedResponse, capture: ExchangeCapture
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
            capture.add_response_bytes(chunk)
        is_last = content.at_eof()
        try:
            await (response.write_eof(chunk) if is_last else response.write(chunk))
        except ConnectionError:
            return "client_abort"
        if is_last:
            return None


class _Upload:
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
        forwarded = _select_end_to_end(sent_headers)
        super().__init__(status=upstream.status, reason=upstream.reason, headers=forwarded)
        self.defaults = [name for name in _DEFAULT_HEADERS if name not in forwarded]
        """Headers that aiohttp adds, to be removed again."""


def _decode_headers(raw: Iterable[tuple[bytes, bytes]]) -> Headers:
    return [(_decode_header(name), _decode_header(value)) for name, value in raw]


def _decode_header(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _select_request_headers(headers: Headers) -> CIMultiDict[str]:
    """Return the headers to forward. The HTTP client sets `Host`, and the gateway has already answered `Expect`."""
    return _select_end_to_end(
        (name, value)
        for name, value in headers
        if not name.lower().startswith(_OWN_PREFIXES)
        and name.lower() != "host"
        and not (name.lower() == "expect" and value.lower() == "100-continue")
    )


def _select_end_to_end(headers: Iterable[tuple[str, str]]) -> CIMultiDict[str]:
    headers = list(headers)
    excluded = _HOP_BY_HOP | {
        listed.strip().lower() for name, value in headers if name.lower() == "connection" for listed in value.split(",")
    }
    forwarded: CIMultiDict[str] = CIMultiDict()
    spelling: dict[str, str] = {}
    for name, value in headers:
        if (lower := name.lower()) not in excluded:
            # aiohttp treats two spellings of a name as a replacement.
            forwarded.add(spelling.setdefault(lower, name), value)
    return forwarded


def build_error(kind: str, *, close: bool = True, path: str = "", upstream: str = "") -> web.Response:
    """Build the response for a kind of error. It closes the connection, unless the whole request was read."""
    status, message = _ERRORS[kind]
    message = message.format(path=path.partition("?")[0][:200], upstream=upstream)
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
    if isinstance(error, TimeoutError):
        kind = "upstream_timeout"
    elif isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        kind = "upstream_certificate"
    elif isinstance(error, aiohttp.ClientConnectorError | aiohttp.ClientProxyConnectionError):
        kind = "upstream_unreachable"
    elif isinstance(error, aiohttp.ClientResponseError):
        kind = "upstream_garbled"
    else:
        kind = "upstream_closed"
    return build_error(kind, upstream=f"{urlsplit(route.base_url).netloc} ({route.name})")
