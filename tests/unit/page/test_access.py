"""Signing in to the page, and the requests that it refuses."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from aiohttp import web

from hypaware.home import Home
from hypaware.page.access import LOGIN_SECONDS, TOKEN_SECONDS, SignIn, cookie_name, open_address
from hypaware.page.app import make_local_app
from hypaware.page.context import PageContext
from tests.support.index_home import make_home, prompt
from tests.support.served_page import PageAnswer, ServedPage, serve_app

SECRET = "the hidden words"
TOP = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
EVERY_ANSWER = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Server": "hypaware",
}


class Clock:
    def __init__(self) -> None:
        self.time = 1_800_000_000.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return make_home(tmp_path / "home", prompt(1, SECRET, at="2026-11-15T08:00:00Z"))


@pytest.fixture
def sign_in(home: Home) -> SignIn:
    return SignIn(home)


@pytest.fixture
def page(home: Home) -> Iterator[ServedPage]:
    with closing(PageContext(home)) as context, serve_app(lambda: _add_test_views(make_local_app(context))) as page:
        yield page


def _add_test_views(app: web.Application) -> web.Application:
    async def recorded(_request: web.Request) -> web.Response:
        return web.Response(text=SECRET)

    async def change(_request: web.Request) -> web.Response:
        return web.Response(text="changed")

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        if "fail" in request.query:
            raise ValueError("in the middle of an answer")
        return response

    async def fail(_request: web.Request) -> web.Response:
        raise ValueError("/secret/path")

    app.router.add_get("/recorded", recorded)
    app.router.add_post("/change", change)
    app.router.add_get("/stream", stream)
    app.router.add_get("/fail", fail)
    return app


def open_link(page: ServedPage, sign_in: SignIn, token: str | None = None, **headers: str) -> PageAnswer:
    path = open_address("", sign_in.make_token() if token is None else token)
    return page.ask(path, headers={name.replace("_", "-"): value for name, value in headers.items()})


@pytest.fixture
def signed_in(page: ServedPage, sign_in: SignIn) -> ServedPage:
    assert open_link(page, sign_in).status == 303
    return page


def test_the_link_of_hyp_open_signs_the_browser_in(page: ServedPage, sign_in: SignIn) -> None:
    answer = open_link(page, sign_in)
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith(f"hyp_page_{page.port}=")
    assert {"HttpOnly", "SameSite=Strict", "Path=/", f"Max-Age={int(LOGIN_SECONDS)}"} <= set(cookie.split("; "))
    assert page.ask("/recorded").status == 200


@pytest.mark.parametrize("path", ["/", "/sessions", "/recorded", "/nowhere", "/notice", "/fail"])
def test_without_a_cookie_every_view_only_says_how_to_sign_in(page: ServedPage, path: str) -> None:
    answer = page.ask(path)
    assert answer.status == 401
    assert "hyp open" in answer.text
    assert SECRET not in answer.text


def test_the_style_of_the_page_that_says_how_to_sign_in_is_public(page: ServedPage) -> None:
    answer = page.ask("/static/page.css")
    assert (answer.status, answer.headers["Cache-Control"]) == (200, "no-cache")
    for path in ("/static/../run/page", "/static/%2e%2e/app.py", "/static%2f..%2fapp.py", "/static/nothing.css"):
        answer = page.ask(path)
        assert answer.status in (401, 403, 404), path
        assert "make_app" not in answer.text


def test_a_link_works_once(page: ServedPage, sign_in: SignIn) -> None:
    token = sign_in.make_token()
    assert open_link(page, sign_in, token).status == 303
    page.cookies.clear()
    answer = open_link(page, sign_in, token)
    assert answer.status == 401
    assert "once, within ten minutes" in answer.text
    assert "Set-Cookie" not in answer.headers


def test_a_used_link_leads_a_browser_that_has_signed_in_to_the_page(page: ServedPage, sign_in: SignIn) -> None:
    token = sign_in.make_token()
    open_link(page, sign_in, token)
    answer = open_link(page, sign_in, token)
    assert (answer.status, answer.headers["Location"]) == (303, "/")


@pytest.mark.parametrize("token", ["", "x", "../logins", "\0", "%00", "a" * 10_000, "é\ud800"])
def test_other_tokens_are_refused(page: ServedPage, sign_in: SignIn, token: str) -> None:
    assert not sign_in.redeem_token(token)
    if token.isascii():
        assert open_link(page, sign_in, token[:4000]).status == 401


def test_of_many_requests_with_one_token_one_succeeds(page: ServedPage, sign_in: SignIn) -> None:
    for _ in range(5):
        token = sign_in.make_token()
        statuses: list[int] = []
        barrier = threading.Barrier(8)

        def visit(token: str = token, statuses: list[int] = statuses, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            statuses.append(open_link(ServedPage(page.port), sign_in, token).status)

        threads = [threading.Thread(target=visit) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert sorted(statuses) == [303] + 7 * [401]


def test_of_many_threads_with_one_token_one_redeems_it(home: Home) -> None:
    token = SignIn(home).make_token()
    barrier, redeemed = threading.Barrier(16), []

    def redeem() -> None:
        sign_in = SignIn(home)
        barrier.wait()
        redeemed.append(sign_in.redeem_token(token))

    threads = [threading.Thread(target=redeem) for _ in range(16)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert redeemed.count(True) == 1


def test_a_token_ends_after_ten_minutes_and_then_cannot_be_used_even_if_the_clock_is_set_back(home: Home) -> None:
    clock = Clock()
    sign_in = SignIn(home, clock)
    early, late, future = sign_in.make_token(), sign_in.make_token(), sign_in.make_token()
    clock.time += TOKEN_SECONDS - 1
    assert sign_in.redeem_token(early)
    clock.time += 2
    assert not sign_in.redeem_token(late)
    clock.time -= 2 * TOKEN_SECONDS
    assert not sign_in.redeem_token(late)
    assert not sign_in.redeem_token(future)


def test_a_login_ends_after_30_days(home: Home) -> None:
    clock = Clock()
    sign_in = SignIn(home, clock)
    cookie = sign_in.make_login()
    clock.time += LOGIN_SECONDS - 1
    assert sign_in.has_login(cookie)
    clock.time += 2
    assert not sign_in.has_login(cookie)


def test_old_tokens_and_logins_are_removed_and_nothing_else(home: Home) -> None:
    clock = Clock()
    sign_in = SignIn(home, clock)
    folder = home.run / "page"
    for _ in range(3):
        sign_in.make_token()
        sign_in.make_login()
    (folder / "tokens" / "note").touch()
    os.utime(folder / "tokens" / "note", (0, 0))
    clock.time += TOKEN_SECONDS + 1
    sign_in.make_token()
    assert len(list((folder / "tokens").iterdir())) == 2
    assert len(list((folder / "logins").iterdir())) == 3
    clock.time += LOGIN_SECONDS
    kept = sign_in.make_login()
    assert len(list((folder / "logins").iterdir())) == 1
    assert sign_in.has_login(kept)


def test_the_files_are_private_and_hold_no_secret(home: Home) -> None:
    before = os.umask(0)
    try:
        token, cookie = SignIn(home).make_token(), SignIn(home).make_login()
    finally:
        os.umask(before)
    for name in ("tokens", "logins"):
        folder = home.run / "page" / name
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (file,) = folder.iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert file.read_bytes() == b""
        assert token not in file.name
        assert cookie not in file.name
    assert stat.S_IMODE((home.run / "page").stat().st_mode) == 0o700


def test_a_changed_or_foreign_cookie_is_no_login(signed_in: ServedPage, sign_in: SignIn) -> None:
    name = cookie_name(signed_in.port)
    value = signed_in.cookies[name]
    assert signed_in.ask("/recorded").status == 200
    for changed in (value[:-1], f"{value}x", value.swapcase(), "", f'"{value}"x', sign_in.make_token()):
        signed_in.cookies[name] = changed
        assert signed_in.ask("/recorded").status == 401, changed
    # The browser sends the cookies of all ports; only the one of this port counts.
    signed_in.cookies = {cookie_name(signed_in.port + 1): value}
    assert signed_in.ask("/recorded").status == 401


def test_a_login_that_was_removed_is_none(signed_in: ServedPage, home: Home) -> None:
    for path in (home.run / "page" / "logins").iterdir():
        path.unlink()
    assert signed_in.ask("/recorded").status == 401


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:{port}", "127.0.0.1.evil.example:{port}", "127.0.0.1:1", "127.0.0.1"),
        *("localhost", "localhost.:{port}", "127.0.0.2:{port}", "0.0.0.0:{port}", "", "127.0.0.1:{port}@evil.example"),
        *("[::1]", "user@127.0.0.1:{port}", "127.0.0.1:{port}, evil.example"),
    ],
)
def test_a_foreign_host_is_refused_even_with_a_cookie(signed_in: ServedPage, sign_in: SignIn, host: str) -> None:
    headers = {"Host": host.format(port=signed_in.port)}
    answer = signed_in.ask("/recorded", headers=headers)
    assert answer.status in (400, 403)
    assert SECRET not in answer.text
    token = sign_in.make_token()
    assert signed_in.ask(open_address("", token), headers=headers).status in (400, 403)
    assert sign_in.redeem_token(token), "the token was not used up"


def test_a_request_without_a_host_is_refused(signed_in: ServedPage) -> None:
    assert signed_in.ask("/recorded", headers={"Host": None}).status in (400, 403)


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LocalHost:{port}", "[::1]:{port}"])
def test_the_names_of_this_machine_are_served(signed_in: ServedPage, host: str) -> None:
    assert signed_in.ask("/recorded", headers={"Host": host.format(port=signed_in.port)}).status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site", "unheard-of"])
def test_requests_of_other_sites_and_of_other_ports_are_refused(signed_in: ServedPage, site: str) -> None:
    for destination in ("script", "image", "empty", "iframe", "style", "worker"):
        headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": destination}
        assert signed_in.ask("/recorded", headers=headers).status == 403
    framed = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
    assert signed_in.ask("/recorded", headers=framed).status == 403
    assert signed_in.ask("/static/page.css", headers={"Sec-Fetch-Site": site}).status == 403
    # A link that a person follows: with the cookie, if the browser sends it.
    assert signed_in.ask("/recorded", headers={"Sec-Fetch-Site": site, **TOP}).status == 200


def test_a_link_from_another_site_offers_to_continue_because_the_browser_sends_no_cookie(page: ServedPage) -> None:
    answer = page.ask("/sessions?project=web&x=1", headers={"Sec-Fetch-Site": "cross-site", **TOP})
    assert answer.status == 401
    assert 'href="/sessions?project=web&amp;x=1">continue to HypAware' in answer.text


def test_no_link_leads_to_another_host(page: ServedPage) -> None:
    for path in ("//evil.example/", "//evil.example", "/\\evil.example/"):
        answer = page.ask(path, headers={"Sec-Fetch-Site": "cross-site", **TOP})
        assert answer.status in (400, 404), path
        assert 'href="//evil' not in answer.text


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1:{port}"])
def test_a_foreign_origin_is_refused(signed_in: ServedPage, origin: str) -> None:
    headers = {"Origin": origin.format(port=signed_in.port)}
    assert signed_in.ask("/recorded", headers=headers).status == 403
    assert signed_in.ask("/change", "POST", headers, body="").status == 403
    # Even with the headers of a navigation: a form of another site is one too.
    assert signed_in.ask("/change", "POST", {**headers, "Sec-Fetch-Site": "cross-site", **TOP}, body="").status == 403


def test_a_change_needs_the_origin_of_the_page_and_a_cookie(signed_in: ServedPage) -> None:
    own = {"Origin": f"http://127.0.0.1:{signed_in.port}"}
    assert signed_in.ask("/change", "POST", own, body="").text == "changed"
    assert signed_in.ask("/change", "POST", body="").status == 403
    # `localhost` is another origin than 127.0.0.1, although both are this page.
    other = {"Origin": f"http://localhost:{signed_in.port}"}
    assert signed_in.ask("/change", "POST", other, body="").status == 403
    assert signed_in.ask("/change", "POST", {**own, "Sec-Fetch-Site": "same-site"}, body="").status == 403
    assert signed_in.ask("/recorded", "OPTIONS").status == 403
    signed_in.cookies.clear()
    assert signed_in.ask("/change", "POST", own, body="").status == 401


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("HEAD", {}),
        ("GET", {"Sec-Purpose": "prefetch"}),
        ("GET", {"Sec-Purpose": "prefetch;prerender"}),
        ("GET", {"Purpose": "prefetch"}),
        ("GET", {"X-Moz": "prefetch"}),
        ("GET", {"X-Purpose": "preview"}),
        ("GET", {"Sec-Fetch-Dest": "image", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Site": "none"}),
        ("POST", {"Origin": "own"}),
    ],
)
def test_loading_the_link_ahead_of_time_does_not_use_it_up(
    page: ServedPage, sign_in: SignIn, method: str, headers: dict[str, str]
) -> None:
    token = sign_in.make_token()
    if "Origin" in headers:
        headers = {"Origin": f"http://127.0.0.1:{page.port}"}
    answer = page.ask(open_address("", token), method, headers)
    assert answer.status in (405, 503)
    assert "Set-Cookie" not in answer.headers
    assert open_link(page, sign_in, token, Sec_Fetch_Site="none", **_with_underscores(TOP)).status == 303


def _with_underscores(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("-", "_"): value for name, value in headers.items()}


def test_a_link_in_a_web_page_signs_in_without_a_redirect(page: ServedPage, sign_in: SignIn) -> None:
    """A redirect would still count as a request of the other site, and lose the cookie."""
    answer = open_link(page, sign_in, Sec_Fetch_Site="cross-site", **_with_underscores(TOP))
    assert answer.status == 200
    assert 'http-equiv="refresh" content="0; url=/"' in answer.text
    assert page.ask("/recorded", headers={"Sec-Fetch-Site": "same-origin", **TOP}).status == 200


@pytest.mark.parametrize(
    "path", ["/recorded", "/stream", "/fail", "/nowhere", "/static/page.css", "/notice", "/open?token=x"]
)
@pytest.mark.parametrize("is_signed_in", [True, False])
def test_every_answer_has_the_headers_that_protect_it(
    page: ServedPage, sign_in: SignIn, path: str, is_signed_in: bool
) -> None:
    if is_signed_in:
        open_link(page, sign_in)
    answer = page.ask(path)
    assert {name: answer.headers[name] for name in EVERY_ANSWER} == EVERY_ANSWER
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["Cache-Control"] == ("no-cache" if path.startswith("/static") else "no-store")
    refused = page.ask(path, headers={"Host": "evil.example"})
    assert refused.headers["Content-Security-Policy"] == policy


def test_an_error_says_nothing_about_its_cause(signed_in: ServedPage, caplog: pytest.LogCaptureFixture) -> None:
    answer = signed_in.ask("/fail")
    assert answer.status == 500
    assert "/secret/path" not in answer.text
    assert "/secret/path" in caplog.text


def test_an_answer_that_fails_halfway_is_cut_off(signed_in: ServedPage) -> None:
    import http.client

    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        signed_in.ask("/stream?fail=1")
