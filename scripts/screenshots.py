"""Make the pictures of the page in docs/images: `python -m scripts.screenshots [FOLDER]`.

The page shows a made-up history in a temporary home, so that no picture shows anything private. Each view is taken in
light and dark colours.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from playwright.sync_api import Browser, Page

from hypaware.home import Home
from scripts.ensure_chromium import find_chromium, install_command
from tests.support.browser import ServedPage, run_chromium, serve_page
from tests.support.made_up_history import ERROR, YESTERDAYS, make_page_home

_IMAGES = Path(__file__).parents[1] / "docs" / "images"
_WIDTH, _HEIGHT = 1280, 760


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the pictures of the page.")
    parser.add_argument("folder", type=Path, nargs="?", default=_IMAGES)
    folder = parser.parse_args().folder
    chromium = find_chromium()
    if chromium is None:
        sys.stderr.write(f"Chromium is not installed; try: {install_command()}\n")
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        home = make_page_home(Home(Path(scratch) / "home"), Path(scratch) / "claude", datetime.now(UTC))
        with serve_page(home) as server, run_chromium(chromium) as browser:
            for scheme in ("light", "dark"):
                _take_pictures(browser, server, folder, scheme)
    return 0


def _take_pictures(browser: Browser, server: ServedPage, folder: Path, scheme: str) -> None:
    context = browser.new_context(
        base_url=server.address,
        viewport={"width": _WIDTH, "height": _HEIGHT},
        color_scheme="dark" if scheme == "dark" else "light",
        timezone_id="UTC",
    )
    page = context.new_page()
    page.goto(server.open_address())
    for name in ("overview", "session", "search"):
        _show(page, name)
        page.wait_for_load_state("networkidle")
        page.screenshot(path=folder / f"{name}-{scheme}.png", animations="disabled")
    context.close()


def _show(page: Page, name: str) -> None:
    if name == "session":
        page.goto("/sessions")
        page.get_by_role("link", name=YESTERDAYS).first.click()
    elif name == "search":
        page.goto("/search")
        page.get_by_role("searchbox").first.fill(ERROR)
        page.get_by_role("searchbox").first.press("Enter")
    else:
        page.goto("/")
    page.get_by_role("heading", level=1).wait_for()


if __name__ == "__main__":
    sys.exit(main())
