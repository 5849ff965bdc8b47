"""The process that serves a server's page: `python -m hypaware.server.page_process`, started by `hyp server run`.

The first line of its stdin is what `TeamPageOptions.to_json` writes, with the descriptors of the listening sockets. It
ends when stdin closes. It runs at low priority, and the system ends it before the server if memory is short.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from hypaware.home import Home
from hypaware.page.app import make_app
from hypaware.page.context import PageAccess, PageContext
from hypaware.page.resources import limit_arenas, lower_priority
from hypaware.server import auth
from hypaware.server.health import log
from hypaware.server.http import load_certificate
from hypaware.server.page import TeamPageOptions
from hypaware.server.page_guard import PageGuard, PageLimits, PageRules
from hypaware.server.viewers import ViewerTokens
from hypaware.state.location import open_store

_OOM_SCORE = "500"
_MAX_HEADER = 8190
_QUIET_SECONDS = 75.0
_SHUTDOWN_SECONDS = 1.0


def make_team_app(
    context: PageContext, tokens: ViewerTokens, rules: PageRules, limits: PageLimits | None = None
) -> tuple[web.Application, PageGuard]:
    """Return the page for people who sign in, and what bounds its connections."""
    guard = PageGuard(context, tokens, rules, limits or PageLimits())
    app = make_app(context, guard.guard)
    app.middlewares.insert(0, guard.deliver)
    return app, guard


async def serve_page(home: Home, options: TeamPageOptions, listeners: list[socket.socket], stop: asyncio.Event) -> None:
    """Serve the page until `stop` is set."""
    rules = options.to_rules()
    tls = load_certificate(options.tls_cert, options.tls_key)
    context = PageContext(home, PageAccess(is_team=True, may_change=False))
    store = open_store(home)
    tokens = ViewerTokens(store, auth.signing_key(home, store))
    app, guard = make_team_app(context, tokens, rules)
    runner = web.AppRunner(
        app,
        access_log=None,
        keepalive_timeout=_QUIET_SECONDS,
        max_line_size=_MAX_HEADER,
        max_field_size=_MAX_HEADER,
        shutdown_timeout=_SHUTDOWN_SECONDS,
    )
    await runner.setup()
    assert runner.server is not None
    accepting = [asyncio.create_task(guard.connections.accept(each, runner.server, tls)) for each in listeners]
    try:
        await stop.wait()
    finally:
        for task in accepting:
            task.cancel()
        await asyncio.wait(accepting)
        context.close()
        await runner.cleanup()


async def _serve_until_closed(home: Home, options: TeamPageOptions, listeners: list[socket.socket]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_reader(sys.stdin.fileno(), stop.set)
    try:
        await serve_page(home, options, listeners, stop)
    finally:
        # Threads that still read must not delay the end. Nothing of theirs has to be finished.
        leave = threading.Timer(_SHUTDOWN_SECONDS, os._exit, (0,))
        leave.daemon = True
        leave.start()


def main() -> None:
    given = json.loads(sys.stdin.buffer.readline())
    os.umask(0o077)
    limit_arenas()
    lower_priority()
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, encoding="ascii")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    log.setLevel(logging.INFO)
    listeners = [socket.socket(fileno=each) for each in given["sockets"]]
    for each in listeners:
        each.setblocking(False)
    asyncio.run(_serve_until_closed(Home(Path(given["home"])), TeamPageOptions.from_json(given), listeners))


if __name__ == "__main__":
    main()
