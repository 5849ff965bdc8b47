"""The gateway server: listens on the local address that the clients use in place of their providers.

    routes = Routes(config.gateway.upstreams)
    gateway = GatewayServer("127.0.0.1:18521", routes, writer.write, spill_dir, store=writer.store)
    host, port = await gateway.start()
    await gateway.stop_listening()          # another process may use the address from here on
    await gateway.stop(grace=10)

It serves HTTP/1.1 with keep-alive; `ReverseProxy` relays and records each exchange. `stop` lets running exchanges
finish within the grace period, aborts the rest, and returns when every finished exchange has been stored.
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
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from hypaware.errors import ConfigError, NotReady
from hypaware.gateway import proxy
from hypaware.gateway.proxy import LocalPage, ReverseProxy
from hypaware.gateway.recorder import ExchangeHandler, Recorder, RecorderCounts, RecorderLimits
from hypaware.gateway.routes import Routes, build_tls_context, is_loopback

# Clients keep connections open as long as they like. Closing an idle one too early would race with their next request.
_IDLE_SECONDS = 3600.0
_BACKLOG = 1024
_SWITCH_SECONDS = 0.0005
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
        store: Callable[[], None] = lambda: None,
        tls: ssl.SSLContext | None = None,
        environment: Mapping[str, str] = os.environ,
        limits: RecorderLimits | None = None,
        report_overhead: Callable[[float], None] = lambda _milliseconds: None,
        local_pages: Mapping[str, LocalPage] = MappingProxyType({}),
    ) -> None:
        """Create a gateway that does not listen yet.

        `listen` is an address or a socket that already listens. `spill_dir` holds spilled bodies and belongs to this
        gateway alone. `store` makes the handled exchanges durable. `tls` verifies the upstreams. `report_overhead`
        receives the milliseconds that the gateway added to an exchange. `local_pages` maps paths to functions whose
        result the gateway returns as JSON.
        """
        self._socket = listen if isinstance(listen, socket.socket) else None
        if isinstance(listen, socket.socket):
            self._host, self._port = listen.getsockname()[:2]
        else:
            host, _, port = listen.rpartition(":")
            self._host, self._port = host.strip("[]"), int(port)
        self._routes = routes
        self._recorder = Recorder(handle_exchange, spill_dir, store=store, limits=limits)
        self._proxy = ReverseProxy(self._recorder, report_overhead, local_pages)
        self._tls = tls
        self._environment = environment
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.ServerRunner | None = None
        self._listener: asyncio.Server | None = None

    @property
    def counts(self) -> RecorderCounts:
        return self._recorder.counts

    async def start(self) -> tuple[str, int]:
        """Start serving and return the host and port; with port 0 in the config, the system chooses the port."""
        self.update_routes(self._routes)
        tls = self._tls or build_tls_context(self._environment)
        await asyncio.to_thread(self._recorder.start)
        self._session = self._proxy.session = proxy.open_session(tls)
        self._runner = web.ServerRunner(_Server(self._proxy.handle))
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
            self._proxy.own_authorities.update(f"{name}:{self._port}" for name in names)
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
        self._proxy.update_routes(routes, self._environment)
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
        await self._proxy.drain(grace)
        await runner.cleanup()
        await self._session.close()
        await asyncio.to_thread(self._recorder.stop)


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
            read_bufsize=proxy.READ_BUFFER,
            max_line_size=proxy.MAX_HEADER,
            max_field_size=proxy.MAX_HEADER,
            max_headers=proxy.MAX_HEADERS,
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


def prioritize_streams() -> None:
    """Make threads that store exchanges yield to a stream within half a millisecond. Call once per gateway process.

    Python's default of five milliseconds would delay the streams.
    """
    sys.setswitchinterval(min(_SWITCH_SECONDS, sys.getswitchinterval()))
