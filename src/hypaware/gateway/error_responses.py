"""Error responses of the gateway itself: JSON that the clients can display and that names HypAware as the sender."""

from __future__ import annotations

from urllib.parse import urlsplit

import aiohttp
import orjson
from aiohttp import web

from hypaware.gateway.routes import Route

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
