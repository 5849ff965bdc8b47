"""The gateway: a reverse proxy on this machine, between the clients and their providers, that keeps a copy.

    gateway = Gateway("127.0.0.1:18521", Routes(config.gateway.upstreams), keep, folder)
    host, port = await gateway.start()
    …
    await gateway.stop_listening()          # the address may be somebody else's from here on
    await gateway.stop(grace=10)

Everything that it needs is handed in. It serves HTTP/1.1 with keep-alive, streams both ways and adds nothing to what
it passes on; `proxying` has one exchange, `routes` the way, `recorder` the copy. Stopping lets what is under way end
within the grace, breaks off the rest, and returns when every exchange that has ended is kept.

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

from hypaware.capture import refusal, upstreams
from hypaware.capture.proxying import Page, Proxying, Request
from hypaware.capture.recorder import Counts, Keep, Recorder
from hypaware.capture.routes import Routes
from hypaware.capture.spill import Limits
from hypaware.errors import ConfigError, NotReady

# A client keeps its connection for as long as it likes: closing one under a request that is just coming would hurt it.
_IDLE_SECONDS = 3600.0
_BACKLOG = 1024
_TURN_SECONDS = 0.0005

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

log = logging.getLogger("hypaware.gateway")
# aiohttp quotes a broken request in its log.
_UNHEARD = logging.getLogger("hypaware.gateway.aiohttp")
_UNHEARD.disabled = True


def streams_come_first() -> None:
    """For the process that has a gateway, once: a thread that takes an exchange down gives way to a stream within half
    a millisecond. Python's own five are for programs in which nobody waits."""
    sys.setswitchinterval(min(_TURN_SECONDS, sys.getswitchinterval()))


class Gateway:
    def __init__(
        self,
        listen: str | socket.socket,
        routes: Routes,
        keep: Keep,
        folder: Path,
        *,
        tls: ssl.SSLContext | None = None,
        environment: Mapping[str, str] = os.environ,
        limits: Limits | None = None,
        overhead: Callable[[float], None] = lambda _milliseconds: None,
        own_pages: Mapping[str, Page] = MappingProxyType({}),
    ) -> None:
        """`listen`: an address, or a socket that listens already. `folder` is for spilled bodies and this gateway's
        alone. `tls` is how upstreams are trusted. `own_pages`: paths that are answered on the spot, as JSON."""
        self._socket = listen if isinstance(listen, socket.socket) else None
        self._host, self._port = _address(listen)
        self._routes = routes
        self._recorder = Recorder(keep, folder, limits=limits)
        self._tls = tls
        self._environment = environment
        self._overhead = overhead
        self._own_pages = own_pages
        self._session: aiohttp.ClientSession | None = None
        self._proxying: Proxying | None = None
        self._runner: web.ServerRunner | None = None
        self._own_names: set[str] = set()

    @property
    def counts(self) -> Counts:
        return self._recorder.counts

    async def start(self) -> tuple[str, int]:
        """Where it listens now: with port 0 in the config, the system has chosen one."""
        self._refuse_itself(self._port)
        tls = self._tls or upstreams.tls_context(self._environment)
        await asyncio.to_thread(self._recorder.start)
        session = upstreams.open_session(tls)
        self._proxying = Proxying(
            self._routes,
            session,
            self._recorder,
            proxies=self._proxies(),
            own_names=self._own_names,
            overhead=self._overhead,
            own_pages=self._own_pages,
        )
        self._session, self._runner = session, _runner(self._proxying)
        try:
            return await self._listen(self._runner)
        except BaseException as error:
            await self.stop(0)
            if isinstance(error, OSError):
                raise NotReady(
                    f"the gateway cannot listen on {self._host}:{self._port}: {error.strerror}",
                    kind="gateway_address",
                    repair=f"hyp config set gateway.listen {self._host}:{self._port + 1}",
                ) from error
            raise

    def reroute(self, routes: Routes) -> None:
        """Requests go by these from now on; what is under way goes on as it began."""
        before, self._routes = self._routes, routes
        try:
            self._refuse_itself(self._port)
        except ConfigError:
            self._routes = before
            raise
        if self._proxying is not None:
            self._proxying.reroute(routes, self._proxies())

    async def stop_listening(self) -> None:
        """Nobody new comes in; whoever is connected is still served."""
        if self._runner is not None:
            for site in self._runner.sites:
                await site.stop()

    async def stop(self, grace: float) -> None:
        await self.stop_listening()
        if self._runner is None or self._proxying is None or self._session is None:
            return
        runner, self._runner = self._runner, None
        await self._proxying.drain(grace)
        await runner.cleanup()
        await self._session.close()
        await asyncio.to_thread(self._recorder.stop)

    async def _listen(self, runner: web.ServerRunner) -> tuple[str, int]:
        await runner.setup()
        if self._socket is not None:
            await web.SockSite(runner, self._socket, backlog=_BACKLOG).start()
        else:
            await web.TCPSite(runner, self._host, self._port, backlog=_BACKLOG).start()
        host, port = runner.addresses[0][:2]
        self._port = port
        self._refuse_itself(port)
        self._own_names.update(f"{name}:{port}" for name in ("localhost", "127.0.0.1", "[::1]", self._host.lower()))
        return host, port

    def _proxies(self) -> dict[str, upstreams.Proxy]:
        found = {route.base_url: upstreams.proxy_for(route.base_url, self._environment) for route in self._routes.all()}
        return {base_url: proxy for base_url, proxy in found.items() if proxy is not None}

    def _refuse_itself(self, port: int) -> None:
        for route in self._routes.all():
            parts = urlsplit(route.base_url)
            host = parts.hostname or ""
            if parts.port == port and (upstreams.is_loopback(host) or host == self._host):
                raise ConfigError(
                    f"the upstream {route.name} at {route.base_url} is the gateway itself: "
                    "every request would go in circles"
                )


def _address(listen: str | socket.socket) -> tuple[str, int]:
    if isinstance(listen, socket.socket):
        host, port = listen.getsockname()[:2]
        return str(host), int(port)
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)


class _Connection(web.RequestHandler):
    """A client's connection: what is no request is refused in the gateway's own words."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        answer = super().handle_error(request, status, exc, message)
        return refusal.malformed() if status == HTTPStatus.BAD_REQUEST else answer


class _Server(web.Server):
    def __init__(self, handle: Handler, options: Mapping[str, Any], **more: Any) -> None:
        super().__init__(handle, **more)
        self._options = options

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=asyncio.get_running_loop(), **self._options)


def _runner(proxying: Proxying) -> web.ServerRunner:
    loop = asyncio.get_running_loop()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request, Request)
        try:
            return await proxying.handle(request)
        except ConnectionError:
            raise
        except Exception as error:
            # A fault of ours.
            log.error("an exchange broke off within the gateway: %s", type(error).__name__)
            if request.transport is not None:
                request.transport.close()
            raise ConnectionAbortedError from None

    server = _Server(
        handle,
        {
            "access_log": None,
            "logger": _UNHEARD,
            "auto_decompress": False,
            "keepalive_timeout": _IDLE_SECONDS,
            "read_bufsize": upstreams.READ_BUFFER,
            "max_line_size": upstreams.MAX_HEADER,
            "max_field_size": upstreams.MAX_HEADER,
            "max_headers": upstreams.MAX_HEADERS,
        },
        request_factory=lambda message, payload, protocol, writer, task: Request(
            message, payload, protocol, writer, task, loop
        ),
        handler_cancellation=True,
    )
    return web.ServerRunner(server)
