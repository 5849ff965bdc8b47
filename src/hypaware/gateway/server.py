"""The gateway server: a local reverse proxy between the clients and their providers that records every exchange.

    gateway = GatewayServer("127.0.0.1:18521", Routes(config.gateway.upstreams), writer.write, spill_dir)
    host, port = await gateway.start()
    await gateway.stop_listening()          # another process may use the address from here on
    await gateway.stop(grace=10)

It serves HTTP/1.1 with keep-alive. `stop` lets running exchanges finish within the grace period, aborts the rest, and
returns when every finished exchange has been stored.

@ref capture#bytes
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

import aiohttp
import orjson
from aiohttp import web
from aiohttp.connector import AddrInfoType
from yarl import URL

from hypaware.errors import ConfigError, NotReady
from hypaware.gateway import proxy
from hypaware.gateway.exchange import Headers
from hypaware.gateway.recorder import ExchangeCapture, ExchangeHandler, Recorder, RecorderCounts, RecorderLimits
from hypaware.gateway.routes import (
    CONNECT_SECONDS,
    OutboundProxy,
    RouteMatch,
    Routes,
    build_tls_context,
    find_proxy,
    is_loopback,
)

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
LocalPage = Callable[[], Mapping[str, object]]
log = logging.getLogger("hypaware.gateway")
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
        if isinstance(listen, socket.socket):
            self._host, self._port = listen.getsockname()[:2]
        else:
            host, _, port = listen.rpartition(":")
            self._host, self._port = host.strip("[]"), int(port)
        self._routes = routes
        self._recorder = Recorder(handle_exchange, spill_dir, limits=limits)
        self._tls = tls
        self._environment = environment
        self._report_overhead = report_overhead
        self._local_pages = local_pages
        self._proxies: dict[str, OutboundProxy | None] = {}
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.ServerRunner | None = None
        self._listener: asyncio.Server | None = None
        self._own_authorities: set[str] = set()
        """The `host:port` texts that address this gateway in an absolute URL."""
        self._running: set[asyncio.Task[object]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False

    @property
    def counts(self) -> RecorderCounts:
        return self._recorder.counts

    async def start(self) -> tuple[str, int]:
        """Start serving and return the host and port; with port 0 in the config, the system chooses the port."""
        self.update_routes(self._routes)
        tls = self._tls or build_tls_context(self._environment)
        await asyncio.to_thread(self._recorder.start)
        self._session, self._runner = open_session(tls), web.ServerRunner(_Server(self._handle))
        try:
            await self._runner.setup()
            server, loop = self._runner.server, asyncio.get_running_loop()
            assert server is not None
            if self._socket is not None:
                self._listener = await loop.create_server(server, sock=self._socket, backlog=_BACKLOG)
            else:
                self._listener = await loop.create_server(server, self._host, self._port, backlog=_BACKLOG)
            host, self._port = self._listener.sockets[0].getsockname()[:2]
            self.update_routes(self._routes)
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
        for route in routes.all():
            parts = urlsplit(route.base_url)
            host = parts.hostname or ""
            if parts.port == self._port and (is_loopback(host) or host == self._host):
                raise ConfigError(
                    f"the upstream {route.name} points at {route.base_url}, which is the gateway itself: "
                    "requests would loop forever"
                )
        self._proxies = {route.base_url: find_proxy(route.base_url, self._environment) for route in routes.all()}
        self._routes = routes

    async def stop_listening(self) -> None:
        """Accept no more connections; open connections are still served."""
        if (listener := self._listener) is None:
            return
        self._listener = None
        loop = asyncio.get_running_loop()
        for each in listener.sockets:
            loop.remove_reader(each.fileno())
        # asyncio accepts a connection in one step of the loop and starts to serve it in the next. A server that is
        # closed in between forgets the connection: it is neither answered nor closed.
        await asyncio.sleep(0)
        listener.close()

    async def stop(self, grace: float) -> None:
        await self.stop_listening()
        if self._runner is None or self._session is None:
            return
        runner, self._runner = self._runner, None
        self._stopping = True
        try:
            async with asyncio.timeout(grace):
                await self._idle.wait()
        except TimeoutError:
            for task in self._running:
                task.cancel()
            await self._idle.wait()
        await runner.cleanup()
        await self._session.close()
        await asyncio.to_thread(self._recorder.stop)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request, proxy.GatewayRequest)
        task = asyncio.current_task()
        assert task is not None
        try:
            began_at = time.perf_counter()
            headers = proxy.decode_headers(request.raw_headers)
            if (refusal := self._routes.find_refusal(headers)) is not None:
                return proxy.build_error(refusal, host=request.headers.get("Host", ""))
            page = self._local_pages.get(request.raw_path.partition("?")[0])
            if page is not None:
                return web.Response(body=orjson.dumps(page()), content_type="application/json")
            if "websocket" in request.headers.get("Upgrade", "").lower():
                # Codex asks for a WebSocket first. With 426 it uses HTTP at once, with any other status after seconds.
                return proxy.build_error("websocket_refused")
            if self._stopping:
                return proxy.build_error("stopping")
            self._running.add(task)
            self._idle.clear()
            target = request.raw_path
            if not target.startswith("/"):
                # An absolute URL is accepted if it names this gateway.
                scheme, _, rest = target.partition("://")
                name, slash, path = rest.partition("/")
                is_own = scheme.lower() == "http" and name.lower() in self._own_authorities
                target = (slash + path or "/") if is_own else ""
            if not target or request.method == "CONNECT":
                return proxy.build_error("not_a_proxy")
            match = self._routes.find(target)
            if match is None:
                return proxy.build_error("no_route", close=False, path=target)
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
        self, request: proxy.GatewayRequest, headers: Headers, match: RouteMatch, began_at: float
    ) -> web.StreamResponse:
        assert self._session is not None
        capture = ExchangeCapture(self._recorder, match.route, request.method, match.path, headers)
        try:
            upload = proxy.Upload(request, capture) if request.body_exists else None
            outbound = self._proxies.get(match.route.base_url)
            forwarded = proxy.select_headers(headers, of_request=True)
            sent_at = time.perf_counter()
            try:
                upstream = await self._session.request(
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
                    return proxy.build_error("body_broke_off")
                capture.finish("upstream_down")
                return proxy.build_upstream_error(match.route, error)
            answered_at = time.perf_counter()
            try:
                capture.status, capture.response_headers = upstream.status, proxy.decode_headers(upstream.raw_headers)
                response = proxy.RelayedResponse(upstream, capture.response_headers)
                if not request.content.is_eof():
                    # The upstream responded before it had read the whole body; the rest has no receiver.
                    response.force_close()
                with contextlib.suppress(ConnectionError):
                    await response.prepare(request)
                self._report_overhead((sent_at - began_at + time.perf_counter() - answered_at) * 1000)
                capture.finish(await proxy.stream_response(request, upstream, response, capture))
            finally:
                # A finished connection is back in the pool by now; any other is closed.
                upstream.close()
            return response
        except asyncio.CancelledError:
            capture.finish("gateway_stopped" if self._stopping else "client_abort")
            raise
        finally:
            capture.finish("gateway_failed")


class _Server(web.Server):
    def __init__(self, handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(
            handle,
            request_factory=lambda message, payload, protocol, writer, task: proxy.GatewayRequest(
                message, payload, protocol, writer, task, loop
            ),
            handler_cancellation=True,
        )

    def __call__(self) -> web.RequestHandler:
        return _Connection(
            self,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            logger=_SILENT_LOG,
            auto_decompress=False,
            keepalive_timeout=_IDLE_SECONDS,
            read_bufsize=_READ_BUFFER,
            max_line_size=_MAX_HEADER,
            max_field_size=_MAX_HEADER,
            max_headers=_MAX_HEADERS,
        )


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
        return proxy.build_error("malformed_request") if status == HTTPStatus.BAD_REQUEST else response


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
