"""Who may use the page: one-time links, logins, and the checks that every request must pass.

`hyp open` writes `run/page/tokens/<sha256 of a random token>` and opens an address with that token. The page removes
the file, which only one request can do, and gives the browser a cookie, whose hash is the name of a file in
`run/page/logins/`. Both folders have mode 0700, the files 0600; their modification times say when they end. Signing in
therefore takes access to the files of the home.

Requests from other sites are refused. A browser sends the cookie to every port of this machine, so pages on other ports
count as other sites. `Host` must name this machine with the port of the page: otherwise a foreign name that resolves to
127.0.0.1 would make the page part of a foreign site (DNS rebinding).
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from urllib.parse import quote

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from hypaware.home import Home, durable_files

TOKEN_SECONDS = 600.0
LOGIN_SECONDS = 30 * 86_400.0
OPEN_PATH = "/open"
_SECRET_BYTES = 32
_NAME = re.compile(r"[0-9a-f]{64}")
# A clock that was set back must not lengthen a token's life.
_SKEW_SECONDS = 60.0
_HTTP_PORT = 80
_READS = (hdrs.METH_GET, hdrs.METH_HEAD)
Now = Callable[[], float]
SignInPage = Callable[[web.Request, "SignInProblem"], web.Response]


class SignInProblem(Enum):
    """Why a request is not signed in, for the page that says so."""

    NO_COOKIE = "no_cookie"
    FROM_ELSEWHERE = "from_elsewhere"
    """A link of another site: the browser sends no cookie with it."""
    USED_LINK = "used_link"


class SignIn:
    """The tokens and logins of a home."""

    def __init__(self, home: Home, now: Now = time.time) -> None:
        self._tokens = home.run / "page" / "tokens"
        self._logins = home.run / "page" / "logins"
        self._now = now

    def make_token(self) -> str:
        """Return a new token, which one browser can exchange for a login within ten minutes."""
        return self._make(self._tokens, TOKEN_SECONDS)

    def redeem_token(self, token: str) -> bool:
        """Use up a token. Return False if it does not exist, was used before or is too old."""
        path = self._tokens / _hash(token)
        try:
            is_valid = self._is_valid(path, TOKEN_SECONDS)
            path.unlink()  # of several requests with the same token, one succeeds here
        except OSError:
            return False
        return is_valid

    def make_login(self) -> str:
        """Return the value of a new cookie."""
        return self._make(self._logins, LOGIN_SECONDS)

    def has_login(self, cookie: str | None) -> bool:
        if not cookie:
            return False
        try:
            return self._is_valid(self._logins / _hash(cookie), LOGIN_SECONDS)
        except OSError:
            return False

    def _make(self, folder: Path, seconds: float) -> str:
        durable_files.make_dir(folder)
        self._remove_old(folder, seconds)
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        path = folder / _hash(secret)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        os.utime(path, (self._now(), self._now()))
        return secret

    def _remove_old(self, folder: Path, seconds: float) -> None:
        for path in folder.iterdir():
            with suppress(OSError):
                if _NAME.fullmatch(path.name) and not self._is_valid(path, seconds):
                    path.unlink()

    def _is_valid(self, path: Path, seconds: float) -> bool:
        return -_SKEW_SECONDS <= self._now() - path.stat().st_mtime <= seconds


def cookie_name(port: int) -> str:
    """Return the name of the cookie. Cookies of one machine are shared by all its ports, so the port is part of it."""
    return f"hyp_page_{port}"


def open_address(origin: str, token: str) -> str:
    return f"{origin}{OPEN_PATH}?token={quote(token)}"


def make_guard(sign_in: SignIn, sign_in_page: SignInPage) -> Middleware:
    """Return the middleware that lets only this machine's signed-in browsers through.

    `sign_in_page` makes the answer for others: it must say nothing about what is recorded.
    """

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        port = _port_of(request)
        if reason := _find_objection(request, port):
            return web.Response(text=f"403: {reason}\n", status=403)
        is_signed_in = sign_in.has_login(request.cookies.get(cookie_name(port)))
        if request.path == OPEN_PATH:
            return _open(request, sign_in, sign_in_page, port, is_signed_in=is_signed_in)
        if is_signed_in or _is_public(request):
            return await handler(request)
        problem = SignInProblem.FROM_ELSEWHERE if is_foreign_site(request) else SignInProblem.NO_COOKIE
        return sign_in_page(request, problem)

    return guard


def _open(
    request: web.Request, sign_in: SignIn, sign_in_page: SignInPage, port: int, *, is_signed_in: bool
) -> web.StreamResponse:
    """Exchange the token of the address for a cookie."""
    if request.method != hdrs.METH_GET:
        return web.Response(text="405: open this address in a browser\n", status=405, headers={hdrs.ALLOW: "GET"})
    if not _is_navigation(request) or _is_prefetch(request):
        # Loaded ahead of time, or to show a preview: the token stays valid for the real visit.
        return web.Response(text="503: open this address in a browser\n", status=503)
    if sign_in.redeem_token(request.query.get("token", "")):
        response = _lead_to_start(request)
        response.set_cookie(
            cookie_name(port),
            sign_in.make_login(),
            max_age=int(LOGIN_SECONDS),
            path="/",
            httponly=True,
            samesite="Strict",
        )
        return response
    if is_signed_in:
        return _lead_to_start(request)
    return sign_in_page(request, SignInProblem.USED_LINK)


def _lead_to_start(request: web.Request) -> web.Response:
    if not is_foreign_site(request):
        return web.Response(status=303, headers={hdrs.LOCATION: "/"})
    # A redirect would still count as coming from the other site, and the browser would not send the cookie.
    text = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=/">'
        '<title>HypAware</title><a href="/">Continue to HypAware</a></html>'
    )
    return web.Response(text=text, content_type="text/html")


def _find_objection(request: web.Request, port: int) -> str | None:
    """Return why a request is refused for every sender, or None."""
    host = request.headers.get(hdrs.HOST, "").lower()
    if host not in _hosts(port) or len(request.headers.getall(hdrs.HOST)) != 1:
        return f"this page is at http://127.0.0.1:{port}"
    origin = request.headers.get(hdrs.ORIGIN)
    if request.method not in _READS and origin is None:
        return "a change needs the header Origin"
    is_own_origin = origin is None or origin.lower() == f"http://{host}"
    if is_own_origin and not is_foreign_site(request):
        return None
    if request.method == hdrs.METH_GET and is_top_navigation(request):
        return None
    return "requests of other sites are refused"


def _is_public(request: web.Request) -> bool:
    """Return whether the request is for a file of the package: the sign-in page needs its style."""
    return isinstance(request.match_info.route.resource, web.StaticResource)


def _hosts(port: int) -> set[str]:
    names = ("127.0.0.1", "localhost", "[::1]")
    return {f"{name}:{port}" for name in names} | (set(names) if port == _HTTP_PORT else set())


def _port_of(request: web.Request) -> int:
    """Return the port that the page listens on. It is that of the connection, whatever the request says."""
    if request.transport is None:
        raise ConnectionResetError("the browser is gone")
    return int(request.transport.get_extra_info("sockname")[1])


def is_foreign_site(request: web.Request) -> bool:
    # Another port of this machine is "same-site".
    return request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")


def is_top_navigation(request: web.Request) -> bool:
    return (request.headers.get("Sec-Fetch-Mode"), request.headers.get("Sec-Fetch-Dest")) == ("navigate", "document")


def _is_navigation(request: web.Request) -> bool:
    """Return whether a person visits the address. Browsers that do not say what a request is for are believed."""
    return "Sec-Fetch-Dest" not in request.headers or is_top_navigation(request)


def _is_prefetch(request: web.Request) -> bool:
    purposes = (request.headers.get(name, "") for name in ("Sec-Purpose", "Purpose", "X-Purpose", "X-Moz"))
    return any(word in purpose.lower() for purpose in purposes for word in ("prefetch", "preview", "prerender"))


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
