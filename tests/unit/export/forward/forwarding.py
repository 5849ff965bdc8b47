"""What tests of the forward sink are made of: rows as the lake gives them, a chunk, a sink, small real servers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pyarrow as pa
from aiohttp import web

from hypaware.export.payload import Lines
from hypaware.export.ranges import chunk_of
from hypaware.export.sink import Chunk, SinkSettings
from hypaware.export.sinks.forward.sink import ForwardSink
from hypaware.home import Home
from hypaware.lake import arrow
from hypaware.model import canonical
from hypaware.model.coerce import coerce_row
from hypaware.model.datasets import INTERNAL, Dataset
from hypaware.state.stream_key import StreamKey
from tests.rows import DATASET, MESSAGES

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
    return chunk_of(stream, GATEWAY, INCARNATION, after, last)


def stored(raw: Sequence[Mapping[str, Any]], dataset: Dataset = MESSAGES) -> list[dict[str, Any]]:
    """Rows as they lie in a lake."""
    return [coerce_row(dataset, dict(row), GATEWAY) for row in raw]


def table(rows: Sequence[dict[str, Any]], dataset: Dataset = MESSAGES) -> pa.Table:
    """Coerced rows as delivery reads them: public columns, made by the code that writes the lake's files."""
    columns = arrow.table_columns(dataset)
    schema = arrow.file_schema(dataset, {column.name: number for number, column in enumerate(columns)})
    nothing = {name: pa.nulls(len(rows), schema.field(name).type) for name in INTERNAL}
    lines = [canonical.row_id_and_text(row)[1] for row in rows]
    return arrow.from_json_lines(schema, lines, nothing).drop_columns(list(INTERNAL))


def lines(count: int = 3) -> Lines:
    """Any lines: what they hold is the server's affair."""
    return Lines([b'{"n":%d}\n' % number for number in range(count)])


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
    """A real server on loopback: `{"POST /v1/ingest/{signal}": handler}`; everything else is 404."""
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
async def speaking(talk: Talk) -> AsyncIterator[str]:
    """A server that says over the socket what it likes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    held = socket.socket()
    # Little on its way: a client notices soon that nobody reads.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    held.bind(("127.0.0.1", 0))
    async with await asyncio.start_server(answer, sock=held):
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


class JumpingLoop(asyncio.SelectorEventLoop):
    """Hours pass when a test says so."""

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
