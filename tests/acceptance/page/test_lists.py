"""The list of sessions and the search in a browser: ten thousand rows, keys, results while one types."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, Route, expect

from tests.support.browser import ServedPage, ServePage, Visit, serve_page
from tests.support.index_home import response
from tests.support.light_home import append
from tests.support.many_sessions import make_many_sessions, session_number

COUNT = 10_000
# On a machine with much to do, a search of so many sessions can end before it has counted and ranked all matches.
MATCHES = re.compile(r"^\s*(143 matches in 143 sessions|At least \d+ match)")
# The number in the title of the row at the middle of the screen, as soon as it is there.
_MIDDLE = """async () => {
  for (;;) {
    const row = document.elementFromPoint(innerWidth / 2, innerHeight / 2)?.closest("tr");
    const found = row?.querySelector(".title a")?.textContent.match(/number ([0-9]+)$/);
    if (found) return Number(found[1]);
    await new Promise(requestAnimationFrame);
  }
}"""


@pytest.fixture(scope="module")
def long_list(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPage]:
    """The page of a home with ten thousand sessions. Tests only read it."""
    with serve_page(make_many_sessions(tmp_path_factory.mktemp("long") / "home", COUNT)) as server:
        yield server


def title(number: int) -> re.Pattern[str]:
    return re.compile(rf"number {number}$")


def middle_of(page: Page) -> int:
    return int(page.evaluate(_MIDDLE))


def scroll_to(page: Page, part: float) -> None:
    page.evaluate("(part) => scrollTo(0, part * (document.documentElement.scrollHeight - innerHeight))", part)


@pytest.mark.parametrize("width", [1280, 360])
def test_ten_thousand_sessions_are_one_list_of_which_few_rows_exist(
    long_list: ServedPage, visit: Visit, width: int
) -> None:
    page = visit(long_list, "/sessions", width=width)
    rows = page.locator(".sessions tbody tr")
    expect(page.locator(".sessions.windowed")).to_be_visible()
    expect(page.get_by_role("table", name="Sessions")).to_have_attribute("aria-rowcount", str(COUNT + 1))

    for part in (0.25, 0.5, 0.75, 0.1):
        scroll_to(page, part)
        assert abs(middle_of(page) - part * COUNT) < 30
        assert rows.count() < 1000
    scroll_to(page, 1)
    expect(page.get_by_role("link", name=title(COUNT - 1))).to_be_in_viewport()
    last = page.get_by_role("row").filter(has=page.get_by_role("link", name=title(COUNT - 1)))
    expect(last).to_have_attribute("aria-rowindex", str(COUNT + 1))
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_every_session_is_in_the_list_once(long_list: ServedPage, visit: Visit) -> None:
    page = visit(long_list, "/sessions?project=web", height=2000)
    expect(page.locator(".sessions.windowed")).to_be_visible()

    # As one scrolls: what each screen shows, from the first row to the last.
    found = page.evaluate(
        """async () => {
          const found = new Map();
          const bodies = [...document.querySelectorAll(".sessions tbody")];
          for (const body of bodies) {
            body.scrollIntoView();
            while (!body.classList.contains("filled")) await new Promise(requestAnimationFrame);
            for (const row of body.rows) found.set(Number(row.getAttribute("aria-rowindex")), row.dataset.id);
          }
          return [...found.entries()].sort((one, two) => one[0] - two[0]).map((each) => each[1]);
        }"""
    )

    assert found == [session_number(number) for number in range(0, COUNT, 5)]


def test_back_returns_to_the_place_in_the_list_while_sessions_arrive(
    tmp_path_factory: pytest.TempPathFactory, page_server: ServePage, visit: Visit
) -> None:
    home = make_many_sessions(tmp_path_factory.mktemp("back") / "home", 1000)
    page = visit(page_server(home), "/sessions")
    expect(page.locator(".sessions.windowed")).to_be_visible()
    scroll_to(page, 0.6)
    number = middle_of(page)
    link = page.get_by_role("link", name=title(number))
    before = link.bounding_box()
    link.click()
    expect(page).to_have_url(re.compile(f"/sessions/{session_number(number)}"))

    append(home, [response(90_000 + n, at="2026-11-15T08:00:00Z", session_id=f"new-{n}") for n in range(20)])
    page.go_back()

    expect(page.get_by_role("table", name="Sessions")).to_have_attribute("aria-rowcount", "1021")
    expect(link).to_be_in_viewport()
    after = link.bounding_box()
    assert before is not None
    assert after is not None
    assert abs(after["y"] - before["y"]) < 3


def test_keys_move_select_two_and_open(long_list: ServedPage, visit: Visit) -> None:
    page = visit(long_list, "/sessions")
    expect(page.locator(".sessions.windowed")).to_be_visible()
    link = page.get_by_role("link", name=title(0))

    page.keyboard.press("j")
    expect(link).to_be_focused()
    page.keyboard.press("x")
    expect(page.locator(".selection")).to_contain_text("select another")
    for _ in range(3):
        page.keyboard.press("j")
    page.keyboard.press("k")
    expect(page.get_by_role("link", name=title(2))).to_be_focused()
    page.keyboard.press("x")

    compare = page.get_by_role("link", name="Side by side")
    expect(compare).to_be_visible()
    address = compare.get_attribute("href") or ""
    assert parse_qs(urlsplit(address).query) == {"a": [session_number(0)], "b": [session_number(2)]}
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"/sessions/{session_number(2)}"))


def test_a_row_keeps_the_focus_when_the_whole_list_arrives(long_list: ServedPage, visit: Visit) -> None:
    page = visit(long_list)
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/lists/order*", hold)
    with page.expect_request("**/lists/order*"):
        page.goto(f"{long_list.address}/sessions")
    page.keyboard.press("j")
    link = page.get_by_role("link", name=title(0))
    expect(link).to_be_focused()
    held[0].fallback()
    expect(page.locator(".sessions.windowed")).to_be_visible()
    expect(link).to_be_focused()


def test_keys_move_into_rows_that_are_still_loading(long_list: ServedPage, visit: Visit) -> None:
    page = visit(long_list, "/sessions")
    expect(page.locator(".sessions.windowed")).to_be_visible()

    for number in range(230):
        page.keyboard.press("j")
        expect(page.get_by_role("link", name=title(number))).to_be_focused()

    expect(page.get_by_role("link", name=title(229))).to_be_in_viewport()


def test_the_list_is_read_page_by_page_without_scripts(long_list: ServedPage, visit: Visit) -> None:
    page = visit(long_list, "/sessions?client=codex", scripts=False)
    expect(page.locator(".sessions tbody tr")).to_have_count(100)

    page.get_by_role("link", name="Older sessions").click()

    expect(page.get_by_role("link", name=title(403))).to_be_visible()
    page.get_by_role("checkbox").nth(0).check()
    page.get_by_role("checkbox").nth(1).check()
    page.get_by_role("button", name="Compare the two selected").click()
    assert parse_qs(urlsplit(page.url).query) == {"a": [session_number(403)], "b": [session_number(407)]}


def test_results_appear_while_typing_and_keys_open_them(long_list: ServedPage, visit: Visit) -> None:
    page = visit(long_list, "/search")
    status = page.locator("#results").get_by_role("status")
    field = page.get_by_role("searchbox", name="Search everything")
    expect(field).to_be_focused()

    page.keyboard.type("connection ref", delay=20)
    expect(status).to_contain_text("words that begin with ref")
    page.keyboard.type("used")
    expect(page).to_have_url(re.compile(r"/search\?q=connection\+refused$"))
    expect(status).to_have_text(MATCHES)
    expect(status).not_to_contain_text("begin with")
    expect(page.locator("mark").first).to_have_text("connection refused")

    page.keyboard.press("Escape")
    expect(field).not_to_be_focused()
    hits = page.locator("#results li a")
    page.keyboard.press("j")
    expect(hits.nth(0)).to_be_focused()
    page.keyboard.press("j")
    expect(hits.nth(1)).to_be_focused()
    page.keyboard.press("k")
    page.keyboard.press("k")
    expect(field).to_be_focused()
    page.keyboard.press("Enter")
    expect(hits.nth(0)).to_be_focused()
    target = hits.nth(0).get_attribute("href") or ""
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(re.escape(target)))

    page.go_back()
    expect(field).to_have_value("connection refused")
    expect(status).to_have_text(MATCHES)


def test_an_answer_that_comes_too_late_does_not_replace_a_newer_one(long_list: ServedPage, visit: Visit) -> None:
    page = visit(long_list, "/search")
    held: list[Route] = []
    page.route(re.compile(r"/lists/search\?q=cart$"), lambda route: held.append(route))
    status = page.locator("#results").get_by_role("status")

    with page.expect_request(re.compile(r"/lists/search\?q=cart$")):
        page.keyboard.type("cart")
    page.keyboard.type(" zebra")
    expect(status).to_have_text("Nothing matches.")

    for route in held:
        route.abort()
    expect(status).to_have_text("Nothing matches.")
    expect(page).to_have_url(re.compile(r"q=cart\+zebra$"))


def test_what_cannot_be_read_is_explained_and_stays_in_the_field(long_list: ServedPage, visit: Visit) -> None:
    page = visit(long_list, "/search?role=tool")
    field = page.get_by_role("searchbox", name="Search everything")
    status = page.locator("#results").get_by_role("status")

    field.fill('"connection')
    expect(status).to_contain_text("the quote at character 1 is not closed")
    expect(field).to_have_value('"connection')
    field.fill('"connection refused"')
    expect(status).to_have_text(MATCHES)
    page.get_by_role("navigation", name="Role").get_by_role("link", name="user").click()
    expect(status).to_have_text("Nothing matches.")
    expect(field).to_have_value('"connection refused"')
    page.get_by_role("navigation", name="Role").get_by_role("link", name="user").click()
    expect(status).to_have_text(MATCHES)


def test_the_search_is_a_form_without_scripts(long_list: ServedPage, visit: Visit) -> None:
    page = visit(long_list, "/search?errors=1", scripts=False, width=360)

    page.get_by_role("searchbox", name="Search everything").fill("connection refused")
    page.get_by_role("searchbox", name="Search everything").press("Enter")

    expect(page.locator("#results").get_by_role("status")).to_have_text(MATCHES)
    page.get_by_role("link", name="More matches").click()
    expect(page.get_by_role("link", name="Previous matches")).to_be_visible()
    page.wait_for_load_state()
    assert page.evaluate("document.documentElement.scrollWidth") == 360
