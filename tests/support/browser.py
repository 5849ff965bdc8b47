"""A real Chromium, the page's real process, and visits that notice whatever a page must not do."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Page, Response, Route, expect, sync_playwright

from hypaware.home import Home
from hypaware.page import access
from tests.support.processes import PATIENCE

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_PATIENCE = 1000 * PATIENCE
"""Milliseconds that a page may take for anything: only a test that has failed waits for so long."""
_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error("policy violated:", event.violatedDirective, event.blockedURI));
"""


@dataclass(frozen=True)
class ServedPage:
    """The page of a home, served by a process of its own."""

    home: Home
    address: str
    process: subprocess.Popen[bytes]

    def open_address(self) -> str:
        """Return an address that signs one browser in, as `hyp open` makes it."""
        return access.open_address(self.address, access.SignIn(self.home).make_token())


ServePage = Callable[[Home], ServedPage]


class Visit(Protocol):
    def __call__(
        self,
        server: ServedPage,
        path: str = ...,
        *,
        width: int = ...,
        height: int = ...,
        dark: bool = ...,
        scripts: bool = ...,
        signed_in: bool = ...,
        expected: Sequence[str] = ...,
    ) -> Page: ...


@contextmanager
def run_chromium(path: str, flags: Sequence[str] = ()) -> Iterator[Browser]:
    expect.set_options(timeout=_PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*FLAGS, *flags])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def serve_page(home: Home) -> Iterator[ServedPage]:
    """Serve the page as the daemon does: a process gets the listening socket, on a port that the system chooses."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-m", "hypaware.page.process", str(home.root), "--socket", str(listener.fileno())]
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()]) as process:
            try:
                yield ServedPage(home, address, process)
            finally:
                process.terminate()


class Visits:
    """Browser contexts of one test, and what went wrong in them."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self._problems: list[str] = []

    def __enter__(self) -> Visits:
        return self

    def __exit__(self, *error: object) -> None:
        for context in self._contexts:
            context.close()
        assert not self._problems, "\n".join(self._problems)

    def open(
        self,
        server: ServedPage,
        path: str = "/",
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        scripts: bool = True,
        signed_in: bool = True,
        expected: Sequence[str] = (),
    ) -> Page:
        """Open a view in a new context. `expected` are parts of errors that the browser is to report."""
        context = self._browser.new_context(
            base_url=server.address,
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            java_script_enabled=scripts,
            reduced_motion="reduce",
            service_workers="block",
            timezone_id="UTC",
            locale="en-US",
        )
        self._contexts.append(context)
        self._watch(context, server, expected)
        page = context.new_page()
        if signed_in:
            page.goto(server.open_address())
        page.goto(path)
        return page

    def _watch(self, context: BrowserContext, server: ServedPage, expected: Sequence[str]) -> None:
        context.set_default_timeout(_PATIENCE)
        context.add_init_script(_VIOLATIONS)

        def note(problem: str) -> None:
            if not any(each in problem for each in expected):
                self._problems.append(problem)

        def refuse(route: Route) -> None:
            note(f"request to {route.request.url}")
            route.abort()

        def dismiss(dialog: Any) -> None:
            note(f"dialog: {dialog.message}")
            dialog.dismiss()

        def check(response: Response) -> None:
            if response.status >= 500:
                note(f"{response.status} from {urlsplit(response.url).path}")

        context.route(re.compile(rf"^(?!{re.escape(server.address)}/)(?!data:)(?!blob:{server.address}/)"), refuse)
        context.on("console", lambda message: note(f"console: {message.text}") if message.type == "error" else None)
        context.on("weberror", lambda error: note(f"error: {error.error}"))
        context.on("dialog", dismiss)
        context.on("response", check)
