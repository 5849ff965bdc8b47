"""Who may look at the page of a server, and what they may do: sign-in, proxies, other sites, limits."""

from __future__ import annotations

import asyncio
import http.client
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import jwt
import pytest
from aiohttp import web

from hypaware.errors import UsageError
from hypaware.home import Home
from hypaware.page.context import FOLDER
from hypaware.server import auth
from hypaware.server.page import TeamPageOptions
from hypaware.server.page_guard import PageLimits
from hypaware.state.store import StateStore
from tests.support.processes import PATIENCE, eventually
from tests.support.receiver import served
from tests.support.served_page import ServedPage
from tests.support.team_page import SEEN, TeamPage, make_team_home, served_team_page, sign_in

NAVIGATION = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
PROXY = "X-Forwarded-User"


@pytest.fixture
def team_home(home: Home) -> Home:
    return make_team_home(home)


@pytest.fixture
def page(team_home: Home) -> Iterator[TeamPage]:
    with served_team_page(team_home) as page:
        yield page


def test_a_viewer_token_signs_a_browser_in(page: TeamPage) -> None:
    token, stored = auth.create_token(page.home, "alice", use="view")
    assert token.startswith("hypv_")
    browser = page.browser
    refused = browser.ask("/sessions?q=1")
    assert refused.status == 401
    assert 'name="next" value="/sessions?q=1"' in refused.text
    answer = sign_in(browser, token, "/sessions?q=1")
    assert (answer.status, answer.headers["Location"]) == (303, "/sessions?q=1")
    cookie = answer.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= set(cookie.split("; "))
    assert token not in cookie
    shown = browser.ask("/sessions?days=all")
    assert shown.status == 200
    assert SEEN in shown.text
    assert "alice" in shown.text
    assert [each.last_used_at is not None for each in auth.list_tokens(page.home) if each.id == stored.id] == [True]


def test_a_connection_is_used_for_several_requests(page: TeamPage) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", page.browser.port, timeout=PATIENCE)
    try:
        for _ in range(2):
            for path, status in (("/static/page.css", 200), ("/", 401), ("/static/none.css", 404)):
                connection.request("GET", path)
                answer = connection.getresponse()
                body = answer.read()
                assert answer.status == status
                assert body == (FOLDER / "static" / "page.css").read_bytes() or status != 200
    finally:
        connection.close()


def test_nothing_recorded_is_shown_without_a_sign_in(page: TeamPage) -> None:
    for route in _paths(page):
        answer = page.browser.ask(route)
        assert answer.status == 401, route
        assert "shop" not in answer.text
    assert page.browser.ask("/static/page.css").status == 200


@pytest.mark.parametrize("token", ["", "hypv_unknown", "x" * 10_000, "\x00", "é"])
def test_an_unknown_token_is_refused(page: TeamPage, token: str) -> None:
    answer = sign_in(page.browser, token)
    assert answer.status == 403
    assert "Set-Cookie" not in answer.headers
    assert page.browser.ask("/").status == 401


def test_a_token_that_enrols_cannot_look_and_a_viewer_token_cannot_enrol(home: Home) -> None:
    make_team_home(home)
    enrol_token, _ = auth.create_token(home, "alice")
    view_token, _ = auth.create_token(home, "alice", use="view")
    with served(home) as server, served_team_page(home) as page:
        assert sign_in(page.browser, enrol_token).status == 403
        refused = server.client.bootstrap(bootstrap_token=view_token)
        assert (refused.status, refused.error) == (401, "unauthorized")
        gateway = server.enrolled()
        assert gateway.jwt
        # Neither is the signed token of a machine a cookie, nor a cookie a signed token.
        browser = page.signed_in()
        (name,) = browser.cookies
        assert ServedPage(browser.port, {name: gateway.jwt}).ask("/").status == 401
        assert server.client.ask("GET", "/v1/config", Authorization=f"Bearer {browser.cookies[name]}").status == 401


def test_a_revoked_token_ends_its_sign_ins(page: TeamPage) -> None:
    alice, bob = page.signed_in("alice"), page.signed_in("bob")
    auth.revoke_token(page.home, "alice")
    assert alice.ask("/machines").status == 401
    assert bob.ask("/machines").status == 200


