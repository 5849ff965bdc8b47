"""A real server that implements only the published contract: no capabilities and no queries.

It keeps a ledger of ids: an id is stored once, and any later batch with this id gets 202.
It runs in a thread of the test, with switches for faults, or as a separate process that can be killed:

    with PlainServer() as server: …
    with plain_server_process(file) as process: …          # python -m tests.support.plain_server --store file

With a store, a batch is one line of it, fsynced before the response; a restarted server knows all its ids.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import jwt
from aiohttp import web

from hypaware.home import durable_files
from tests.support.processes import PATIENCE

TOKEN = "bootstrap-token-of-the-tests"
INGEST, BOOTSTRAP, REFRESH = "/v1/ingest/", "/v1/identity/bootstrap", "/v1/identity/refresh"
_SIGNALS = ("logs", "traces", "metrics", "proxy")
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Batch:
    id: str
    signal: str
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    status: int | None
    """None if the connection was cut without a response."""


@dataclass
class _Trick:
    under: str
    left: int
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut: str = ""


class PlainServer:
    def __init__(
        self,
        token: str | None = TOKEN,
        *,
        store: Path | None = None,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        token_seconds: float = 7 * 86400,
    ) -> None:
        """Without a `token`, every request is accepted."""
        self.token, self.token_seconds = token, token_seconds
        self.batches: list[Batch] = list(read_store(store)) if store else []
        self._ids = {batch.id for batch in self.batches}
        self.requests: list[Request] = []
        self._store, self._port, self._tls = store, port, tls
        self._tricks: list[_Trick] = []
        self._refuses: Callable[[dict[str, Any]], bool] = lambda _row: False
        self._generation = 0
        self._lock = threading.Lock()
        self.url = ""

    # Switches; each can be changed while it runs.

    def answer(
        self,
        status: int,
        times: int = 1,
        *,
        under: str = INGEST,
        body: bytes = b"",
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Respond to the next requests with this status and store nothing."""
        self._tricks.append(_Trick(under, times, status, headers, body))

    def cut_after_storing(self, times: int = 1) -> None:
        """Store the next batches but cut the connection before the response."""
        self._tricks.append(_Trick(INGEST, times, cut="after"))

    def cut_before_storing(self, times: int = 1) -> None:
        self._tricks.append(_Trick(INGEST, times, cut="before"))

    def refuse(self, rows: Callable[[dict[str, Any]], bool]) -> None:
        """Refuse every batch that contains such a row with 422."""
        self._refuses = rows

    def forget_tokens(self) -> None:
        """Reject every signed token issued so far."""
        self._generation += 1

    # Stored batches.

    def rows(self, signal: str = "proxy") -> list[dict[str, Any]]:
        return [row for batch in self.batches if batch.signal == signal for row in batch.rows]

    def received(self, under: str = "/") -> list[Request]:
        return [request for request in self.requests if request.path.startswith(under)]

    # Start and stop.

    def __enter__(self) -> Self:
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self.serve(started.set)), name="plain-server")
        self._thread.start()
        assert started.wait(PATIENCE), "the server did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop_soon.set)
        self._thread.join()

    async def serve(self, on_start: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop_soon = asyncio.Event()
        app = web.Application(client_max_size=1 << 30, middlewares=[self._noting])
        app.router.add_post(BOOTSTRAP, self._bootstrap)
        app.router.add_post(REFRESH, self._refresh)
        app.router.add_post(INGEST + "{signal}", self._ingest)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", self._port, ssl_context=self._tls)
            await site.start()
            self._port = runner.addresses[0][1]
            self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"
            on_start()
            await self._stop_soon.wait()
        finally:
            await runner.cleanup()

    # The contract.

    @web.middleware
    async def _noting(self, request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        body = await request.read()
        trick = self._trick_for(request.path)
        answer: web.StreamResponse | None
        if trick and trick.status:
            answer = web.Response(status=trick.status, headers=trick.headers, body=trick.body)
        elif trick and trick.cut == "before":
            answer = None
        else:
            try:
                answer = await handler(request)
            except web.HTTPException as http:
                answer = _error(http.status, "not_found" if http.status == 404 else "http")
            if trick and trick.cut == "after":
                answer = None
        self.requests.append(
            Request(request.method, request.path, dict(request.headers), body, answer.status if answer else None)
        )
        if answer is None:
            assert request.transport
            request.transport.abort()
            return web.Response()
        return answer

    async def _bootstrap(self, request: web.Request) -> web.Response:
        received = json.loads(await request.read())
        if received.get("bootstrap_token") != self.token:
            return _error(401, "invalid_token")
        return self._token_answer()

    async def _refresh(self, request: web.Request) -> web.Response:
        return self._token_answer() if self._is_known(request) else _error(401, "invalid_token")

    async def _ingest(self, request: web.Request) -> web.Response:
        if not self._is_known(request):
            return _error(401, "invalid_token")
        signal, batch_id = request.match_info["signal"], request.headers.get("X-Hyp-Batch-Id")
        if signal not in _SIGNALS:
            return _error(404, "unknown_signal")
        if not batch_id or request.content_type != "application/x-ndjson" or "Content-Encoding" in request.headers:
            return _error(400, "bad_request")
        if batch_id in self._ids:
            return web.Response(status=202)
        try:
            rows = [json.loads(line) for line in (await request.read()).split(b"\n") if line]
        except ValueError:
            return _error(400, "bad_json")
        for number, row in enumerate(rows, 1):
            if self._refuses(row):
                return _error(422, "bad_row", detail=f"line {number} is refused")
        self._keep(Batch(batch_id, signal, rows))
        return web.Response(status=202)

    def _keep(self, batch: Batch) -> None:
        if self._store:
            fd = os.open(self._store, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                durable_files.write_all(fd, b"\n" + json.dumps(asdict(batch)).encode() + b"\n")
                durable_files.fsync_fd(fd)
            finally:
                os.close(fd)
        self.batches.append(batch)
        self._ids.add(batch.id)

    def _trick_for(self, path: str) -> _Trick | None:
        with self._lock:
            for trick in self._tricks:
                if trick.left and path.startswith(trick.under):
                    trick.left -= 1
                    return trick
        return None

    @property
    def _key(self) -> bytes:
        return hashlib.sha256((self.token or "").encode()).digest()

    def _token_answer(self) -> web.Response:
        expires_at = int(time.time() + self.token_seconds)
        claims = {"exp": expires_at, "generation": self._generation, "jti": os.urandom(4).hex()}
        return web.json_response({"jwt": jwt.encode(claims, self._key, "HS256"), "expires_at": expires_at})

    def _is_known(self, request: web.Request) -> bool:
        if self.token is None:
            return True
        try:
            token = request.headers.get("Authorization", "").removeprefix("Bearer ")
            return bool(jwt.decode(token, self._key, ["HS256"])["generation"] == self._generation)
        except (jwt.InvalidTokenError, KeyError):
            return False


def read_store(path: Path) -> Iterator[Batch]:
    """Return the batches of a store; an incomplete last line was not stored."""
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
        with contextlib.suppress(ValueError):
            yield Batch(**json.loads(line))


@dataclass(frozen=True)
class PlainProcess:
    process: subprocess.Popen[str]
    url: str

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def plain_server_process(store: Path, *, port: int = 0, token: str = TOKEN) -> Iterator[PlainProcess]:
    command = [
        sys.executable,
        "-m",
        "tests.support.plain_server",
        "--store",
        str(store),
        "--port",
        str(port),
        "--token",
        token,
    ]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout
            yield PlainProcess(process, json.loads(process.stdout.readline())["url"])
        finally:
            process.kill()


def _error(status: int, kind: str, **more: str) -> web.Response:
    return web.json_response({"error": kind, **more}, status=status)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--store", type=Path, required=True)
    options.add_argument("--port", type=int, default=0)
    options.add_argument("--token", default=TOKEN)
    server = PlainServer(**vars(options.parse_args()))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(server.serve(lambda: print(json.dumps({"url": server.url}), flush=True)))


if __name__ == "__main__":
    main()
