"""Serves the page of a home from a thread, and asks it as a browser would."""

from __future__ import annotations

import asyncio
import http.client
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web

from tests.support.processes import PATIENCE


@dataclass
class PageAnswer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


@dataclass
class ServedPage:
    port: int
    cookies: dict[str, str] = field(default_factory=dict)
    """Cookies of the browser. Those of an answer are added."""

    def ask(
        self,
        path: str,
        method: str = "GET",
        headers: Mapping[str, str | None] | None = None,
        body: str | None = None,
    ) -> PageAnswer:
        """Send one request on a connection of its own. A header of None is left out."""
        sent = {"Host": f"127.0.0.1:{self.port}", **(headers or {})}
        if self.cookies and "Cookie" not in sent:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                if value is not None:
                    connection.putheader(name, value)
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body.encode() if body is not None else None)
            found = connection.getresponse()
            answer = PageAnswer(found.status, found.headers, found.read())
        finally:
            connection.close()
        for cookie in answer.headers.get_all("Set-Cookie") or ():
            name, _, value = cookie.partition(";")[0].partition("=")
            self.cookies[name] = value
        return answer


@contextmanager
def serve_app(make: Callable[[], web.Application], port: int = 0) -> Iterator[ServedPage]:
    """Serve an application on a free port of 127.0.0.1. It is made in the thread that serves it."""
    started = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    found: list[int] = []

    async def serve() -> None:
        runner = web.AppRunner(make(), access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        found.append(runner.addresses[0][1])
        started.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), name="page server")
    thread.start()
    try:
        assert started.wait(PATIENCE)
        yield ServedPage(found[0])
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
