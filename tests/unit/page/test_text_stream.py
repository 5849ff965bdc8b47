"""Answers that are sent while they are made: they begin at once, and stop when nobody reads them."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from aiohttp import web

from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.index.store import Index
from hypaware.page.context import PageContext
from hypaware.page.text_stream import Pieces, TextStream
from tests.support.index_home import make_home, prompt
from tests.support.served_page import ServedPage, serve_app

PATIENCE = 60.0


@contextmanager
def served(home: Home, pieces: Pieces) -> Iterator[ServedPage]:
    make_home(home.root, prompt(1, "x", at="2026-11-14T08:00:00Z"))
    with closing(PageContext(home)) as context:
        stream = TextStream(context)

        async def send(request: web.Request) -> web.StreamResponse:
            try:
                return await stream.send(request, pieces, {"Content-Type": "text/plain; charset=utf-8"})
            except HypError as error:
                return web.Response(status=404, text=error.message)

        def make() -> web.Application:
            app = web.Application()
            app.add_routes([web.get("/", send)])
            return app

        with serve_app(make) as page:
            yield page


def test_an_answer_begins_before_it_is_made_and_ends_when_its_reader_is_gone(home: Home) -> None:
    has_stopped = threading.Event()

    def pieces(_index: Index) -> Iterator[str]:
        try:
            while True:
                yield "x" * 1000
        finally:
            has_stopped.set()

    with served(home, pieces) as page:
        connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=PATIENCE)
        connection.request("GET", "/")
        assert connection.getresponse().read(5000) == b"x" * 5000
        assert not has_stopped.is_set()
        connection.close()
        assert has_stopped.wait(PATIENCE)


def test_a_stopped_reader_does_not_stop_others(home: Home) -> None:
    with served(home, lambda _index: iter(["x" * 100_000] * 100)) as page:
        stopped = [http.client.HTTPConnection("127.0.0.1", page.port, timeout=PATIENCE) for _ in range(3)]
        for each in stopped:
            each.request("GET", "/")
        assert len(page.ask("/").body) == 10_000_000
        for each in stopped:
            each.close()


@pytest.mark.parametrize("text", ["", "é\ud800", "a" * 300_000])
def test_an_answer_is_complete(home: Home, text: str) -> None:
    with served(home, lambda _index: iter(text)) as page:
        answer = page.ask("/")
    assert answer.status == 200
    assert answer.text == text.replace("\ud800", "\\ud800")


def test_an_error_before_the_first_piece_is_an_answer_of_its_own(home: Home) -> None:
    def find_session() -> list[str]:
        raise HypError("no such session")

    def fail(_index: Index) -> Iterator[str]:
        yield from find_session()

    with served(home, fail) as page:
        answer = page.ask("/")
    assert (answer.status, answer.text) == (404, "no such session")


def test_an_answer_that_fails_later_is_cut_off(home: Home) -> None:
    def fail(_index: Index) -> Iterator[str]:
        yield "x" * 100_000
        raise HypError("the disk is gone")

    with served(home, fail) as page, pytest.raises((http.client.IncompleteRead, ConnectionError)):
        page.ask("/")
