"""Nobody sees on a server's page what its policy withholds: not in any view, count, search, link, file or event."""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from urllib.parse import unquote

import pytest
from aiohttp import web

from hypaware.home import Home
from hypaware.privacy import ignored_sessions
from tests.support.command import Hyp
from tests.support.processes import PATIENCE, eventually
from tests.support.served_page import ServedPage
from tests.support.team_page import (
    ALICE,
    PRIVATE,
    SECRETS,
    SEEN,
    WITHHELD,
    TeamPage,
    make_team_home,
    served_team_page,
)

ALL_TIME = "days=all"
QUERIES = (
    "",
    f"{ALL_TIME}&q=shop",
    f"{ALL_TIME}&q=marzipan&grep=marzipan",
    f"{ALL_TIME}&project={PRIVATE}",
    f"{ALL_TIME}&project=unknown&model=unknown",
    f"{ALL_TIME}&machine={ALICE}&q=secret",
    f"{ALL_TIME}&person=alice&by=project&unit=tokens&sort=cost&errors=0",
    f"{ALL_TIME}&q=shop&tool=unknown&role=user",
    f"numbers=1,2,3,4&session={WITHHELD}&session={SEEN}",
    f"a={WITHHELD}&b={SEEN}",
    f"a={SEEN}&b={WITHHELD}",
)
SESSION_QUERIES = (
    "",
    "part=message-4%230&message=message-4&q=marzipan&which=text",
    "part=message-4%230&message=message-4&format=text",
    "format=markdown&full=1",
    "format=json&q=marzipan",
)
EVENT_QUERIES = ("since=2020-01-01T00:00:00Z",)


def _withhold_folder(label: str) -> Callable[[Home], None]:
    return lambda home: Hyp(home.root).ok("config", "set", f'privacy.folders."{PRIVATE}"', label)


RULES: dict[str, Callable[[Home], object]] = {
    "local-only folder": _withhold_folder("local-only"),
    "ignored folder": _withhold_folder("ignore"),
    "ignored session": lambda home: ignored_sessions.ignore_session(home, WITHHELD),
}


def test_what_is_not_withheld_is_shown(home: Home) -> None:
    """Otherwise the other tests would prove nothing."""
    with served_team_page(make_team_home(home)) as page:
        browser = page.signed_in()
        answers = [answer for _, answer in _walk(page, browser)]
        for secret in SECRETS:
            assert any(secret in answer for answer in answers), secret
        assert "withheld-session" in _ask(browser, f"/sessions?{ALL_TIME}")


@pytest.mark.parametrize("rule", RULES)
def test_a_withheld_session_is_nowhere_on_the_page(home: Home, rule: str) -> None:
    RULES[rule](make_team_home(home))
    with served_team_page(home) as page:
        browser = page.signed_in()
        walked = 0
        for path, answer in _walk(page, browser):
            walked += 1
            asked = unquote(path)
            leaked = [secret for secret in SECRETS if secret in answer and secret not in asked]
            assert not leaked, f"{path} shows {leaked}"
        assert walked > 50
        # Its direct links are those of a session that does not exist.
        for path in ("", "/download", "/find?q=marzipan"):
            assert _status(browser, f"/sessions/{WITHHELD}{path}") == 404
        for beginning in ("withheld", "withheld-s", "w"):
            assert _status(browser, f"/sessions/{beginning}") == 404
        # Counts are those of the other sessions.
        machines = _ask(browser, f"/machines?{ALL_TIME}&machine={ALICE}")
        assert re.search(r"<dt>Sessions</dt><dd><a [^>]*>1</a>", machines)


def test_a_session_is_withheld_as_soon_as_the_policy_changes(home: Home) -> None:
    with served_team_page(make_team_home(home)) as page:
        browser = page.signed_in()
        assert _status(browser, f"/sessions/{WITHHELD}") == 200
        ignored_sessions.ignore_session(home, WITHHELD)
        eventually(lambda: _status(browser, f"/sessions/{WITHHELD}") == 404)
        assert "marzipan" not in _ask(browser, f"/sessions?{ALL_TIME}")
        ignored_sessions.unignore_session(home, WITHHELD)
        eventually(lambda: _status(browser, f"/sessions/{WITHHELD}") == 200)


def test_nothing_is_shown_while_the_policy_cannot_be_read(home: Home) -> None:
    make_team_home(home)
    ignored_sessions.ignored_sessions_path(home).write_text("{", encoding="utf-8")
    with served_team_page(home) as page:
        browser = page.signed_in()
        for path, answer in _walk(page, browser, may_fail=True):
            assert "shop" not in answer or "shop" in path, path


def _walk(page: TeamPage, browser: ServedPage, *, may_fail: bool = False) -> Iterator[tuple[str, str]]:
    """Yield every address of the page, for both sessions and with many queries, and its answer with its headers."""
    for resource in page.app.router.resources():
        if isinstance(resource, web.StaticResource):
            continue
        names = re.findall(r"\{(\w+)", resource.canonical)
        assert set(names) <= {"id"}, f"{resource.canonical}: say here what its parameters are"
        queries = QUERIES if not names else EVENT_QUERIES if "events" in resource.canonical else SESSION_QUERIES
        for session in (WITHHELD, SEEN, WITHHELD[:8]) if names else ("",):
            for query in queries:
                path = re.sub(r"\{\w+[^}]*\}", session, resource.canonical) + (f"?{query}" if query else "")
                yield path, _ask(browser, path, may_fail=may_fail)


def _ask(browser: ServedPage, path: str, *, may_fail: bool = False) -> str:
    """Return an answer and its headers; of an answer that goes on, what comes within a moment."""
    connection = http.client.HTTPConnection("127.0.0.1", browser.port, timeout=PATIENCE)
    cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    try:
        kind = "text/event-stream" if "/events" in path else "text/html, */*"
        connection.request("GET", path, headers={"Cookie": cookie, "Accept": kind})
        answer = connection.getresponse()
        body = b""
        if "event-stream" in (answer.headers["Content-Type"] or ""):
            assert connection.sock is not None
            connection.sock.settimeout(0.3)
            with suppress(TimeoutError):
                while piece := answer.read1():
                    body += piece
        else:
            body = answer.read()
        assert answer.status not in (401, 429, 500) or may_fail, f"{path}: {answer.status} {body.decode()}"
        return f"{answer.headers}\n{body.decode('utf-8', 'replace')}"
    finally:
        connection.close()


def _status(browser: ServedPage, path: str) -> int:
    return browser.ask(path).status
