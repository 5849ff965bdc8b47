"""Helpers for tests of the forward sink: rows, chunks, sinks and small real servers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pyarrow as pa
from aiohttp import web

from hypaware.export.rows import make_chunk
from hypaware.export.sink import Chunk, LinesPayload, SinkSettings
from hypaware.export.sinks.forward.forward_sink import ForwardSink
from hypaware.home import Home
from hypaware.lake import schema as lake_schema
from hypaware.lake.build import table_from_json_lines
from hypaware.model import canonical
from hypaware.model.datasets import INTERNAL, Dataset, coerce_row
from hypaware.state.streams import StreamKey
from tests.support.rows import DATASET, MESSAGES

GATEWAY = "gw-0011223344556677"
INCARNATION = "0123456789abcdef0123456789abcdef"
STREAM = StreamKey("team", DATASET, "claude")
CAPABILITIES = {
    "server": "hypaware",
    "server_id": "srv-1",
    "api": 1,
    "extensions": ["batches", "watermark", "ranges"],
    "encodings": ["gzip", "zstd"],
    "limits": {"max_body_bytes": 1 << 20, "max_rows": 100, "max_line_bytes": 1 << 19},
}
T = TypeVar("T")
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def settings(home: Home, url: str, **options: str) -> SinkSettings:
    return SinkSettings(STREAM.sink, home, {"url": url, **options}, (DATASET,), GATEWAY, INCARNATION)


def chunk(after: int = 0, last: int = 10, stream: StreamKey = STREAM) -> Chunk:
    return make_chunk(stream, GATEWAY, INCARNATION, after, last)


def stored(raw: Sequence[Mapping[str, Any]], dataset: Dataset = MESSAGES) -> list[dict[str, Any]]:
    """Return rows as stored in the lake."""
    return [coerce_row(dataset, dict(row), GATEWAY) for row in raw]


def table(rows: Sequence[dict[str, Any]], dataset: Dataset = MESSAGES) -> pa.Table:
    """Return coerced rows as delivery reads them, built by the code that writes the lake's files."""
    columns = lake_schema.table_columns(dataset)
    schema = lake_schema.file_schema(dataset, {column.name: number for number, column in enumerate(columns)})
    nothing = {name: pa.nulls(len(rows), schema.field(name).type) for name in INTERNAL}
    lines = [canonical.serialize_row(row)[1] for row in rows]
    return table_from_json_lines(schema, lines, nothing).drop_columns(list(INTERNAL))


def lines(count: int = 3) -> LinesPayload:
    """Return lines with arbitrary content."""
    return LinesPayload([b'{"n":%d}\n' % number for number in range(count)])


@asynccontextmanager
async def opened(made: SinkSettings, *, compress: bool | None = None) -> AsyncIterator[Any]:
    sink = ForwardSink(made, compress=compress)
    await sink.open()
    try:
        yield sink
    finally:
        await sink.close()


@asynccontextmanager
async def served(routes: Mapping[str, Handler]) -> AsyncIterator[str]:
    """Run a real server on loopback: `{"POST /v1/ingest/{signal}": handler}`; other paths are 404."""
    app = web.Application(client_max_size=1 << 30)
    for route, handler in routes.items():
        method, _, path = route.partition(" ")
        app.router.add_route(method, path, handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, auto_decompress=False)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def socket_server(talk: Talk) -> AsyncIterator[str]:
    """Run a server that writes arbitrary bytes to the socket."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    held = socket.socket()
    # Small buffers, so that a client soon notices that the server does not read.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    held.bind(("127.0.0.1", 0))
    async with await asyncio.start_server(answer, sock=held):
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


class JumpingLoop(asyncio.SelectorEventLoop):
    """A clock that a test moves."""

    passed = 0.0

    def time(self) -> float:
        return super().time() + self.passed


def wait(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, JumpingLoop)
    loop.passed += seconds


def run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(work)


def always(document: object, status: int = 200) -> Handler:
    async def answer(_request: web.Request) -> web.Response:
        return web.json_response(document, status=status)

    return answer
