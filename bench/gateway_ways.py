"""The processes of `bench.gateway`: a provider, and the routes between it and a client.

    python -m bench.gateway_ways provide FOLDER
    python -m bench.gateway_ways copy FOLDER --upstream PORT
    python -m bench.gateway_ways serve FOLDER --upstream PORT [--unrecorded]

Each prints its port and exits when its standard input closes. `provide` answers over TLS, `copy` is the minimum that a
process in the middle can do, `serve` is the gateway with everything that the daemon does with an exchange.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import ssl
import sys
import uuid
from pathlib import Path
from urllib.parse import parse_qs

from hypaware.config import Config
from hypaware.gateway.exchange_writer import ExchangeWriter
from hypaware.gateway.routes import Route, Routes
from hypaware.gateway.server import GatewayServer, prioritize_streams
from hypaware.home import Home
from hypaware.spool.writer import Spool

END = b"0\r\n\r\n"
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_BULK = b"10000\r\n" + b"b" * 65_536 + b"\r\n"


def _chunk(*events: bytes) -> bytes:
    text = b"".join(b"event: message\ndata: %b\n\n" % event for event in events)
    return b"%x\r\n%b\r\n" % (len(text), text)


def _first() -> bytes:
    return _chunk(
        b'{"type":"message_start","message":{"id":"msg_%b","type":"message","role":"assistant","model":"claude-test",'
        b'"content":[],"usage":{"input_tokens":9600,"output_tokens":1}}}' % uuid.uuid4().hex.encode(),
        b'{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}',
    )


_WORDS = _chunk(b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"some more words "}}')
_LAST = _chunk(
    b'{"type":"content_block_stop","index":0}',
    b'{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":600}}',
    b'{"type":"message_stop"}',
)


class Provider(asyncio.Protocol):
    """Responds as the query requests: `events=<count>&gap=<milliseconds>` or `bulk=<MiB>`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._heard = bytearray()
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._task: asyncio.Task[None] | None = None

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def connection_lost(self, _error: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._heard += data
        head, mark, body = self._heard.partition(b"\r\n\r\n")
        if not mark:
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        if len(body) >= length:
            del self._heard[: len(head) + 4 + length]
            asked = parse_qs(head.split(b" ", 2)[1].decode().partition("?")[2])
            self._task = asyncio.ensure_future(self._say({name: int(value) for name, (value,) in asked.items()}))

    async def _say(self, asked: dict[str, int]) -> None:
        write = self._transport.write
        if "bulk" in asked:
            write(_HEAD)
            for _ in range(asked["bulk"] * 16):
                write(_BULK)
                await self._may_write.wait()
                if self._transport.is_closing():
                    return
        else:
            write(_HEAD + _first())
            for _ in range(asked["events"] - 2):
                if asked["gap"]:
                    # Random gaps: streams with the same interval would all send in the same millisecond.
                    await asyncio.sleep(asked["gap"] / 1000 * random.uniform(0.5, 1.5))
                write(_WORDS)
            write(_LAST)
        write(END)


async def provide(folder: Path) -> None:
    import trustme

    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server = await asyncio.get_running_loop().create_server(Provider, "127.0.0.1", 0, ssl=context, backlog=1024)
    await _until_the_end(server.sockets[0].getsockname()[1])


class Copy(asyncio.Protocol):
    """Copies bytes to the other connection, with backpressure."""

    def __init__(self, other: Copy | None = None) -> None:
        self.other = other
        self.transport: asyncio.Transport | None = None
        self.early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.other is None or self.other.transport is None:
            self.early.append(data)
        else:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, _error: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


class CopyIn(Copy):
    def __init__(self, upstream: int, tls: ssl.SSLContext) -> None:
        super().__init__()
        self._upstream, self._tls = upstream, tls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._task = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        _, self.other = await loop.create_connection(lambda: Copy(self), "127.0.0.1", self._upstream, ssl=self._tls)
        assert self.other.transport is not None
        self.other.transport.writelines(self.early)


async def copy(folder: Path, upstream: int) -> None:
    tls = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    server = await asyncio.get_running_loop().create_server(lambda: CopyIn(upstream, tls), "127.0.0.1", 0, backlog=1024)
    await _until_the_end(server.sockets[0].getsockname()[1])


async def serve(folder: Path, upstream: int, recorded: bool) -> None:
    prioritize_streams()
    home = Home(folder / ("home" if recorded else "home-unrecorded"))
    with Spool(home) as spool:
        keep = ExchangeWriter(spool, Config())
        gateway = GatewayServer(
            "127.0.0.1:0",
            # A client marked as not recorded takes the route without a copy.
            Routes(
                [Route("bench", "/", f"https://127.0.0.1:{upstream}", "anthropic")],
                recorded=("claude",) if recorded else (),
            ),
            keep.write,
            home.root / "spill",
            store=keep.store,
            tls=ssl.create_default_context(cafile=str(folder / "ca.pem")),
            environment={},
        )
        _, port = await gateway.start()
        await _until_the_end(port)
        await gateway.stop(5)
        keep.close()
    print(gateway.counts, keep.counts, file=sys.stderr)


async def _until_the_end(port: int) -> None:
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("provide", "copy", "serve"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--upstream", type=int, default=0)
    parser.add_argument("--unrecorded", action="store_true")
    chosen = parser.parse_args()
    if chosen.part == "provide":
        asyncio.run(provide(chosen.folder))
    elif chosen.part == "copy":
        asyncio.run(copy(chosen.folder, chosen.upstream))
    else:
        asyncio.run(serve(chosen.folder, chosen.upstream, not chosen.unrecorded))


if __name__ == "__main__":
    main()
