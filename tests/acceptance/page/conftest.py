"""Fixtures of the tests in a browser; tests/support/browser.py has what they are made of.

    def test_…(home: Home, page_server: ServePage, visit: Visit) -> None:
        make_home(home.root, prompt(1, "Why?", at="2026-11-14T08:00:00Z"))
        page = visit(page_server(home), "/sessions?client=claude")
        expect(page.get_by_role("heading", level=1)).to_have_text("Sessions")

A test fails if the browser reports an error, a violation of the content security policy or a dialog, or if any
request leaves the page's own address.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser

from hypaware.home import Home
from scripts.ensure_chromium import find_chromium, install_command, is_required
from tests.support.browser import ServedPage, ServePage, Visit, Visits, run_chromium, serve_page
from tests.support.made_up_history import make_page_home


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests of a worker."""
    found = find_chromium()
    if found is None:
        reason = f"needs Chromium: {install_command()}"
        if is_required():
            pytest.fail(reason)
        pytest.skip(reason)
    with run_chromium(found) as running:
        yield running


@pytest.fixture(scope="package")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPage]:
    """The page of a home with a made-up month of work. Tests only read it."""
    folder = tmp_path_factory.mktemp("history")
    with serve_page(make_page_home(Home(folder / "home"), folder / "claude")) as server:
        yield server


@pytest.fixture
def page_server() -> Iterator[ServePage]:
    """Return a function that serves a home's page in a process of its own until the end of the test."""
    with ExitStack() as running:
        yield lambda home: running.enter_context(serve_page(home))


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Return a function that opens a served page in a new browser context, signed in."""
    with Visits(browser) as visits:
        yield visits.open
