"""Lets people in to the server's page: hosts, sign-in, what they may ask for, and how much at once.

A request passes these checks in order: `Host` is a name of the page; it does not come from another site; without TLS it
comes from this machine or the proxy; someone is signed in; it only reads. A request that takes longer, such as one that
follows a running session, ends when its person's token is revoked.

Limits: a person may have some requests at once, and all together as many as threads can answer soon. Others wait for
their turn, and get 503 with `Retry-After` if that takes too long or too many wait. A response that a client does not
read is given up.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from hypaware.page.access import is_foreign_site, is_top_navigation
from hypaware.page.context import VIEWER, PageContext
from hypaware.server.connections import ConnectionLimit
from hypaware.server.health import log
from hypaware.server.http import HttpProblem, unavailable
from hypaware.server.limits import ConcurrencyLimit, RateLimiter
from hypaware.server.viewers import SIGN_IN_SECONDS, TrustedProxy, Viewer, ViewerTokens, peer_address

SIGN_IN_PATH, SIGN_OUT_PATH = "/sign-in", "/sign-out"
_PUBLIC = "/static/"
_READS = (hdrs.METH_GET, hdrs.METH_HEAD)
_EVENTS = "/events"
_MAX_FORM = 16 << 10


@dataclass(frozen=True)
class PageLimits:
    connections: int = 256
    """Open connections; a further one replaces an idle one."""
    of_one_viewer: int = 16
    """Requests of one person, those that wait included, and requests that follow a session; further ones get 429."""
    at_once: int = 8
    """Requests that are answered without waiting."""
    share: int = 4
    """How many of them are of one person."""
    waiting: int = 64
    """Requests that wait for their turn; further ones get 503."""
    wait_seconds: float = 10.0
    answer_seconds: float = 120.0
    """The longest time to answer a request, unless it follows a session."""
    following: int = 128
    """Requests that follow a running session."""
    send_seconds: float = 60.0
    """The longest time to send a response."""
    sign_ins_per_minute: float = 60.0
    """The rate of one address, like that of enrolments."""
    check_seconds: float = 0.5
    """How often a request that takes long is checked again."""


@dataclass(frozen=True)
class PageRules:
    """Where the page is, and who may connect."""

    hosts: frozenset[str]
    """The names in `Host`, in lower case and without port."""
    is_tls: bool = False
    only_proxy: bool = False
    """Whether connections that do not come from the proxy are refused: they would be unencrypted."""
    proxy: TrustedProxy = field(default_factory=TrustedProxy)


class PageGuard:
    def __init__(self, context: PageContext, tokens: ViewerTokens, rules: PageRules, limits: PageLimits) -> None:
        self._context, self._tokens, self._rules, self._limits = context, tokens, rules, limits
        self._asking = ConcurrencyLimit(limits.of_one_viewer)
        self._following_of_viewer = ConcurrencyLimit(limits.of_one_viewer)
        self._sign_in_rate = RateLimiter(limits.sign_ins_per_minute / 60, limits.sign_ins_per_minute)
        self._turns = _Turns(limits)
        self._following = 0
        self.connections = ConnectionLimit(limits.connections)

    @property
    def deliver(self) -> Middleware:
        """The outermost middleware: it sends the response, within a time."""

        @web.middleware
        async def deliver(request: web.Request, handler: Handler) -> web.StreamResponse:
            with self.connections.answering(request.transport):
                response = await handler(request)
                if self._rules.is_tls and not response.prepared:
                    response.headers["Strict-Transport-Security"] = "max-age=31536000"
                if isinstance(response, web.FileResponse):
                    # It is sent without being in memory.
                    return response
                try:
                    async with asyncio.timeout(self._limits.send_seconds):
                        await response.prepare(request)
                        await response.write_eof()
                except TimeoutError:
                    if request.transport is not None:
                        request.transport.abort()
                except ConnectionError:
                    log.debug("a browser has gone")
                return response

        return deliver

    @property
    def guard(self) -> Middleware:
        """The middleware that lets only people who are signed in through."""

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                return await self._admit(request, handler)
            except HttpProblem as problem:
                return self._refuse(request, problem)

        return guard

    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if reason := self._find_objection(request):
            raise HttpProblem(403, "forbidden", reason=reason)
        if request.path.startswith(_PUBLIC) and request.method in _READS:
            return await handler(request)
        if request.path == SIGN_IN_PATH and request.method == hdrs.METH_POST:
            return await self._sign_in(request)
        viewer = await self._find_viewer(request)
        if viewer is None:
            return self._sign_in_page(request, 401)
        request[VIEWER] = viewer.name
        if request.path == SIGN_IN_PATH:
            return _lead_to("/")
        if request.path == SIGN_OUT_PATH and request.method == hdrs.METH_POST:
            return self._sign_out(request)
        if request.method not in _READS:
            raise HttpProblem(405, "read_only", reason="the page of a server cannot change anything")
        status: int | str = "failed"
        try:
            response = await self._answer(request, handler, viewer)
            status = response.status
            return response
        except (web.HTTPException, HttpProblem) as error:
            status = error.status
            raise
        finally:
            # The query is left out: it holds what people search for.
            log.info("page: %s %s %s %s", viewer.name, request.method, request.rel_url.raw_path[:200], status)

    async def _answer(self, request: web.Request, handler: Handler, viewer: Viewer) -> web.StreamResponse:
        if not request.path.endswith(_EVENTS):
            with self._asking.one(viewer.name):
                async with self._turns.one(viewer.name):
                    return await self._answer_while_signed_in(request, handler, viewer, self._limits.answer_seconds)
        if self._following >= self._limits.following:
            raise unavailable("busy")
        self._following += 1
        try:
            with self._following_of_viewer.one(viewer.name):
                return await self._answer_while_signed_in(request, handler, viewer)
        finally:
            self._following -= 1

    async def _answer_while_signed_in(
        self, request: web.Request, handler: Handler, viewer: Viewer, seconds: float = math.inf
    ) -> web.StreamResponse:
        """Answer a request, and end it when its person is gone or may not look any more, or after some seconds."""

        async def answer() -> web.StreamResponse:
            return await handler(request)

        end = asyncio.get_running_loop().time() + seconds
        task = asyncio.create_task(answer())
        try:
            while asyncio.get_running_loop().time() < end:
                done, _ = await asyncio.wait({task}, timeout=self._limits.check_seconds)
                if done:
                    return task.result()
                if request.transport is None or await self._find_viewer(request) != viewer:
                    break
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        if request.transport is not None:
            request.transport.abort()
        raise unavailable("ended")

    async def _find_viewer(self, request: web.Request) -> Viewer | None:
        named = self._rules.proxy.find_viewer(request)
        return named or await self._tokens.find_viewer(request.cookies.get(self._cookie(request)))

    def _find_objection(self, request: web.Request) -> str | None:
        """Return why a request is refused for every sender, or None."""
        hosts = request.headers.getall(hdrs.HOST, [])
        if len(hosts) != 1 or _name_of(f"//{hosts[0]}") not in self._rules.hosts:
            return "this is not a name of the page; the server's operator sets it with --page-host"
        if self._rules.only_proxy and not self._rules.proxy.is_peer(request):
            return "without TLS only the proxy may connect"
        origin = request.headers.get(hdrs.ORIGIN)
        if request.method not in _READS and (origin is None or _name_of(origin) not in self._rules.hosts):
            return "a form of another site was sent"
        if is_foreign_site(request) and not (request.method == hdrs.METH_GET and is_top_navigation(request)):
            return "requests of other sites are refused"
        return None

    async def _sign_in(self, request: web.Request) -> web.Response:
        self._sign_in_rate.take(str(peer_address(request)))
        if request.content_length is None or request.content_length > _MAX_FORM:
            raise HttpProblem(413, "body_too_large", reason="this is not the sign-in form")
        try:
            async with asyncio.timeout(self._limits.wait_seconds):
                fields = await request.post()
        except TimeoutError:
            raise HttpProblem(408, "body_too_slow", reason="the form did not arrive") from None
        token, target = (str(fields.get(name, "")) for name in ("token", "next"))
        cookie = await self._tokens.sign_in(token.strip())
        if cookie is None:
            log.info("page: a sign-in from %s was refused", peer_address(request))
            return self._sign_in_page(request, 403, target)
        response = _lead_to(target)
        response.set_cookie(
            self._cookie(request),
            cookie,
            max_age=SIGN_IN_SECONDS,
            path="/",
            httponly=True,
            secure=self._is_encrypted(request),
            # Links that people send each other open immediately. Nothing that a link can do changes anything.
            samesite="Lax",
        )
        return response

    def _sign_out(self, request: web.Request) -> web.Response:
        response = _lead_to("/")
        response.del_cookie(self._cookie(request), path="/", secure=self._is_encrypted(request), httponly=True)
        return response

    def _sign_in_page(self, request: web.Request, status: int, target: str | None = None) -> web.Response:
        if target is None:
            target = str(request.rel_url) if request.method == hdrs.METH_GET else "/"
        values = {"target": target if _is_path(target) else "/", "is_refused": status == 403}
        return self._context.render(request, "team_sign_in.html", values, status=status)

    def _refuse(self, request: web.Request, problem: HttpProblem) -> web.Response:
        message = str(problem.detail.get("reason") or _REASONS.get(problem.status, "the page cannot answer this"))
        values = {"status": problem.status, "message": message}
        response = self._context.render(request, "team_refused.html", values, status=problem.status)
        response.headers.update({name: value for name, value in problem.response().headers.items() if name in _KEPT})
        return response

    def _is_encrypted(self, request: web.Request) -> bool:
        return self._rules.is_tls or self._rules.proxy.is_peer(request)

    def _cookie(self, request: web.Request) -> str:
        # Browsers accept a cookie with this prefix only over TLS, for this host alone.
        return "__Host-hyp_page" if self._is_encrypted(request) else "hyp_page_team"


_KEPT = ("Retry-After",)
_REASONS = {
    429: "you have too many requests at once; wait a moment and load the page again",
    503: "too many people are looking at the page; wait a moment and load it again",
}


class _Turns:
    """Lets some requests run at once, a share of them of one person. Others wait, in order, but not for long."""

    def __init__(self, limits: PageLimits) -> None:
        self._limits = limits
        self._all = asyncio.Semaphore(limits.at_once)
        self._of_viewer: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()

    @asynccontextmanager
    async def one(self, viewer: str) -> AsyncIterator[None]:
        if self._users.total() >= self._limits.at_once + self._limits.waiting:
            raise unavailable("busy")
        self._users[viewer] += 1
        own = self._of_viewer.setdefault(viewer, asyncio.Semaphore(self._limits.share))
        try:
            async with AsyncExitStack() as stack:
                try:
                    async with asyncio.timeout(self._limits.wait_seconds):
                        await stack.enter_async_context(own)
                        await stack.enter_async_context(self._all)
                except TimeoutError:
                    raise unavailable("busy") from None
                yield
        finally:
            self._users[viewer] -= 1
            if not self._users[viewer]:
                del self._users[viewer], self._of_viewer[viewer]


def _name_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).hostname
    except ValueError:
        return None


def _lead_to(target: str) -> web.Response:
    return web.Response(status=303, headers={hdrs.LOCATION: target if _is_path(target) else "/"})


def _is_path(target: str) -> bool:
    """Return whether the address is a path of this page, and not one of another host."""
    return target.startswith("/") and target[1:2] not in ("/", "\\") and target.isascii() and target.isprintable()