def test_an_expired_token_ends_its_sign_ins(page: TeamPage) -> None:
    browser = page.signed_in()
    with StateStore(page.home.state).transaction() as connection:
        connection.execute("UPDATE server_tokens SET expires_at = '2026-01-01T00:00:00+00:00' WHERE use = 'view'")
    assert browser.ask("/machines").status == 401


def test_a_forged_cookie_is_refused(page: TeamPage) -> None:
    browser = page.signed_in()
    ((name, cookie),) = browser.cookies.items()
    claims = jwt.decode(cookie, options={"verify_signature": False})
    key = (page.home.root / "server" / "signing.key").read_bytes()
    forged = [
        jwt.encode(claims, key, "HS256"),
        jwt.encode(claims, "", "none"),
        jwt.encode(claims, b"0" * 32, "HS256"),
        cookie[:-2],
        "é",
    ]
    for value in forged:
        assert ServedPage(browser.port, {name: value}).ask("/").status in (400, 401), value


def test_signing_out_ends_the_sign_in_of_the_browser(page: TeamPage) -> None:
    browser = page.signed_in()
    assert browser.ask("/sign-out").status == 404
    assert browser.ask("/", headers=NAVIGATION).status == 200
    answer = browser.ask("/sign-out", "POST", {"Origin": page.url})
    assert answer.status == 303
    assert browser.ask("/").status == 401


@pytest.mark.parametrize("target", ["//evil.example", "/\\evil.example", "https://evil.example", "javascript:1", "\n/"])
def test_sign_in_leads_only_to_the_page_itself(page: TeamPage, target: str) -> None:
    token, _ = auth.create_token(page.home, use="view")
    assert sign_in(page.browser, token, target).headers["Location"] == "/"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_the_page_changes_nothing(page: TeamPage, method: str) -> None:
    browser = page.signed_in()
    for path in ("/", "/sessions", "/purge", "/privacy/session", "/privacy/folder", f"/sessions/{SEEN}"):
        assert browser.ask(path, method, {"Origin": page.url}, "a=b").status == 405


@pytest.mark.parametrize("path", ["/health", "/health/body", "/privacy", "/purge", "/open?token=x"])
def test_a_team_does_not_see_the_servers_own_machine(page: TeamPage, path: str) -> None:
    assert page.signed_in().ask(path).status == 404


def test_a_foreign_host_is_refused(team_home: Home) -> None:
    with served_team_page(team_home, names=("hyp.example.com",)) as page:
        browser = page.signed_in()
        for host in ("evil.example", f"evil.example:{browser.port}", "", "hyp.example.com.evil.example"):
            assert browser.ask("/", headers={"Host": host}).status in (400, 403), host
        for host in ("hyp.example.com", "HYP.example.com:8443", f"localhost:{browser.port}"):
            assert browser.ask("/", headers={"Host": host}).status == 200, host


def test_requests_of_other_sites_are_refused_but_links_work(page: TeamPage) -> None:
    browser = page.signed_in()
    for site in ("cross-site", "same-site"):
        foreign = {"Sec-Fetch-Site": site}
        assert browser.ask("/", headers={**foreign, "Sec-Fetch-Mode": "cors"}).status == 403
        assert browser.ask("/static/page.js", headers={**foreign, "Sec-Fetch-Dest": "script"}).status == 403
        assert browser.ask("/", headers={**foreign, **NAVIGATION}).status == 200
    token, _ = auth.create_token(page.home, use="view")
    assert sign_in(browser, token, Origin="https://evil.example").status == 403
    assert browser.ask("/sign-out", "POST").status == 403


def test_sign_ins_are_limited(team_home: Home) -> None:
    with served_team_page(team_home, PageLimits(sign_ins_per_minute=3)) as page:
        assert [sign_in(page.browser, f"guess-{number}").status for number in range(3)] == [403] * 3
        answer = sign_in(page.browser, "guess")
        assert answer.status == 429
        assert int(answer.headers["Retry-After"]) >= 1


def test_a_large_form_is_refused_before_it_is_read(page: TeamPage) -> None:
    assert page.browser.ask("/sign-in", "POST", {"Origin": page.url}, "a" * 100_000).status == 413


