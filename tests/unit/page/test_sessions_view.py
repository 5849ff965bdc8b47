"""The list of sessions: it shows what `hyp sessions` lists, in pages, and hostile texts have no effect."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import pytest

from hypaware.cli import entry
from hypaware.home import Home
from hypaware.index.refresh import refresh_index
from hypaware.index.sessions import sum_tokens
from hypaware.page.app import make_app
from hypaware.page.context import PageContext
from hypaware.page.numbers import format_amount, format_document_cost
from hypaware.page.sessions import PAGE_ROWS
from tests.support.index_home import HAIKU, SONNET, make_home, prompt, response
from tests.support.light_home import append
from tests.support.many_sessions import make_many_sessions, session_number, session_rows
from tests.support.page_html import Element, check_policy, parse_html
from tests.support.processes import PATIENCE
from tests.support.served_page import PageAnswer, ServedPage, serve_app
from tests.support.team_page import ALICE, BOB, make_team_home

FIRST, SECOND, THIRD = "0dc91b82-3238", "7f7951bf-398c", "9a51-17"
ListCommand = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
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
def list_sessions(capfd: pytest.CaptureFixture[str]) -> ListCommand:
    """Return what `hyp sessions --json` lists."""

    def run(*options: str) -> list[dict[str, Any]]:
        capfd.readouterr()
        assert entry.run(("sessions", "--json", *options)) == 0
        found: list[dict[str, Any]] = json.loads(capfd.readouterr().out)["sessions"]
        return found

    return run


def make_sample(home: Home) -> None:
    failed: dict[str, Any] = {"part_type": "tool_result", "is_error": True, "tool_name": "Bash", "role": "tool"}
    codex: dict[str, Any] = {
        "session_id": SECOND,
        "client_name": "codex",
        "cwd": "/home/dev/shop",
        "git_branch": "main",
    }
    make_home(
        home.root,
        prompt(1, "Add a cart with a voucher", at="2026-11-14T08:00:00Z", session_id=FIRST, git_branch="cart"),
        response(2, at="2026-11-14T08:05:00Z", session_id=FIRST, usage={"output_tokens": 100_000}, model=SONNET),
        response(3, at="2026-11-14T08:06:00Z", session_id=FIRST, usage={"output_tokens": 5}, model=HAIKU),
        prompt(4, "Why?", at="2025-11-15T08:00:00Z", **codex),
        response(5, at="2025-11-15T10:05:00Z", **codex, **failed, content_text="refused"),
        response(6, at="2026-01-15T10:05:00Z", session_id=THIRD, usage={"input_tokens": 900_000}, model="new"),
    )


def get(page: ServedPage, path: str = "/sessions", **query: str) -> Element:
    answer = page.ask(f"{path}?{urlencode(query)}" if query else path)
    assert answer.status == 200, answer.text
    return parse(answer)


def parse(answer: PageAnswer) -> Element:
    document = parse_html(answer.text)
    check_policy(document)
    return document


def rows_of(document: Element) -> list[Element]:
    return [row for row in document.find_all("tr") if "data-number" in row.attributes]


def ids_of(document: Element) -> list[str]:
    return [row.attributes["data-id"] for row in rows_of(document)]


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"errors": "1"},
        {"grep": "voucher"},
        {"grep": '"a voucher"', "client": "claude"},
        {"grep": "refused", "client": "claude"},
        {"project": "web"},
        {"project": "/home/dev"},
        {"client": "codex"},
        {"client": "nobody"},
        {"model": "claude-sonnet"},
        {"machine": "other"},
        {"since": "2026-01-01"},
        {"until": "2026-01-01"},
        {"since": "2026-11-14T09:06", "timezone": "Europe/Berlin"},
        {"since": "2026-11-14T09:06", "timezone": "Asia/Tokyo"},
        {"sort": "time"},
        {"sort": "cost"},
        {"sort": "tokens"},
        {"sort": "length"},
        {"sort": "cost", "project": "web"},
    ],
)
def test_rows_are_those_of_the_command(
    home: Home, page: ServedPage, list_sessions: ListCommand, query: dict[str, str]
) -> None:
    make_sample(home)
    assert not get(page).find_all("td", "machine")
    options = [
        text for name, value in query.items() for text in ((f"--{name}",) if name == "errors" else (f"--{name}", value))
    ]
    expected = list_sessions(*options)

    document = get(page, **query)

    assert ids_of(document) == [session["session_id"] for session in expected]
    for row, session in zip(rows_of(document), expected, strict=True):
        cells = {name: cell.text for cell in row.find_all("td") for name in cell.classes}
        assert cells["title"] == (session["title"] or "(no prompt)")
        assert cells["project"] == session["project"]
        assert cells["branch"] == (session["branch"] or "")
        assert cells["client"] == session["client"]
        assert cells["turns"] == str(session["turns"])
        assert cells["tools"] == str(session["tool_calls"])
        assert cells["errors"] == str(session["errors"])
        assert cells["tokens"] == format_amount(sum_tokens(session["tokens"]))
        assert cells["cost"] == format_document_cost(session)
        assert row.find("time").attributes["datetime"] == session["ended_at"]
        assert row.find("a").attributes["href"] == f"/sessions/{session['session_id']}"


def test_models_and_times_are_short(home: Home, page: ServedPage) -> None:
    make_sample(home)

    first, *_, last = rows_of(get(page, timezone="Asia/Tokyo"))

    assert first.find("td", "model").text == "sonnet-4-5 +1"
    assert first.find("td", "lasted").text == "6m"
    assert last.find("td", "when").text == "2025-11-15 19:05"


def test_a_session_with_rows_of_the_last_minutes_is_running(home: Home, page: ServedPage) -> None:
    now = datetime.now(UTC)
    ages = {"now": timedelta(seconds=1), "before": timedelta(minutes=6)}
    make_home(
        home.root,
        *(response(at, at=(now - age).isoformat(), session_id=name) for at, (name, age) in enumerate(ages.items())),
    )

    running = {row.attributes["data-id"]: bool(row.find_all("span", "live")) for row in rows_of(get(page))}

    assert running == {"now": True, "before": False}


def test_the_machine_is_a_column_if_there_are_several(home: Home, page: ServedPage) -> None:
    make_team_home(home)

    assert [row.find("td", "machine").text for row in rows_of(get(page))] == [
        f"{machine}.local" for machine in (BOB, ALICE, ALICE)
    ]
    assert ids_of(get(page, machine=BOB)) == ["bob-session"]


def follow_pages(page: ServedPage, between: Callable[[int], None], **query: str) -> Iterator[list[str]]:
    """Yield the ids of each page, by the links that need no script."""
    path = f"/sessions?{urlencode(query)}"
    for count in range(100):
        document = get(page, path)
        yield ids_of(document)
        more = [link for link in document.find_all("a") if link.attributes.get("rel") == "next"]
        if not more:
            return
        path = more[0].attributes["href"]
        between(count)


@pytest.mark.parametrize("sort", ["time", "cost", "tokens", "length"])
def test_pages_contain_each_session_once_in_the_order_of_the_command(
    home: Home, page: ServedPage, list_sessions: ListCommand, sort: str
) -> None:
    make_many_sessions(home.root, 2 * PAGE_ROWS + 7)

    pages = list(follow_pages(page, lambda _count: None, sort=sort))

    assert [len(each) for each in pages] == [PAGE_ROWS, PAGE_ROWS, 7]
    assert [id_ for each in pages for id_ in each] == [
        session["session_id"] for session in list_sessions("--sort", sort, "--limit", "0")
    ]


def test_pages_are_stable_while_new_sessions_arrive(home: Home, page: ServedPage) -> None:
    count = 2 * PAGE_ROWS + 7
    make_many_sessions(home.root, count)

    def record(number: int) -> None:
        rows = [response(90_000 + number, at="2026-11-15T08:00:00Z", session_id=f"new-{number}")]
        # A session of the first page goes on.
        rows.append(response(91_000 + number, at="2026-11-15T08:00:00Z", session_id=session_number(number)))
        append(home, rows)

    found = [id_ for each in follow_pages(page, record) for id_ in each]

    assert found == [session_number(number) for number in range(count)]


def test_rows_are_read_by_the_numbers_of_the_order(home: Home, page: ServedPage) -> None:
    make_many_sessions(home.root, 30)
    order = json.loads(page.ask("/lists/order?sort=cost&client=claude").body)
    chosen = [order[3], 999_999, order[1]]

    rows = rows_of(get(page, "/lists/rows", numbers=",".join(map(str, chosen))))

    assert [int(row.attributes["data-number"]) for row in rows] == chosen
    expected = ids_of(get(page, sort="cost", client="claude"))
    assert [row.attributes.get("data-id") for row in rows] == [expected[3], None, expected[1]]
    assert rows[1].text == "No longer recorded"


def test_links_of_the_list_keep_its_filters_but_not_its_place(home: Home, page: ServedPage) -> None:
    make_many_sessions(home.root, PAGE_ROWS + 50)
    document = get(page, errors="1", client="claude", sort="cost", offset="5")
    first = next(link for link in document.find_all("a") if link.text == "Tokens")

    assert dict(parse_qsl(urlsplit(first.attributes["href"]).query)) == {
        "errors": "1",
        "client": "claude",
        "sort": "tokens",
    }


def test_two_sessions_are_compared_without_a_script(home: Home, page: ServedPage) -> None:
    make_sample(home)
    answer = page.ask("/lists/compare?" + urlencode([("session", FIRST), ("session", quote("a/b?c"))]))

    assert answer.status == 303
    target = urlsplit(answer.headers["Location"])
    assert (target.path, parse_qsl(target.query)) == ("/compare", [("a", FIRST), ("b", "a/b?c")])
    assert page.ask("/lists/compare?session=1").status == 400


@pytest.mark.parametrize(
    "query",
    ["sort=size", "before=1", "before=x.y", "before=1.1e5", "sort=cost&offset=-1", "since=never", "days=0"],
)
def test_an_address_that_cannot_be_read_says_why(home: Home, page: ServedPage, query: str) -> None:
    make_sample(home)

    answer = page.ask(f"/sessions?{query}")

    assert answer.status == 400
    parse(answer)


def test_words_that_cannot_be_read_are_explained_in_the_list(home: Home, page: ServedPage) -> None:
    make_sample(home)

    document = get(page, grep='"open')

    assert "the quote at character 1 is not closed" in document.text
    field = next(field for field in document.find("main").find_all("input") if field.attributes["name"] == "grep")
    assert field.attributes["value"] == '"open'


def test_a_filter_that_excludes_everything_is_named(home: Home, page: ServedPage) -> None:
    make_sample(home)

    assert "no recorded session has the client cladue. Did you mean claude?" in get(page, client="cladue").text
    assert "No session matches" in get(page, client="codex", errors="1", project="web").text


def test_an_empty_home_names_the_command_that_fills_it(home: Home, page: ServedPage) -> None:
    make_home(home.root)

    assert "hyp backfill" in get(page).text


HOSTILE = [
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "\"'><a href=javascript:alert(1) onclick=alert(1)>x</a>",
    "{{ 7 * 7 }}{% raw %}",
    "\u202egnp.exe\u2066\u200f",
    "\x1b]0;evil\x07\x1b[31mred\r\nx",
    "x" * 1_000_000,
    "</td></tr></table></main>",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_texts_have_no_effect(home: Home, page: ServedPage, text: str) -> None:
    names: dict[str, Any] = {"session_id": text[:500], "git_branch": text, "cwd": f"/home/{text}", "client_name": text}
    make_home(
        home.root,
        prompt(1, text, at="2026-11-14T08:00:00Z", **names),
        response(2, at="2026-11-14T08:01:00Z", model=text, **names),
    )

    refresh_index(home)

    answer = page.ask("/sessions")

    document = parse(answer)
    (row,) = rows_of(document)
    assert unquote(row.attributes["data-id"]) == text[:500]
    assert len(answer.body) < 40_000
    assert not {"script", "img"} & {each.name for each in row.find_all("script") + row.find_all("img")}
    for character in "\x1b\x07\u202e\u2066\u200f":
        assert character not in row.text
        assert all(character not in cell.attributes.get("title", "") for cell in row.find_all("td"))
    if text.startswith("<script>"):
        assert row.find("td", "title").text == text


def test_sessions_of_the_generator_differ() -> None:
    assert len({row["session_id"] for number in range(50) for row in session_rows(number)}) == 50
