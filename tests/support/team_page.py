"""The page of a server on a loopback port, people who look at it, and a home with the rows of several machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from hypaware.home import Home
from hypaware.index.store import open_index
from hypaware.page.context import PageAccess, PageContext
from hypaware.server import auth
from hypaware.server.page import TeamPageOptions
from hypaware.server.page_guard import PageLimits
from hypaware.server.page_process import make_team_app
from hypaware.server.viewers import ViewerTokens
from hypaware.state.home_opener import open_home
from tests.support.index_home import prompt, response
from tests.support.receiver import ndjson, served
from tests.support.served_page import PageAnswer, ServedPage, serve_app

ALICE, BOB = "gw-alice-laptop", "gw-bob-desktop"
SEEN, WITHHELD = "seen-session", "withheld-session"
PRIVATE = "/home/alice/quicksilver"
SECRETS = (WITHHELD, "quicksilver", "marzipan", "hush-branch", "hushtool", "hush-model")
"""What only the withheld session contains: its id, its folder, its words, branch, tool and model."""
AT = "2026-11-15T08:0{}:00Z"


def make_team_home(home: Home) -> Home:
    """Fill a home with sessions of two machines, one of them in a folder that can be withheld."""
    hidden: dict[str, Any] = {"session_id": WITHHELD, "gateway_id": ALICE, "cwd": PRIVATE, "git_branch": "hush-branch"}
    seen: dict[str, Any] = {"session_id": SEEN, "gateway_id": ALICE, "cwd": "/home/alice/shop"}
    other: dict[str, Any] = {"session_id": "bob-session", "gateway_id": BOB, "cwd": "/home/bob/shop"}
    used = {"input_tokens": 100, "output_tokens": 50}
    answer: dict[str, Any] = {"content_text": "The marzipan is secret", "model": "hush-model", **hidden}
    call: dict[str, Any] = {"part_type": "tool_call", "tool_name": "hushtool", "tool_call_id": "c1", **hidden}
    sent = {
        ALICE: [
            prompt(1, "How is the shop?", at=AT.format(1), **seen),
            response(2, at=AT.format(2), usage=used, content_text="The shop is fine", **seen),
            prompt(3, "Where is the marzipan?", at=AT.format(3), **hidden),
            response(4, at=AT.format(4), usage=used, **answer),
            response(5, at=AT.format(5), **call),
        ],
        BOB: [
            prompt(6, "Open the shop", at=AT.format(6), **other),
            response(7, at=AT.format(7), usage=used, content_text="The shop is open", **other),
        ],
    }
    with served(home) as server:
        for (machine, rows), label in zip(sent.items(), ("alice", "bob"), strict=True):
            token, _ = auth.create_token(home, label)
            gateway = server.enrolled(machine, token)
            assert gateway.send("batch-1", ndjson(rows), **gateway.says()).status == 202
    # So that the first answer is complete: the page does not wait for its index.
    open_index(home).close()
    return home


@dataclass(frozen=True)
class TeamPage:
    home: Home
    browser: ServedPage
    """A browser that has not signed in."""
    app: web.Application

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.browser.port}"

    def signed_in(self, label: str = "alice") -> ServedPage:
        """Return the browser of a person who has signed in."""
        token, _ = auth.create_token(self.home, label, use="view")
        browser = ServedPage(self.browser.port)
        assert sign_in(browser, token).status == 303
        return browser


def sign_in(browser: ServedPage, token: str, target: str = "/", **headers: str) -> PageAnswer:
    """Send the form of the sign-in page."""
    sent = {
        "Origin": f"http://127.0.0.1:{browser.port}",
        "Content-Type": "application/x-www-form-urlencoded",
        **headers,
    }
    return browser.ask("/sign-in", "POST", sent, urlencode({"token": token, "next": target}))


@contextmanager
def served_team_page(
    home: Home,
    limits: PageLimits | None = None,
    *,
    extra: Sequence[web.RouteDef] = (),
    names: tuple[str, ...] = (),
    user_header: str | None = None,
    proxies: tuple[str, ...] = (),
) -> Iterator[TeamPage]:
    """Serve the page from a thread; `extra` are more views. Revoked tokens are noticed at once."""
    rules = TeamPageOptions("127.0.0.1", 0, names, user_header, proxies).to_rules()
    made: list[web.Application] = []

    def make() -> web.Application:
        tokens = ViewerTokens(store, auth.signing_key(home, store), refresh_seconds=0.0)
        app, _ = make_team_app(context, tokens, rules, limits)
        app.add_routes(extra)
        made.append(app)
        return app

    access = PageAccess(is_team=True, may_change=False)
    with (
        closing(open_home(home).store) as store,
        closing(PageContext(home, access)) as context,
        serve_app(make) as browser,
    ):
        yield TeamPage(home, browser, made[0])