def test_a_proxy_names_the_person(team_home: Home, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level("INFO", logger="hypaware.server"),
        served_team_page(team_home, user_header=PROXY, proxies=("127.0.0.1",)) as page,
    ):
        for sent in ("Zoë <b>", "Zoë <b>".encode().decode("latin-1")):
            answer = page.browser.ask("/sessions?q=marzipan", headers={PROXY: sent})
            assert answer.status == 200
            assert "Zoë &lt;b&gt;" in answer.text
        # Without a name, people can still sign in with a token.
        assert page.browser.ask("/machines", headers={PROXY: " "}).status == 401
        assert page.browser.ask("/machines").status == 401
        assert page.browser.ask("/", headers={PROXY: "a\x07b"}).status == 400
        token, _ = auth.create_token(team_home, "carol", use="view")
        # Browsers reach the proxy over HTTPS.
        assert "Secure" in sign_in(page.browser, token).headers["Set-Cookie"]
        assert page.browser.ask("/machines").status == 200
    logged = "\n".join(record.getMessage() for record in caplog.records)
    assert "Zoë <b> GET /sessions 200" in logged
    assert "marzipan" not in logged


def test_a_proxys_header_from_another_address_is_refused(team_home: Home) -> None:
    with served_team_page(team_home, user_header=PROXY, proxies=("10.0.0.0/8", "::1")) as page:
        for name in ("alice", "", "x-forwarded-user"):
            forged = page.browser.ask("/machines", headers={PROXY: name or "mallory"})
            assert forged.status == 403
            assert "shop" not in forged.text
        # Not even a person who is signed in can take another name.
        assert page.signed_in().ask("/", headers={PROXY: "mallory"}).status == 403


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({"host": "0.0.0.0"}, "--tls-cert"),
        ({"host": "192.0.2.1"}, "--page-proxy"),
        ({"host": "0.0.0.0", "proxies": ("10.0.0.5",)}, "--page-host"),
        ({"host": "127.0.0.1", "user_header": PROXY}, "--page-proxy"),
        ({"host": "127.0.0.1", "user_header": "Cookie", "proxies": ("10.0.0.5",)}, "X-Forwarded-User"),
        ({"host": "127.0.0.1", "user_header": "a b", "proxies": ("10.0.0.5",)}, "X-Forwarded-User"),
        ({"host": "127.0.0.1", "proxies": ("0.0.0.0/0",)}, "not every address"),
        ({"host": "127.0.0.1", "proxies": ("proxy.example",)}, "10.0.0.0/24"),
        ({"host": "127.0.0.1", "names": ("https://hyp.example.com",)}, "without scheme"),
    ],
)
def test_options_that_would_not_be_safe_are_refused(options: dict[str, object], missing: str) -> None:
    with pytest.raises(UsageError, match=missing):
        TeamPageOptions(**{"port": 0, **options}).to_rules()  # type: ignore[arg-type]


def test_without_tls_only_the_proxy_may_connect_from_elsewhere() -> None:
    options = TeamPageOptions("0.0.0.0", 0, ("hyp.example.com",), None, ("10.0.0.5",))
    assert options.to_rules().only_proxy
    assert not TeamPageOptions("127.0.0.1", 0, proxies=("10.0.0.5",)).to_rules().only_proxy


class Held:
    """A view that answers when it is told to."""

    def __init__(self) -> None:
        self.running = 0
        self.is_open = False
        self.transport: asyncio.Transport | None = None

    def routes(self) -> tuple[web.RouteDef, ...]:
        return (
            web.get("/held", self.answer),
            web.get("/events", self.stream),
            web.get("/large", self.large),
            web.get("/endless", self.stream),
        )

    async def answer(self, _request: web.Request) -> web.Response:
        self.running += 1
        while not self.is_open:
            await asyncio.sleep(0.01)
        self.running -= 1
        return web.Response(text="done")

    async def stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.running += 1
        self.transport = request.transport
        try:
            while True:
                await response.write(b"data: more\n\n")
                await asyncio.sleep(0.01)
        finally:
            self.running -= 1

    async def large(self, request: web.Request) -> web.Response:
        self.transport = request.transport
        return web.Response(body=b"x" * (64 << 20))


