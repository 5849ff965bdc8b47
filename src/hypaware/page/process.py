"""The process that serves the page: `python -m hypaware.page.process HOME --socket FD`.

The daemon starts it with the first connection and hands it the listening socket. It accepts until it has been
idle for a while; a page that is open and follows a running session keeps it alive. Its stdin is a pipe of the
daemon: when it closes, the daemon is gone and the process ends. It runs at low priority, so that the agents it shows,
and the gateway that they use, come first.

`hyp open` runs the same in the foreground if no daemon serves the page.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from hypaware.home import Home
from hypaware.page.app import make_local_app
from hypaware.page.context import PageContext
from hypaware.page.resources import limit_arenas, lower_priority
from hypaware.text import escape

log = logging.getLogger("hypaware.page")

IDLE_SECONDS = 900.0
_SHUTDOWN_SECONDS = 0.5


class PageServer:
    """Serves the page of a home on a listening socket until it is stopped or idle."""

    def __init__(
        self, home: Home, listener: socket.socket, idle_seconds: float | None = None, look_seconds: float = 1.0
    ) -> None:
        self._context = PageContext(home)
        self._listener = listener
        self._idle_seconds, self._look_seconds = idle_seconds, look_seconds
        self._stop = asyncio.Event()
        self._open: dict[int, web.Request] = {}
        self._last_request = time.monotonic()

    def stop(self) -> None:
        self._stop.set()

    async def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        app = make_local_app(self._context)
        app.middlewares.insert(0, self._make_counter())
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS)
        await runner.setup()
        try:
            self._listener.setblocking(False)
            await web.SockSite(runner, self._listener).start()
            on_ready()
            while not self._stop.is_set() and not self._is_idle():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._look_seconds):
                        await self._stop.wait()
        finally:
            self._context.close()
            await runner.cleanup()

    def _make_counter(self) -> Middleware:
        @web.middleware
        async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._open[id(request)] = request
            try:
                return await handler(request)
            finally:
                del self._open[id(request)]
                self._last_request = time.monotonic()

        return count

    def _is_idle(self) -> bool:
        # A request without a transport is one whose browser is gone.
        if self._idle_seconds is None or any(request.transport is not None for request in self._open.values()):
            return False
        return time.monotonic() - self._last_request >= self._idle_seconds


def serve(home: Home, listener: socket.socket, on_ready: Callable[[], None] = lambda: None) -> None:
    """Serve the page until SIGINT or SIGTERM. The calling process has to end soon afterwards."""
    limit_arenas()
    asyncio.run(_run(home, listener, on_ready=on_ready))


async def _run(
    home: Home,
    listener: socket.socket,
    *,
    idle_seconds: float | None = None,
    parent: int | None = None,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    server = PageServer(home, listener, idle_seconds)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    if parent is not None:
        loop.add_reader(parent, server.stop)
    try:
        await server.run(on_ready)
    finally:
        # Threads that still read must not delay the end. Nothing of theirs has to be finished.
        leave = threading.Timer(_SHUTDOWN_SECONDS, os._exit, (0,))
        leave.daemon = True
        leave.start()


class _PageLogFormatter(logging.Formatter):
    """Formats a line like those of the daemon's log, with control characters escaped."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        return escape(super().format(record))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m hypaware.page.process", description=__doc__)
    parser.add_argument("home", type=Path)
    parser.add_argument("--socket", type=int, required=True, help="descriptor of the listening socket")
    parser.add_argument("--idle", type=float, default=IDLE_SECONDS, help="end after so many seconds without a request")
    given = parser.parse_args(arguments)
    os.umask(0o077)
    limit_arenas()
    lower_priority()
    handler = logging.StreamHandler()
    handler.setFormatter(_PageLogFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    log.setLevel(logging.INFO)
    log.info("the page is served by process %d", os.getpid())
    listener = socket.socket(fileno=given.socket)
    asyncio.run(_run(Home(given.home), listener, idle_seconds=given.idle, parent=sys.stdin.fileno()))
    log.info("the page's process ends")


if __name__ == "__main__":
    main(sys.argv[1:])
