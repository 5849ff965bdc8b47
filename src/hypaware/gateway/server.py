"""The gateway server: a local reverse proxy between the clients and their providers that records every exchange.

    gateway = GatewayServer("127.0.0.1:18521", Routes(config.gateway.upstreams), writer.write, spill_dir)
    host, port = await gateway.start()
    …
    await gateway.stop_listening()          # another process may use the address from here on
    await gateway.stop(grace=10)

The server serves HTTP/1.1 with keep-alive, streams in both directions and adds nothing to what it forwards. `proxy`
handles one exchange, `routes` chooses the upstream, `recorder` keeps the copy. `stop` lets running exchanges finish
within the grace period, aborts the rest, and returns when every finished exchange has been stored.

@ref capture#bytes
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web
from aiohttp.connector import AddrInfoType

from hypaware.errors import ConfigError, NotReady
from hypaware.gateway import upstreams
from hypaware.gateway.proxy import GatewayRequest, LocalPage, ProxyHandler, build_error
from hypaware.gateway.recorder import ExchangeHandler, Recorder, RecorderCounts, RecorderLimits
from hypaware.gateway.routes import Routes

# Clients keep connections open as long as they like. Closing an idle one too early would race with their next request.
_IDLE_SECONDS = 3600.0
# Idle upstream connections are closed before the provider does it, so that a request rarely meets a closing one.
_UPSTREAM_IDLE_SECONDS = 45.0
_READ_BUFFER = 1 << 16
_MAX_HEADER = 1 << 18
_MAX_HEADERS = 512
_KEEPALIVE_OPTIONS = {"TCP_KEEPIDLE": 60, "TCP_KEEPALIVE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""Options by name: not every system has all of them, and on macOS the first one has the second name."""
_BACKLOG = 1024
_SWITCH_SECONDS = 0.0005
_Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
# aiohttp quotes malformed requests in its log, so its log is disabled.
_SILENT_LOG = logging.getLogger("hypaware.gateway.aiohttp")
_SILENT_LOG.disabled = True


class GatewayServer:
    def __init__(
        self,
        listen: str | socket.socket,
        routes: Routes,
        handle_exchange: ExchangeHandler,
        spill_dir: Path,
        *,
        tls: ssl.SSLContext | None = None,
        environment: Mapping[str, str] = os.environ,
        limits: RecorderLimits | None = None,
        report_overhead: Callable[[float], None] = lambda _milliseconds: None,
        local_pages: Mapping[str, LocalPage] = MappingProxyType({}),
    ) -> None:
        """Create a gateway that does not listen yet.

        `listen` is an address or a socket that already listens. `spill_dir` holds spilled bodies and belongs to this
        gateway alone. `tls` verifies the upstreams. `report_overhead` receives the milliseconds that the gateway added
        to an exchange. `local_pages` maps paths to functions whose result the gateway returns as JSON.
        """
        self._socket = listen if isinstance(listen, socket.socket) else None
        self._host, self._port = _parse_address(listen)
        self._routes = routes
        self._recorder = Recorder(handle_exchange, spill_dir, limits=limits)
        self._tls = tls
        self._environment = environment
        self._report_overhead = report_overhead
        self._local_pages = local_pages
        self._session: aiohttp.ClientSession | None = None
        self._handler: ProxyHandler | None = None
        self._runner: web.ServerRunner | None = None
        self._own_authorities: set[str] = set()

    @property
    def counts(self) -> RecorderCounts:
        return self._recorder.counts

    async def start(self) -> tuple[str, int]:
        """Start serving and return the host and port; with port 0 in the config, the system chooses the port."""
        self._reject_loop()
        tls = self._tls or upstreams.build_tls_context(self._environment)
        await asyncio.to_thread(self._recorder.start)
        session = open_session(tls)
        self._handler = ProxyHandler(
            self._routes,
            session,
            self._recorder,
            proxies=self._proxies(),
            own_authorities=self._own_authorities,
            report_overhead=self._report_overhead,
            local_pages=self._local_pages,
        )
        self._session, self._runner = session, _build_runner(self._handler)
        try:
            await self._runner.setup()
            if self._socket is not None:
                await web.SockSite(self._runner, self._socket, backlog=_BACKLOG).start()
            else:
                await web.TCPSite(self._runner, self._host, self._port, backlog=_BACKLOG).start()
            host, self._port = self._runner.addresses[0][:2]
            self._reject_loop()
            names = ("localhost", "127.0.0.1", "[::1]", self._host.lower())
            self._own_authorities.update(f"{name}:{self._port}" for name in names)
            return host, self._port
        except BaseException as error:
            await self.stop(0)
            if isinstance(error, OSError):
                raise NotReady(
                    f"the gateway cannot listen on {self._host}:{self._port}: {error.strerror}",
                    kind="gateway_address",
                    repair=f"hyp config set gateway.listen {self._host}:{self._port + 1}",
                ) from error
            raise

    def update_routes(self, routes: Routes) -> None:
        """Use these routes for new requests; running exchanges keep theirs."""
        previous, self._routes = self._routes, routes
        try:
            self._reject_loop()
        except ConfigError:
            self._routes = previous
            raise
        if self._handler is not None:
            self._handler.update_routes(routes, self._proxies())

    async def stop_listening(self) -> None:
        """Accept no more connections; open connections are still served."""
        if self._runner is not None:
            for site in self._runner.sites:
                await site.stop()

    async def stop(self, grace: float) -> None:
        await self.stop_listening()
        if self._runner is None or self._handler is None or self._session is None:
            return
        runner, self._runner = self._runner, None
        await self._handler.drain(grace)
        await runner.cleanup()
        await self._session.close()
        await asyncio.to_thread(self._recorder.stop)

    def _proxies(self) -> dict[str, upstreams.OutboundProxy]:
        proxies = {
            route.base_url: upstreams.find_proxy(route.base_url, self._environment) for route in self._routes.all()
        }
        return {base_url: proxy for base_url, proxy in proxies.items() if proxy is not None}

    def _reject_loop(self) -> None:
        for route in self._routes.all():
            parts = urlsplit(route.base_url)
            host = parts.hostname or ""
            if parts.port == self._port and (upstreams.is_loopback(host) or host == self._host):
                raise ConfigError(
                    f"the upstream {route.name} points at {route.base_url}, which is the gateway itself: "
                    "requests would loop forever"
                )


