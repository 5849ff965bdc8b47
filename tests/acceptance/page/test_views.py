"""What every view has in common: it fits the window, is accessible in light and dark, and works with keys and without
scripts."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.support.accessibility import find_violations
from tests.support.browser import ServedPage, Visit
from tests.support.made_up_history import BROKEN, ERROR, YESTERDAYS

VIEWS = ("/", "/sessions", "/search?q=checkout", "/search", "/health", "session", "compare", "/nowhere")
WIDTHS = (360, 768, 1280, 3840)
NOT_FOUND = ("status of 404",)


def open_view(visit: Visit, history: ServedPage, view: str, **options: object) -> Page:
    """Open a view; `session` is yesterday's session, `compare` shows it next to another one."""
    path = view if view.startswith("/") else "/sessions"
    page = visit(history, path, expected=NOT_FOUND, **options)  # type: ignore[arg-type]
    if view == "session":
        page.get_by_role("link", name=YESTERDAYS).click()
    elif view == "compare":
        page.goto(compared(page))
    expect(page.get_by_role("heading", level=1).first).to_be_visible()
    return page


def compared(page: Page) -> str:
    links = [page.get_by_role("link", name=title).first.get_attribute("href") for title in (YESTERDAYS, BROKEN[2])]
    left, right = (re.split("[/?]", link or "")[2] for link in links)
    return f"/compare?a={left}&b={right}"


@pytest.mark.parametrize("view", VIEWS)
def test_no_view_scrolls_sideways_at_any_width(history: ServedPage, visit: Visit, view: str) -> None:
    page = open_view(visit, history, view)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"at {width} pixels"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_views_are_accessible(history: ServedPage, visit: Visit, view: str, dark: bool) -> None:
    page = open_view(visit, history, view, dark=dark)
    assert find_violations(page, only=("color-contrast",) if dark else ()) == []


@pytest.mark.parametrize("view", VIEWS)
def test_views_are_accessible_in_a_narrow_window(history: ServedPage, visit: Visit, view: str) -> None:
    page = open_view(visit, history, view, width=360)
    assert find_violations(page) == []


@pytest.mark.parametrize("view", VIEWS)
def test_views_are_readable_without_scripts(history: ServedPage, visit: Visit, view: str) -> None:
    page = open_view(visit, history, view, scripts=False)
    shown = {
        "/": "Cost over time",
        "/sessions": YESTERDAYS,
        "/search?q=checkout": "matches in",
        "/search": "All words have to be in one message",
        "/health": "Disk",
        "session": "a timeout does not mean that the charge failed",
        "compare": ERROR,
        "/nowhere": "404",
    }
    assert shown[view] in page.locator("main").inner_text()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_choice_of_colours_is_kept(history: ServedPage, visit: Visit, dark: bool) -> None:
    page = visit(history, dark=dark)

    def background() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    before = background()
    page.get_by_role("button", name="Switch between light and dark").click()
    after = background()
    page.goto("/sessions")

    assert before != after
    assert background() == after


def test_keys_lead_through_the_views(history: ServedPage, visit: Visit) -> None:
    page = visit(history)
    page.keyboard.press("g")
    page.keyboard.press("s")
    expect(page.get_by_role("heading", level=1)).to_have_text("Sessions")
    # Keys work when the scripts of a view have run.
    page.wait_for_load_state("load")
    page.keyboard.press("j")
    expect(page.get_by_role("link", name=YESTERDAYS)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text(YESTERDAYS)
    page.wait_for_load_state("load")
    page.keyboard.press("g")
    page.keyboard.press("f")
    expect(page.get_by_role("heading", level=1)).to_have_text("Search")
    page.wait_for_load_state("load")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox").first).to_be_focused()
    page.keyboard.type(f'"{ERROR}"')
    expect(page.get_by_role("heading", name=BROKEN[0])).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text(re.compile("|".join(map(re.escape, BROKEN))))
    page.wait_for_load_state("load")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_the_first_tab_stop_skips_to_the_content(history: ServedPage, visit: Visit) -> None:
    page = visit(history, "/sessions")

    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