def test_more_viewers_than_the_page_can_serve_wait_and_then_get_503(team_home: Home) -> None:
    held = Held()
    limits = PageLimits(at_once=2, share=2, waiting=2, wait_seconds=60)
    with (
        served_team_page(team_home, limits, extra=held.routes()) as page,
        ThreadPoolExecutor(8) as pool,
    ):
        browser = page.signed_in()
        asked = [pool.submit(browser.ask, "/held") for _ in range(4)]
        eventually(lambda: held.running == 2)
        answer = browser.ask("/held")
        assert answer.status == 503
        assert int(answer.headers["Retry-After"]) >= 1
        held.is_open = True
        assert [each.result(60).status for each in asked] == [200] * 4


def test_a_request_that_waits_too_long_gets_503(team_home: Home) -> None:
    held = Held()
    limits = PageLimits(at_once=1, wait_seconds=0.05)
    with served_team_page(team_home, limits, extra=held.routes()) as page, ThreadPoolExecutor(2) as pool:
        browser = page.signed_in()
        first = pool.submit(browser.ask, "/held")
        eventually(lambda: held.running == 1)
        assert browser.ask("/held").status == 503
        held.is_open = True
        assert first.result(60).status == 200


def test_one_person_cannot_take_all_places(team_home: Home) -> None:
    held = Held()
    with (
        served_team_page(team_home, PageLimits(at_once=2, share=1), extra=held.routes()) as page,
        ThreadPoolExecutor(4) as pool,
    ):
        alice, bob = page.signed_in("alice"), page.signed_in("bob")
        asked = [pool.submit(alice.ask, "/held") for _ in range(3)]
        eventually(lambda: held.running == 1)
        assert bob.ask("/machines").status == 200
        held.is_open = True
        assert [each.result(60).status for each in asked] == [200] * 3


def test_one_person_may_have_some_concurrent_requests(team_home: Home) -> None:
    held = Held()
    with (
        served_team_page(team_home, PageLimits(of_one_viewer=1), extra=held.routes()) as page,
        ThreadPoolExecutor(1) as pool,
    ):
        alice, bob = page.signed_in("alice"), page.signed_in("bob")
        asked = pool.submit(alice.ask, "/held")
        eventually(lambda: held.running == 1)
        answer = alice.ask("/machines")
        assert answer.status == 429
        assert int(answer.headers["Retry-After"]) >= 1
        assert bob.ask("/machines").status == 200
        held.is_open = True
        assert asked.result(60).status == 200


def test_a_revoked_token_ends_what_follows_a_session(team_home: Home) -> None:
    held = Held()
    with served_team_page(team_home, PageLimits(check_seconds=0.05), extra=held.routes()) as page:
        browser = page.signed_in("alice")
        (cookie,) = (f"{name}={value}" for name, value in browser.cookies.items())
        with socket.create_connection(("127.0.0.1", browser.port), timeout=PATIENCE) as connection:
            head = f"GET /events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nCookie: {cookie}\r\n\r\n"
            connection.sendall(head.encode())
            assert b"200 OK" in connection.recv(10_000)
            auth.revoke_token(page.home, "alice")
            with suppress(ConnectionError):
                while connection.recv(10_000):
                    pass
        eventually(lambda: held.running == 0)


@pytest.mark.parametrize("path", ["/large", "/endless"])
def test_a_response_that_the_client_does_not_read_is_given_up(team_home: Home, path: str) -> None:
    held = Held()
    limits = PageLimits(send_seconds=0.2, answer_seconds=0.2, check_seconds=0.05)
    with served_team_page(team_home, limits, extra=held.routes()) as page:
        browser = page.signed_in()
        (cookie,) = (f"{name}={value}" for name, value in browser.cookies.items())
        with socket.create_connection(("127.0.0.1", browser.port), timeout=PATIENCE) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n".encode())
            assert b"200 OK" in connection.recv(100)
            eventually(lambda: held.transport is not None and held.transport.is_closing())
        # Pages have 0.2 seconds here, which a busy machine may exceed. Signing in has no such limit.
        assert browser.ask("/sign-in").status < 400


def _paths(page: TeamPage) -> list[str]:
    paths = []
    for resource in page.app.router.resources():
        if not isinstance(resource, web.StaticResource):
            paths.append(resource.canonical.replace("{id}", SEEN))
    assert len(paths) > 5
    return paths
