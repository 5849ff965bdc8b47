"""A purge from the page, with real Spark: previewed, confirmed, and finished without the process that started it."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from hypaware.home import Home
from tests.support.browser import ServePage, Visit
from tests.support.command import Hyp
from tests.support.rows import row

pytestmark = pytest.mark.spark

SESSION, OTHER = "0dc91b82-3238-4907-98f3-ae0d1d845b97", "7f7951bf-398c-4472-a66f-7449c1656bf1"


def test_a_session_is_purged_from_its_own_page(hyp: Hyp, page_server: ServePage, visit: Visit) -> None:
    home = Home(hyp.home)
    hyp.ingest([row(number, session_id=SESSION, content_text="to forget") for number in range(4)])
    hyp.ingest([row(number, session_id=OTHER, content_text="to keep") for number in range(4, 7)])
    hyp.ok("flush")
    hyp.ok("index", "rebuild")

    # Without scripts: links and forms do it.
    server = page_server(home)
    page = visit(server, f"/sessions/{SESSION}", scripts=False)
    page.get_by_text("Privacy", exact=True).click()
    page.get_by_role("link", name="Purge this session").click()
    expect(page.get_by_role("heading", name="What would be deleted")).to_be_visible()
    expect(page.get_by_role("row", name="ai_gateway_messages")).to_contain_text("4")
    page.get_by_label("to confirm").fill(SESSION[:8])
    page.get_by_role("button", name="Purge this session").click()
    expect(page.get_by_role("heading", name="being purged")).to_be_visible()
    page.close()
    server.process.kill()

    # Another process of the page shows the purge that the first one started, and follows it to its end.
    page = visit(page_server(home), f"/purge?id={SESSION}")
    expect(page.get_by_role("heading", name="The session was purged")).to_be_visible()
    expect(page.get_by_role("row", name="ai_gateway_messages")).to_contain_text("4")
    page.get_by_role("link", name="To the sessions").click()
    expect(page.locator(f"main a[href^='/sessions/{OTHER}']").first).to_be_visible()
    expect(page.locator(f"main a[href^='/sessions/{SESSION}']")).to_have_count(0)

    assert [each["session_id"] for each in hyp.ok("sessions")["sessions"]] == [OTHER]
    assert hyp.ok("search", "forget")["hits"] == []
    assert hyp.ok("verify")["ok"] is True
    remains = [path for path in home.root.rglob("*") if path.is_file() and b"to forget" in path.read_bytes()]
    assert remains == []
