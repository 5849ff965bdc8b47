"""Views that take a while: the head comes first, then the content, or why there is none."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hypaware.errors import Retryable
from hypaware.home import Home
from hypaware.index.refresh import refresh_index
from hypaware.index.store import Index
from hypaware.index.trends import read_trends
from hypaware.page import early_head, overview
from hypaware.page.app import make_app
from hypaware.page.context import PageContext
from tests.support.index_home import make_home, prompt
from tests.support.processes import PATIENCE
from tests.support.served_page import ServedPage, serve_app

_OVERVIEW = "/?days=all"


@pytest.fixture
def page(tmp_path: Path) -> Iterator[ServedPage]:
    home = make_home(tmp_path / "home", prompt(1, "hello", at="2026-11-15T08:00:00Z"))
    refresh_index(home)
    with closing(PageContext(Home(home.root))) as context, serve_app(lambda: make_app(context)) as page:
        yield page


class HeldReads:
    """Lets the reads of the overview wait until they are released, and then fail if there is an error."""

    def __init__(self, read: Callable[..., Any]) -> None:
        self._read = read
        self._released = threading.Event()
        self.error: Exception | None = None

    def __call__(self, index: Index, *args: Any, **named: Any) -> Any:
        assert self._released.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return self._read(index, *args, **named)

    def release(self) -> None:
        self._released.set()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldReads]:
    held = HeldReads(read_trends)
    monkeypatch.setattr(overview, "read_trends", held)
    yield held
    held.release()


@contextmanager
def ask(page: ServedPage, path: str) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=PATIENCE)
    with closing(connection):
        connection.request("GET", path)
        yield connection.getresponse()


def read_until(answer: http.client.HTTPResponse, text: str) -> str:
    found = b""
    while text.encode() not in found:
        piece = answer.read1()
        assert piece, "the answer has ended"
        found += piece
    return found.decode()


def test_the_head_of_a_page_is_sent_before_its_content_is_known(page: ServedPage, held: HeldReads) -> None:
    with ask(page, _OVERVIEW) as answer:
        head = read_until(answer, '<main id="main"')
        held.release()
        rest = answer.read().decode()

    assert '<form class="find"' in head
    assert "Cost over time" not in head
    assert "Cost over time" in rest
    assert rest.rstrip().endswith("</html>")
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")


def test_a_page_in_two_parts_is_the_same_as_one_in_one_part(page: ServedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask_within(seconds: float) -> str:
        monkeypatch.setattr(early_head.send_early, "__defaults__", (seconds,))
        return "\n".join(line for line in page.ask(_OVERVIEW).text.splitlines() if line)

    assert ask_within(0.0) == ask_within(PATIENCE)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (Retryable("the disk is away", repair="hyp doctor"), ["The disk is away", "hyp doctor"]),
        (ValueError("internal"), ["The page failed; its log says why"]),
    ],
)
def test_a_problem_that_is_found_after_the_head_is_shown_in_place_of_the_content(
    page: ServedPage, held: HeldReads, error: Exception, shown: list[str]
) -> None:
    held.error = error
    with ask(page, _OVERVIEW) as answer:
        read_until(answer, '<main id="main"')
        held.release()
        rest = answer.read().decode()

    assert all(text in rest for text in shown)
    assert "Cost over time" not in rest
    assert rest.rstrip().endswith("</html>")
    assert page.ask("/sessions").status == 200


def test_a_browser_that_leaves_before_the_content_does_no_harm(page: ServedPage, held: HeldReads) -> None:
    with ask(page, _OVERVIEW) as answer:
        read_until(answer, '<main id="main"')
    held.release()

    assert "Cost over time" in page.ask(_OVERVIEW).text
