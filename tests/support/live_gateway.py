"""A running gateway in a thread with its own event loop, and a client that sends exactly the given bytes."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from hypaware.gateway.exchange import RecordedBody, RecordedExchange
from hypaware.gateway.proxy import LocalPage
from hypaware.gateway.recorder import ExchangeHandler, RecorderCounts, RecorderLimits
from hypaware.gateway.routes import Route, Routes
from hypaware.gateway.server import GatewayServer
from tests.support.processes import PATIENCE
from tests.support.upstream_stub import UpstreamStub

T = TypeVar("T")


class KeptExchanges:
    """Recorded exchanges, with bodies read before their files are deleted."""

    def __init__(self) -> None:
        self._found: list[tuple[RecordedExchange, bytes, bytes]] = []
        self._more = threading.Condition()

    def __call__(self, recording: RecordedExchange) -> None:
        found = (recording, _bytes(recording.request), _bytes(recording.response))
        with self._more:
            self._found.append(found)
            self._more.notify_all()

    def wait(self, count: int) -> list[tuple[RecordedExchange, bytes, bytes]]:
        with self._more:
            assert self._more.wait_for(lambda: len(self._found) >= count, timeout=PATIENCE), len(self._found)
            return list(self._found)

    def only(self) -> tuple[RecordedExchange, bytes, bytes]:
        (found,) = self.wait(1)
        return found


def routes_to(stub: UpstreamStub, provider: str = "anthropic") -> Routes:
    return Routes([Route("stub", "/", stub.url, provider)])


class LiveGateway:
    def __init__(
        self,
        routes: Routes | UpstreamStub,
        handle_exchange: ExchangeHandler,
        folder: Path,
        *,
        stub: UpstreamStub | None = None,
        environment: Mapping[str, str] | None = None,
        limits: RecorderLimits | None = None,
        report_overhead: Callable[[float], None] = lambda _milliseconds: None,
        grace: float = PATIENCE,
        port: int = 0,
        listen: socket.socket | None = None,
        local_pages: Mapping[str, LocalPage] | None = None,
    ) -> None:
        if isinstance(routes, UpstreamStub):
            stub, routes = routes, routes_to(routes)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._grace = grace
        self.gateway = GatewayServer(
            listen or f"127.0.0.1:{port}",
            routes,
            handle_exchange,
            folder,
            tls=stub.client_tls() if stub else None,
            environment=environment or {},
            limits=limits,
            report_overhead=report_overhead,
            local_pages=local_pages or {},
        )

    @property
    def counts(self) -> RecorderCounts:
        return self.gateway.counts

    def __enter__(self) -> Self:
        self._thread.start()
        started = asyncio.run_coroutine_threadsafe(self.gateway.start(), self._loop)
        try:
            self.host, self.port = started.result()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(self._grace)
        self._end()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it in the event loop of the gateway."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def stop_listening(self) -> None:
        self.run(self.gateway.stop_listening())

    def stop(self, grace: float) -> None:
        asyncio.run_coroutine_threadsafe(self.gateway.stop(grace), self._loop).result()

    def connect(self) -> ClientConnection:
        return ClientConnection(socket.create_connection((self.host, self.port), timeout=PATIENCE))

    def request(self, request: bytes) -> tuple[bytes, bytes]:
        """Send one request on a connection of its own; return the header and the unframed body of the response."""
        with self.connect() as wire:
            wire.send(request)
            return wire.answer(request.split(b" ", 1)[0])

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


class ClientConnection:
    """A client's connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            self._more()
        found, mark, self._buffer = self._buffer.partition(mark)
        return found + mark

    def exactly(self, size: int) -> bytes:
        pieces, left = [self._buffer[:size]], size - min(size, len(self._buffer))
        self._buffer = self._buffer[size:]
        while left:
            piece = self.socket.recv(min(left, 1 << 20))
            if not piece:
                raise EOFError(f"{left} bytes are missing")
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)

    def head(self) -> bytes:
        return self.until(b"\r\n\r\n")

    def chunk(self) -> bytes:
        """Read one chunk of a chunked body; empty at its end."""
        size = int(self.until(b"\r\n"), 16)
        return self.exactly(size + 2)[:size]

    def answer(self, method: bytes = b"POST") -> tuple[bytes, bytes]:
        head = self.head()
        return head, self.body(head, method)

    def body(self, head: bytes, method: bytes = b"POST") -> bytes:
        lower = head.lower()
        if method == b"HEAD" or head[9:12] in (b"204", b"304"):
            return b""
        if b"transfer-encoding: chunked" in lower:
            return b"".join(iter(self.chunk, b""))
        return self.exactly(int(lower.partition(b"content-length:")[2].partition(b"\r\n")[0]))

    def is_closed(self) -> bool:
        """Wait until the connection is closed, and check that nothing more arrives."""
        if self._buffer:
            return False
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _more(self) -> None:
        piece = self.socket.recv(1 << 16)
        if not piece:
            raise EOFError(self._buffer.decode("latin-1"))
        self._buffer += piece


def post(path: str = "/v1/messages", body: bytes = b'{"stream": true}', *headers: str) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "Host: 127.0.0.1", *headers, f"Content-Length: {len(body)}", "", "")
    return "\r\n".join(lines).encode("latin-1") + body


def _bytes(body: RecordedBody) -> bytes:
    return b"".join(body.blocks())
