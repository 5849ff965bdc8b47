"""The page of a server in a browser: sign in, look at a person, sign out."""

from __future__ import annotations

from playwright.sync_api import expect

from hypaware.home import Home
from hypaware.server import auth
from tests.support.browser import ServedPage, Visit
from tests.support.command import Hyp
from tests.support.processes import PATIENCE
from tests.support.team_page import ALICE, PRIVATE, SEEN, make_team_home

SIGN_IN_ERRORS = ("401 (Unauthorized)", "403 (Forbidden)")


def test_a_person_signs_in_looks_at_another_and_signs_out(home: Home, visit: Visit) -> None:
    make_team_home(home)
    Hyp(home.root).ok("config", "set", f'privacy.folders."{PRIVATE}"', "local-only")
    token, _ = auth.create_token(home, "dana", use="view")
    process = Hyp(home.root).start("server", "run", "--listen", "127.0.0.1:0", "--no-flush", "--page", "127.0.0.1:0")
    try:
        assert process.stdout
        process.stdout.readline()
        address = process.stdout.readline().decode().removeprefix("page at ").strip()
        server = ServedPage(home, address, process)
        page = visit(server, "/machines?days=all", signed_in=False, expected=SIGN_IN_ERRORS)
        page.get_by_label("Viewer token").fill("hypv_wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("not valid")
        page.get_by_label("Viewer token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        # The view that was asked for.
        expect(page.get_by_role("heading", level=1)).to_have_text("People and machines")
        expect(page.get_by_role("banner")).to_contain_text("dana")
        people = page.get_by_role("region", name="People")
        expect(people.get_by_role("row")).to_have_count(3)
        # Of alice's two sessions one is withheld.
        people.get_by_role("row", name="alice").get_by_role("link", name="1", exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("Sessions")
        page.locator(f'a[href*="{SEEN}"]').first.click()
        expect(page.get_by_text("The shop is fine")).to_be_visible()
        expect(page.get_by_text(f"on {ALICE}.local")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Viewer token")).to_be_visible()
        # So that the browser does not load anything from a server that ends.
        page.close()
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)
