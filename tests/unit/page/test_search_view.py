"""The search: it finds what `hyp search` finds, explains what it cannot find, and hostile texts have no effect."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from hypaware.cli import entry
from hypaware.errors import Cancelled
from hypaware.home import Home
from hypaware.index.refresh import refresh_index
from hypaware.page.address import message_anchor
from hypaware.page.app import make_app
from hypaware.page.context import PageContext
from hypaware.page.search import PAGE_HITS
from tests.support.index_home import SONNET, make_home, prompt, response
from tests.support.page_html import Element, check_policy, parse_html
from tests.support.processes import PATIENCE
from tests.support.served_page import ServedPage, serve_app

FIRST, SECOND = "0dc91b82-3238", "7f7951bf-398c"
SearchCommand = Callable[..., dict[str, Any]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setattr("hypaware.page.search._TIME_FOR_ANSWER", 60.0)
    # A view waits for rows that were just recorded, however busy the machine is.
    monkeypatch.setattr("hypaware.page.index_updater._WAIT_SECONDS", PATIENCE)
    monkeypatch.setenv("HYP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TZ", "Europe/Berlin")
    return Home(tmp_path / "home")


@pytest.fixture
def page(home: Home) -> Iterator[ServedPage]:
    with serve_app(lambda: make_app(PageContext(home))) as served:
        yield served


@pytest.fixture
def search(capfd: pytest.CaptureFixture[str]) -> SearchCommand:
    """Return what `hyp search --json` finds."""

    def run(words: str, *options: str) -> dict[str, Any]:
        capfd.readouterr()
        assert entry.run(("search", "--json", "--limit", str(PAGE_HITS), *options, "--", words)) == 0
        found: dict[str, Any] = json.loads(capfd.readouterr().out)
        return found

    return run


def make_sample(home: Home) -> None:
    call: dict[str, Any] = {"part_type": "tool_call", "tool_name": "Bash", "tool_args": {"command": "make deploy"}}
    failed: dict[str, Any] = {"part_type": "tool_result", "is_error": True, "tool_name": "Bash", "role": "tool"}
    second: dict[str, Any] = {"session_id": SECOND, "client_name": "codex", "cwd": "/home/dev/shop"}
    make_home(
        home.root,
        prompt(1, "Why does the deploy fail?", at="2026-11-14T08:00:00Z", session_id=FIRST),
        response(2, at="2026-11-14T08:01:00Z", session_id=FIRST, model=SONNET, **call, content_text=None),
        response(3, at="2026-11-14T08:02:00Z", session_id=FIRST, **failed, content_text="deploy: connection refused"),
        response(4, at="2026-11-14T08:03:00Z", session_id=FIRST, content_text="The deploy was refused, deploy again"),
        prompt(5, "Deploy the shop", at="2025-11-15T08:00:00Z", **second),
        response(6, at="2025-11-15T08:01:00Z", **second, content_text="Deployed. Nothing was refused."),
    )


def get(page: ServedPage, path: str = "/search", **query: str) -> Element:
    answer = page.ask(f"{path}?{urlencode(query)}")
    assert answer.status == 200, answer.text
    document = parse_html(answer.text)
    check_policy(document)
    return document


def hits_of(document: Element) -> list[Element]:
    return [item.find("a") for item in document.find_all("li") if "data-key-item" in item.attributes]


def summary_of(document: Element) -> str:
    return document.find("p", "summary").text


def snippet_of(hit: Element) -> str:
    """Return the snippet with its marks as the command prints them."""
    text = hit.find("span", "snippet")
    marks = [id(text_of_mark) for mark in text.find_all("mark") for text_of_mark in mark.texts]
    return "".join(f"⟦{piece}⟧" if id(piece) in marks else piece for piece in text.texts)


@pytest.mark.parametrize(
    "query",
    [
        {"q": "deploy"},
        {"q": '"connection refused"'},
        {"q": "deplo*"},
        {"q": "deploy", "role": "user"},
        {"q": "deploy", "tool": "Bash"},
        {"q": "deploy", "type": "tool_call"},
        {"q": "refused", "type": "tool_result", "tool": "Bash"},
        {"q": "deploy", "client": "codex"},
        {"q": "deploy", "project": "web"},
        {"q": "deploy", "model": "claude-sonnet"},
        {"q": "refused", "since": "2026-01-01"},
        {"q": "refused", "until": "2026-01-01"},
        {"q": "refused !!!"},
    ],
)
def test_hits_are_those_of_the_command(
    home: Home, page: ServedPage, search: SearchCommand, query: dict[str, str]
) -> None:
    make_sample(home)
    filters = {name: value for name, value in query.items() if name != "q"}
    expected = search(query["q"], *(text for name, value in filters.items() for text in (f"--{name}", value)))

    for path in ("/search", "/lists/search"):
        document = get(page, path, **query)

        by_session: dict[str, list[dict[str, Any]]] = {}
        for hit in expected["hits"]:
            by_session.setdefault(hit["session_id"], []).append(hit)
        listed = [hit for members in by_session.values() for hit in members]
        assert [hit.attributes["href"] for hit in hits_of(document)] == [
            f"/sessions/{hit['session_id']}#{message_anchor(hit['part_id'].rpartition('#')[0])}" for hit in listed
        ]
        assert [snippet_of(hit) for hit in hits_of(document)] == [hit["snippet"] for hit in listed]
        assert [hit.find("time").attributes["datetime"] for hit in hits_of(document)] == [hit["at"] for hit in listed]
        noun = "match" if expected["total"] == 1 else "matches"
        count = f"{len(by_session)} session{'' if len(by_session) == 1 else 's'}"
        assert summary_of(document).startswith(f"{expected['total']} {noun} in {count}, best first")


def test_hits_of_one_session_are_together_and_many_are_folded(home: Home, page: ServedPage) -> None:
    make_sample(home)

    document = get(page, q="deploy")

    first, second = document.find_all("section", "group")
    assert [len(group.find_all("li")) for group in (first, second)] == [4, 1]
    assert len(first.find("details").find_all("li")) == 1
    assert first.find("h2").text == "Why does the deploy fail? web · claude"
    assert second.find("h2").find("a").attributes["href"] == f"/sessions/{SECOND}"


def test_only_errors_are_found_and_their_sessions_counted(home: Home, page: ServedPage) -> None:
    make_sample(home)

    document = get(page, q="refused", errors="1")

    assert summary_of(document) == "1 match in 1 session, best first"
    assert [snippet_of(hit) for hit in hits_of(document)] == ["deploy: connection ⟦refused⟧"]


def test_the_beginning_of_a_word_is_enough_if_no_word_is_like_it(home: Home, page: ServedPage) -> None:
    make_sample(home)

    document = get(page, q="the connec")

    assert not hits_of(document)
    document = get(page, q="deploy: connec")
    assert summary_of(document) == "1 match in 1 session, best first · words that begin with connec"
    assert [snippet_of(hit) for hit in hits_of(document)] == ["⟦deploy⟧: ⟦connection⟧ refused"]


def test_more_matches_follow_on_further_pages(home: Home, page: ServedPage, search: SearchCommand) -> None:
    count = 2 * PAGE_HITS + 3
    make_home(
        home.root,
        *(
            response(n, at=f"2026-11-14T08:{n % 60:02}:00Z", session_id=f"s{n}", content_text="fox")
            for n in range(count)
        ),
    )
    expected = [hit["session_id"] for hit in search("fox", "--limit", "0")["hits"]]

    found: list[str] = []
    path = "/search?q=fox"
    while path:
        document = get(page, path.partition("?")[0], **{k: v[0] for k, v in parse_qs(urlsplit(path).query).items()})
        found += [urlsplit(hit.attributes["href"]).path.removeprefix("/sessions/") for hit in hits_of(document)]
        path = next((a.attributes["href"] for a in document.find_all("a") if a.attributes.get("rel") == "next"), "")

    assert found == expected
    assert len(set(found)) == count


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ('deploy "open', 'the quote at character 8 is not closed: deploy ▸ "open'),
        ("*", "the * at character 1 is not at the end of a word"),
        ("!!!", "has no letter and no digit"),
        ("x " * 3000, "longer than 4,096 characters"),
    ],
)
def test_words_that_cannot_be_read_are_explained_and_kept(
    home: Home, page: ServedPage, words: str, problem: str
) -> None:
    make_sample(home)

    document = get(page, q=words)

    assert problem in summary_of(document)
    field = next(field for field in document.find_all("input") if field.attributes.get("id") == "find")
    assert field.attributes["value"] == words


def relaxations(document: Element) -> dict[str, str]:
    return {item.find("a").text: item.find("span").text for item in document.find("ul", "relaxations").find_all("li")}


def test_no_match_says_which_filter_excludes_everything(home: Home, page: ServedPage) -> None:
    make_sample(home)

    assert relaxations(get(page, q='"deploy"', client="codex", role="assistant")) == {
        "Without the filter role": "1 match",
        "Without the filter client": "2 matches",
    }
    assert relaxations(get(page, q="deploy", days="1", errors="1")) == {"Without the filter dates": "1 match"}
    assert relaxations(get(page, q="again", client="codex", role="user")) == {"Without all filters": "1 match"}
    unknown = get(page, q="deploy", tool="Bsh")
    assert summary_of(unknown) == "no recorded part has the tool Bsh. Did you mean Bash?"
    assert "no recorded session has the client cladue" in summary_of(get(page, q="deploy", client="cladue"))
    assert summary_of(get(page, q="zebra")) == "Nothing matches."


def test_links_keep_words_and_filters(home: Home, page: ServedPage) -> None:
    make_sample(home)

    document = get(page, q="deploy", role="user", client="codex")

    chips = {
        a.text: parse_qs(urlsplit(a.attributes["href"]).query) for a in document.find("div", "facets").find_all("a")
    }
    assert chips["user"] == {"q": ["deploy"], "client": ["codex"]}
    assert chips["Bash"] == {"q": ["deploy"], "client": ["codex"], "role": ["user"], "tool": ["Bash"]}
    assert chips["Only errors"] == {"q": ["deploy"], "client": ["codex"], "role": ["user"], "errors": ["1"]}


@pytest.mark.parametrize("query", ["q=x&offset=-1", "q=x&offset=9999999", "q=x&since=never", "q=x&timezone=Nowhere"])
def test_an_address_that_cannot_be_read_says_why(home: Home, page: ServedPage, query: str) -> None:
    make_sample(home)

    assert page.ask(f"/search?{query}").status == 400


HOSTILE = [
    "fox <script>alert(1)</script><img src=x onerror=alert(1)>",
    "\"'><a href=javascript:alert(1) onclick=alert(1)>fox</a>",
    "{{ 7 * 7 }} fox {% raw %}",
    "\u202egnp.exe\u2066\u200f fox",
    "\x1b]0;evil\x07\x1b[31mred fox\r\nx",
    "fox " + "x" * 1_000_000,
    "</a></li></ol></main> fox",
    "⟦fox⟧ <mark>fox</mark>",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_texts_have_no_effect(home: Home, page: ServedPage, text: str) -> None:
    names: dict[str, Any] = {"session_id": text[:300], "git_branch": text, "cwd": f"/home/{text}", "client_name": text}
    tool: dict[str, Any] = {"part_type": "tool_result", "tool_name": text, "role": "tool"}
    make_home(
        home.root,
        prompt(1, text, at="2026-11-14T08:00:00Z", **names),
        response(2, at="2026-11-14T08:01:00Z", model=text, content_text=text, **tool, **names),
    )

    refresh_index(home)

    answer = page.ask("/search?q=fox")

    document = parse_html(answer.text)
    check_policy(document)
    assert len(hits_of(document)) == 2
    assert len(answer.body) < 60_000
    (group,) = document.find_all("section", "group")
    assert not [each for name in ("script", "img", "form") for each in group.find_all(name)]
    for character in "\x1b\x07\u202e\u2066\u200f":
        assert character not in document.find("main").text
    assert all("".join(mark.texts) == "fox" for mark in group.find_all("mark"))


def test_a_search_ends_without_noise_when_its_browser_has_gone(
    home: Home, page: ServedPage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_sample(home)
    began, ended = threading.Event(), threading.Event()

    def hold(*_args: object, is_wanted: Callable[[], bool], **_options: object) -> dict[str, Any]:
        began.set()
        while is_wanted():
            assert not ended.wait(0.01)
        ended.set()
        raise Cancelled

    monkeypatch.setattr("hypaware.page.search.run_search", hold)
    with socket.create_connection(("127.0.0.1", page.port)) as connection:
        connection.sendall(f"GET /lists/search?q=deploy HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\n\r\n".encode())
        assert began.wait(PATIENCE)

    assert ended.wait(PATIENCE)
    monkeypatch.undo()
    assert page.ask("/search").status == 200
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
