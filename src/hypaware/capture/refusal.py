"""What the gateway answers itself: JSON that both clients can show, and that says who speaks."""

from __future__ import annotations

from urllib.parse import urlsplit

import aiohttp
import orjson
from aiohttp import web

from hypaware.capture.routes import Route

MEDIA_TYPE = "application/json"


def refusal(status: int, kind: str, message: str, *, close: bool = False) -> web.Response:
    body = {"type": "error", "error": {"type": kind, "message": f"HypAware's gateway on this machine: {message}"}}
    response = web.Response(
        status=status,
        body=orjson.dumps(body),
        content_type=MEDIA_TYPE,
        headers={"Server": "hypaware-gateway"},
    )
    if close:
        response.force_close()
    return response


def no_route(path: str) -> web.Response:
    shown = path.partition("?")[0][:200]
    return refusal(
        404, "no_route", f"no upstream takes {shown}. Add one under [[gateway.upstreams]] in HypAware's config."
    )


def no_websocket() -> web.Response:
    response = refusal(
        426,
        "websocket_refused",
        "it takes no WebSocket, only plain HTTP. Use HTTP for this provider.",
        close=True,
    )
    # RFC 9110 wants to hear what would be taken instead.
    response.headers["Upgrade"] = "HTTP/1.1"
    return response


def not_a_proxy() -> web.Response:
    return refusal(
        421, "not_a_proxy", "it is no general proxy. Set the client's base URL to it, not HTTP_PROXY.", close=True
    )


def malformed() -> web.Response:
    return refusal(
        400,
        "malformed_request",
        "what came is no HTTP/1.1 request, or one whose head is too large. It takes plain HTTP, no TLS.",
        close=True,
    )


def broken_body() -> web.Response:
    return refusal(400, "body_broke_off", "the request's body broke off.", close=True)


def upstream_down(route: Route, error: Exception) -> web.Response:
    """The client's connection is closed: part of its request may still be on the way."""
    where = urlsplit(route.base_url).netloc
    if isinstance(error, TimeoutError):
        return refusal(504, "upstream_timeout", f"no connection to {where} ({route.name}) in time.", close=True)
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        message = (
            f"{where} ({route.name}) showed a certificate that this machine does not trust. "
            "If a proxy stands in between, name its authority's file in SSL_CERT_FILE for the daemon."
        )
        return refusal(502, "upstream_certificate", message, close=True)
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ClientProxyConnectionError):
        return refusal(502, "upstream_unreachable", f"no connection to {where} ({route.name}).", close=True)
    if isinstance(error, aiohttp.ClientResponseError):
        return refusal(
            502,
            "upstream_garbled",
            f"what {where} ({route.name}) answered is no HTTP that can be passed on.",
            close=True,
        )
    return refusal(
        502, "upstream_closed", f"{where} ({route.name}) closed the connection before it answered.", close=True
    )


def stopping() -> web.Response:
    response = refusal(503, "stopping", "it is just stopping. Try again in a moment.", close=True)
    response.headers["Retry-After"] = "1"
    return response
