"""The page's application: its views, its files, and what every answer has in common."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from hypaware.errors import HypError, UsageError
from hypaware.page import compare, health, live, machines, overview, privacy, purge, search, session, sessions
from hypaware.page.access import SignIn, SignInProblem, make_guard
from hypaware.page.context import FOLDER, PageContext

log = logging.getLogger("hypaware.page")

_VIEWS = (overview, sessions, search, health, privacy, purge, machines, session, live, compare)
_OF_THIS_MACHINE = (health, privacy, purge)
"""The views that a server does not show to a team."""
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "worker-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    # Not "no-referrer": forms would then be sent with `Origin: null`.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_STARTED = web.RequestKey("started", bool)


def make_local_app(context: PageContext) -> web.Application:
    """Return the application of `hyp open`: for browsers of this machine that have signed in."""

    def ask_to_sign_in(request: web.Request, problem: SignInProblem) -> web.Response:
        return context.render(request, "sign_in.html", {"problem": problem.value}, status=401)

    return make_app(context, make_guard(SignIn(context.home), ask_to_sign_in))


def make_app(context: PageContext, guard: Middleware | None = None) -> web.Application:
    """Return the application. The guard decides who may see it; without one, everybody who reaches it may."""
    app = web.Application(middlewares=[_answer(context), *([guard] if guard else ())])
    for view in _VIEWS:
        if not (context.access.is_team and view in _OF_THIS_MACHINE):
            app.add_routes(view.routes(context))
    app.router.add_get("/notice", _notice(context))
    app.router.add_static("/static", FOLDER / "static")
    app.on_response_prepare.append(_add_headers)
    app.on_shutdown.append(_end_answers(context))
    return app


def _end_answers(context: PageContext) -> Callable[[web.Application], Awaitable[None]]:
    async def end(_app: web.Application) -> None:
        for each in context.on_shutdown:
            each()

    return end


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    request[_STARTED] = True
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    # Files of the package may be cached, but must be revalidated: another version may be installed.
    is_file = isinstance(request.match_info.route.resource, web.StaticResource)
    response.headers.setdefault("Cache-Control", "no-cache" if is_file else "no-store")
    response.headers["Server"] = "hypaware"


def _notice(context: PageContext) -> Handler:
    """Return the view of the notice alone, which replaces itself while the index is being built."""

    async def notice(request: web.Request) -> web.StreamResponse:
        if context.notice() is None:
            return web.Response(status=204)
        return context.render(request, "notice.html")

    return notice


def _answer(context: PageContext) -> Middleware:
    """Return the middleware that turns errors into pages."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        repair: tuple[str, ...] = ()
        try:
            if request.path[1:2] in ("/", "\\"):
                raise web.HTTPNotFound  # a link to it would lead to another host
            return await handler(request)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            status, message = error.status, error.reason
        except UsageError as error:
            status, message, repair = 400, error.message, error.repair
        except HypError as error:
            status, message, repair = 503, error.message, error.repair
        except ConnectionError:
            raise  # the browser is gone
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            status, message = 500, "the page failed; its log says why"
        if _STARTED in request:
            raise ConnectionAbortedError("the answer had begun")
        return context.render(
            request, "error.html", {"status": status, "message": message, "repair": repair}, status=status
        )

    return answer
