"""One exchange through the gateway: the request goes on as it comes, the answer comes back as it comes.

Nothing is buffered, unpacked or packed: each piece is passed on as soon as it is there, and a slow reader slows its
writer. Beside both ways stands a `Take`, which every exchange ends exactly once, also one that was cut:

    upstream_down    no answer came: no connection, a bad certificate, or closed before the first line
    upstream_cut     the answer broke off; the client's connection is broken off too, so that it notices
    client_abort     the client went away; the upstream's connection is closed
    gateway_stopped  the gateway stopped before the end

A request is not tried again here, but for aiohttp's one repetition of an idempotent one without a body on a pooled
connection that the provider had closed. A POST may have been heard; its client knows better.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping

import aiohttp
import orjson
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from hypaware.capture import headers, refusal
from hypaware.capture.recorder import Recorder, Take
from hypaware.capture.recording import Headers
from hypaware.capture.routes import Destination, Routes
from hypaware.capture.upstreams import Proxy

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
Page = Callable[[], Mapping[str, object]]
# What aiohttp's server adds to an answer that lacks it.
_ADDED = ("Content-Type", "Date", "Server")


class Relayed(web.StreamResponse):
    """An upstream's answer on its way to the client, with the names that it brought."""

    def __init__(self, upstream: aiohttp.ClientResponse, brought: Headers) -> None:
        passing = headers.for_client(brought)
        super().__init__(status=upstream.status, reason=upstream.reason, headers=passing)
        self._missing = [name for name in _ADDED if name not in passing]

    def take_off_what_was_added(self) -> None:
        for name in self._missing:
            self.headers.popall(name, None)


class Request(web.BaseRequest):
    """A request without aiohttp's application around it: that would look for a route of its own, for a tenth of what an
    exchange costs here."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        if isinstance(response, Relayed):
            response.take_off_what_was_added()


class _Upload:
    """The request's body, read when the upstream wants more of it; a client that waits to be asked for it is asked
    then, and not before."""

    def __init__(self, request: Request, take: Take) -> None:
        self._request, self._take = request, take
        self._is_awaited = request.headers.get("Expect", "").lower() == "100-continue"
        self.broke_off = False

    async def pieces(self) -> AsyncIterator[bytes]:
        if self._is_awaited and self._request.transport is not None:
            self._request.transport.write(_CONTINUE)
        content = self._request.content
        if not content.is_eof():
            # aiohttp holds the head back until there is something to send: a client may want an answer before that.
            yield b""
        while True:
            try:
                piece = await content.readany()
            except Exception:
                self.broke_off = True
                raise
            if not piece:
                return
            self._take.request.add(piece)
            yield piece


class Proxying:
    """The handler of all requests."""

    def __init__(
        self,
        routes: Routes,
        session: aiohttp.ClientSession,
        recorder: Recorder,
        *,
        proxies: Mapping[str, Proxy],
        own_names: Collection[str],
        overhead: Callable[[float], None],
        own_pages: Mapping[str, Page],
    ) -> None:
        """`proxies` by base URL; `own_names`: what a whole URL may call this gateway; `overhead` gets milliseconds."""
        self._routes, self._session, self._recorder = routes, session, recorder
        self._proxies, self._own_names, self._overhead, self._own_pages = proxies, own_names, overhead, own_pages
        self._under_way: set[asyncio.Task[object]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False

    async def handle(self, request: Request) -> web.StreamResponse:
        page = self._own_pages.get(request.raw_path.partition("?")[0])
        if page is not None:
            return web.Response(body=orjson.dumps(page()), content_type="application/json")
        if self._stopping:
            return refusal.stopping()
        task = asyncio.current_task()
        assert task is not None
        self._under_way.add(task)
        self._idle.clear()
        try:
            return await self._answer(request)
        finally:
            self._under_way.discard(task)
            if not self._under_way:
                self._idle.set()

    def reroute(self, routes: Routes, proxies: Mapping[str, Proxy]) -> None:
        self._routes, self._proxies = routes, proxies

    async def drain(self, grace: float) -> None:
        """Takes nothing new, lets what is under way end within the limit, then breaks it off."""
        self._stopping = True
        try:
            await asyncio.wait_for(self._idle.wait(), grace)
        except TimeoutError:
            for task in self._under_way:
                task.cancel()
            await self._idle.wait()

    async def _answer(self, request: Request) -> web.StreamResponse:
        began = time.perf_counter()
        target = self._origin_form(request.raw_path)
        if target is None or request.method == "CONNECT":
            return refusal.not_a_proxy()
        found = self._routes.find(target)
        if found is None:
            return refusal.no_route(target)
        sent = headers.as_written(request.raw_headers)
        take = self._recorder.begin(found.route, request.method, found.path, sent)
        try:
            if "websocket" in request.headers.get("Upgrade", "").lower():
                take.end("websocket_refused")
                return refusal.no_websocket()
            return await self._relay(request, found, take, headers.for_upstream(sent), began)
        except asyncio.CancelledError:
            take.end("gateway_stopped" if self._stopping else "client_abort")
            raise
        finally:
            take.end("gateway_failed")

    async def _relay(
        self, request: Request, found: Destination, take: Take, sent: CIMultiDict[str], began: float
    ) -> web.StreamResponse:
        upload = _Upload(request, take) if request.body_exists else None
        proxy = self._proxies.get(found.route.base_url)
        asked = time.perf_counter()
        try:
            upstream = await self._session.request(
                request.method,
                URL(found.url, encoded=True),
                headers=sent,
                data=upload.pieces() if upload else None,
                allow_redirects=False,
                proxy=proxy.url if proxy else None,
                proxy_headers=proxy.headers if proxy else None,
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if upload is not None and upload.broke_off:
                take.end("client_abort")
                return refusal.broken_body()
            take.end("upstream_down")
            return refusal.upstream_down(found.route, error)
        answered = time.perf_counter()
        try:
            brought = headers.as_written(upstream.raw_headers)
            take.answered(upstream.status, brought)
            response = Relayed(upstream, brought)
            if not request.content.is_eof():
                # It answered before it had heard everything: what is still to come has nowhere to go.
                response.force_close()
            with contextlib.suppress(ConnectionError):
                await response.prepare(request)
            self._overhead((asked - began + time.perf_counter() - answered) * 1000)
            take.end(await _pass_back(request, upstream, response, take))
        finally:
            # One that is at its end is back in the pool by now; any other is closed.
            upstream.close()
        return response

    def _origin_form(self, target: str) -> str | None:
        """The path with its query, of a target that may also be a whole URL of this gateway."""
        if target.startswith("/"):
            return target
        scheme, _, rest = target.partition("://")
        name, slash, path = rest.partition("/")
        return slash + path or "/" if scheme.lower() == "http" and name.lower() in self._own_names else None


async def _pass_back(request: Request, upstream: aiohttp.ClientResponse, response: Relayed, take: Take) -> str | None:
    """How it ended before its time, if it did."""
    content = upstream.content
    while True:
        try:
            piece = await content.readany()
        except (aiohttp.ClientError, OSError):
            if request.transport is not None:
                request.transport.close()
            return "upstream_cut"
        if piece:
            take.came(piece)
        is_last = content.at_eof()
        try:
            await (response.write_eof(piece) if is_last else response.write(piece))
        except ConnectionError:
            return "client_abort"
        if is_last:
            return None
