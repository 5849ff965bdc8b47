"""The health and the privacy views in a browser: they renew themselves, copy commands, and change rules."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Request, expect

from hypaware import config
from hypaware.home import Home
from hypaware.privacy.ignored_sessions import ignore_session, read_ignored_sessions
from tests.support.browser import ServePage, Visit
from tests.support.index_home import make_home, prompt

SESSION = "0dc91b82-3238-4907-98f3-ae0d1d845b97"
_HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_the_health_renews_itself_while_it_is_visible(home: Home, page_server: ServePage, visit: Visit) -> None:
    make_home(home.root, prompt(1, "Why?", at="2026-11-14T08:00:00Z"))
    page = visit(page_server(home), "/health")
    page.clock.install()
    page.reload()
    expect(page.locator("#health")).not_to_contain_text("1 session")
    ignore_session(home, SESSION)
    page.clock.run_for(10_000)
    expect(page.locator("[data-kind=left_out]")).to_contain_text("as you asked: 1 session")

    asked: list[Request] = []
    page.on("request", lambda request: asked.append(request))
    page.evaluate(_HIDE, True)
    page.clock.run_for(120_000)
    assert page.evaluate("fetch('/notice').then((answer) => answer.ok)")
    assert [each.url.rpartition("/")[2] for each in asked] == ["notice"], "nobody looks, so nothing is read"
    with page.expect_request("**/health/body"):
        page.evaluate(_HIDE, False)
        page.clock.run_for(1_000)


def test_a_command_is_copied_by_its_button(home: Home, page_server: ServePage, visit: Visit) -> None:
    make_home(home.root, prompt(1, "Why?", at="2026-11-14T08:00:00Z"))
    ignore_session(home, SESSION)
    page = visit(page_server(home), "/health")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button = page.locator("[data-kind=left_out]").get_by_role("button", name="Copy: hyp session status")
    button.click()
    expect(button).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "hyp session status"


def test_a_session_and_its_folder_are_made_private_and_opened_again(
    home: Home, page_server: ServePage, visit: Visit, tmp_path: Path
) -> None:
    folder = str(tmp_path / "<b>work</b> & 'more'")
    make_home(home.root, prompt(1, "Why?", at="2026-11-14T08:00:00Z", session_id=SESSION, cwd=folder))
    page = visit(page_server(home), f"/sessions/{SESSION}")

    page.get_by_text("Privacy", exact=True).click()
    page.get_by_role("button", name="Stop recording this session").click()
    expect(page.get_by_role("status")).to_have_text("This session is excluded from recording.")
    assert list(read_ignored_sessions(home)) == [SESSION]
    page.get_by_role("button", name="Record this session again").click()
    expect(page.get_by_role("status")).to_contain_text("This session is recorded")
    assert read_ignored_sessions(home) == {}

    page.get_by_role("link", name="Make this folder private").click()
    expect(page.locator("main")).to_contain_text("1 recorded session in 1 folder would become local-only")
    page.get_by_role("button", name="Make it local-only").click()
    expect(page.get_by_role("row", name=folder)).to_contain_text("privacy.folders in the config")
    assert config.load(home).privacy.folders == {folder: "local-only"}
    page.get_by_role("button", name="Remove the rule").click()
    expect(page.locator("main")).to_contain_text("No recorded folder is private.")
    assert config.load(home).privacy.folders == {}
