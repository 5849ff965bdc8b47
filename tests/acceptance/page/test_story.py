"""What a person does who sees the page for the first time."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.support.browser import ServedPage, Visit
from tests.support.made_up_history import BROKEN, COSTLIEST, ERROR, YESTERDAYS


def test_a_newcomer_reads_a_session_sees_what_last_week_cost_and_finds_an_error(
    history: ServedPage, visit: Visit
) -> None:
    page = visit(history)

    # Yesterday's session, found in the list and read.
    page.get_by_role("navigation", name="Views").get_by_role("link", name="Sessions").click()
    page.get_by_role("link", name=YESTERDAYS).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(YESTERDAYS)
    expect(page.get_by_text("a timeout does not mean that the charge failed")).to_be_visible()
    expect(page.get_by_text("test_one_order_is_charged_once")).to_be_visible()

    # What last week cost, and which project took most of it.
    page.get_by_role("navigation", name="Views").get_by_role("link", name="Overview").click()
    page.get_by_role("navigation", name="Period").get_by_role("link", name="7 days").click()
    cost = page.locator(".figures div", has_text="Cost").first
    expect(cost).to_contain_text(re.compile(r"\$\d"))
    first = page.locator("section", has=page.get_by_role("heading", name="Projects")).locator("tbody tr").first
    expect(first).to_contain_text(COSTLIEST)
    first.get_by_role("link").click()
    expect(page).to_have_url(re.compile("project="))
    page.wait_for_load_state("load")

    # The three sessions in which an error came up.
    page.keyboard.press("/")
    page.keyboard.type(ERROR)
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").first).to_contain_text("3 matches in 3 sessions")
    for prompt in BROKEN:
        expect(page.get_by_role("heading", name=prompt)).to_be_visible()