def _parse_address(listen: str | socket.socket) -> tuple[str, int]:
    if isinstance(listen, socket.socket):
        host, port = listen.getsockname()[:2]
        return str(host), int(port)
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)


def _build_runner(handler: ProxyHandler) -> web.ServerRunner:
    loop = asyncio.get_running_loop()
    server = _Server(
        handler.handle,
        {
            "access_log": None,
            "logger": _SILENT_LOG,
            "auto_decompress": False,
            "keepalive_timeout": _IDLE_SECONDS,
            "read_bufsize": _READ_BUFFER,
            "max_line_size": _MAX_HEADER,
            "max_field_size": _MAX_HEADER,
            "max_headers": _MAX_HEADERS,
        },
        request_factory=lambda message, payload, protocol, writer, task: GatewayRequest(
            message, payload, protocol, writer, task, loop
        ),
        handler_cancellation=True,
    )
    return web.ServerRunner(server)


class _Server(web.Server):
    def __init__(self, handle: _Handler, options: Mapping[str, Any], **more: Any) -> None:
        super().__init__(handle, **more)
        self._options = options

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=asyncio.get_running_loop(), **self._options)


class _Connection(web.RequestHandler):
    """A client's connection. Input that is not an HTTP request gets the gateway's own error response."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        response = super().handle_error(request, status, exc, message)
        return build_error("malformed_request") if status == HTTPStatus.BAD_REQUEST else response


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
        timeout=aiohttp.ClientTimeout(
            total=None, connect=2 * upstreams.CONNECT_SECONDS, sock_connect=upstreams.CONNECT_SECONDS
        ),
        skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        auto_decompress=False,
        trust_env=False,
        read_bufsize=_READ_BUFFER,
        max_line_size=_MAX_HEADER,
        max_field_size=_MAX_HEADER,
        max_headers=_MAX_HEADERS,
    )


def open_socket(address: AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in _KEEPALIVE_OPTIONS.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
    return sock


def prioritize_streams() -> None:
    """Make threads that store exchanges yield to a stream within half a millisecond. Call once per gateway process.

    Python's default of five milliseconds would delay the streams.
    """
    sys.setswitchinterval(min(_SWITCH_SECONDS, sys.getswitchinterval()))
