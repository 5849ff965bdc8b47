"""One exchange through the gateway: its streams, its headers and the gateway's own error responses.

Nothing is buffered, decompressed or compressed: each chunk is forwarded as soon as it arrives, and a slow reader slows
down its writer. Every exchange finishes its capture exactly once, also if it was aborted:

    upstream_down    no response: no connection, an invalid certificate, or closed before the first line
    upstream_cut     the response was truncated; the client's connection is closed too, so that it notices
    client_abort     the client disconnected; the connection to the upstream is closed
    gateway_stopped  the gateway stopped before the end

The gateway does not retry requests: a POST may have taken effect. aiohttp retries an idempotent request without a body
once, on a pooled connection that the provider had closed.

Headers are forwarded in their order and spelling, except for hop-by-hop headers (RFC 9110), those that the `Connection`
header names, headers for HypAware itself (`x-hypaware-*`, `x-hyp-*`), the gateway's own `Host`, and the framing. Header
values are UTF-8 or, if invalid, Latin-1; aiohttp writes UTF-8, so a Latin-1 value is the same text in other bytes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from urllib.parse import urlsplit

import aiohttp
import orjson
from aiohttp import web
from multidict import CIMultiDict

from hypaware.gateway.exchange import Headers
from hypaware.gateway.recorder import ExchangeCapture
from hypaware.gateway.routes import Route

# fmt: off
_HOP_BY_HOP = frozenset((
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
))
# fmt: on
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
