"""The page's process: it ends when nobody asks, when it is told to, and when its daemon is gone."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession, web

from hypaware.home import Home
from hypaware.page import process as page_process
from hypaware.page.access import SignIn, open_address
from hypaware.page.app import make_app
from hypaware.page.context import PageContext
from hypaware.page.process import PageServer
from tests.support.index_home import make_home, prompt
from tests.support.processes import PATIENCE
from tests.support.served_page import ServedPage


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return make_home(tmp_path / "home", prompt(1, "hello", at="2026-11-15T08:00:00Z"))


@contextmanager
def started(home: Home, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], ServedPage]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.fileno()
        command = [sys.executable, "-m", "hypaware.page.process", str(home.root), "--socket", str(number), *options]
        with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(number,)) as process:
            try:
                yield process, ServedPage(listener.getsockname()[1])
            finally:
                process.kill()


def test_it_serves_the_page_of_its_home_to_those_who_signed_in(home: Home) -> None:
    with started(home) as (_, page):
        assert page.ask("/").status == 401
        assert page.ask(open_address("", SignIn(home).make_token())).status == 303
        assert page.ask("/notice").status in (200, 204)


def test_it_ends_without_requests(home: Home) -> None:
    with started(home, "--idle", "0.5") as (process, page):
        assert page.ask("/").status == 401
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_soon_after_a_signal_even_if_a_request_is_open(home: Home, number: signal.Signals) -> None:
    with started(home) as (process, page):
        assert page.ask("/").status == 401
        with socket.create_connection(("127.0.0.1", page.port)) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
            process.send_signal(number)
            assert process.wait(PATIENCE) == 0


def test_it_ends_with_the_process_that_started_it(home: Home) -> None:
    with started(home) as (process, page):
        assert page.ask("/").status == 401
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


def test_a_thread_that_still_works_does_not_delay_the_end(home: Home) -> None:
    code = """
import asyncio, socket, sys, time
from pathlib import Path
from hypaware.home import Home
from hypaware.page import process
from hypaware.page.context import PageContext

def begin():
    context = PageContext(Home(Path(sys.argv[1])))
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 600)
    asyncio.get_running_loop().call_later(0.1, lambda: __import__("os").kill(__import__("os").getpid(), 15))

with socket.create_server(("127.0.0.1", 0)) as listener:
    process.serve(Home(Path(sys.argv[1])), listener, begin)
"""
    done = subprocess.run([sys.executable, "-c", code, str(home.root)], timeout=PATIENCE, check=False)
    assert done.returncode == 0


def test_a_page_that_follows_a_session_keeps_it_running_until_the_browser_is_gone(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = 0.3

    def make(context: PageContext) -> web.Application:
        async def stream(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"begin\n")
            await asyncio.sleep(PATIENCE)  # nothing to say
            return response

        app = make_app(context)
        app.router.add_get("/stream", stream)
        return app

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = PageServer(home, listener, idle, look_seconds=idle / 10)
            running = asyncio.create_task(server.run())
            async with ClientSession() as session:
                answer = await session.get(f"http://127.0.0.1:{listener.getsockname()[1]}/stream")
                assert await answer.content.readline() == b"begin\n"
                ended, _ = await asyncio.wait([running], timeout=4 * idle)
                assert not ended, "the browser still holds the stream"
                answer.close()
            async with asyncio.timeout(PATIENCE):
                await running

    monkeypatch.setattr(page_process, "make_local_app", make)
    asyncio.run(run())


def test_connections_that_arrive_while_it_ends_are_left_to_its_successor(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number, page = listener.fileno(), ServedPage(listener.getsockname()[1])
        command = [sys.executable, "-m", "hypaware.page.process", str(home.root), "--socket", str(number)]
        for _ in range(2):
            with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(number,)) as process:
                assert page.ask("/").status == 401
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE) == 0
        with socket.create_connection(("127.0.0.1", page.port)) as waiting:
            waiting.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(number,)) as process:
                assert waiting.recv(12) == b"HTTP/1.1 403"
                process.kill()
