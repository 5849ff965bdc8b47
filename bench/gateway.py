"""What the gateway adds: the same client and the same provider, with the gateway between them and without, in one run.

    python -m bench.gateway [--quick]

Provider (TLS), gateway and client are processes of their own. On a machine with two cores they take time from each
other, and the direct way has one process less. So a third way is measured beside the two: through a process that only
copies bytes between a plain and a TLS connection. What that one adds, nothing in between can avoid.
"""

from __future__ import annotations

import argparse
import asyncio
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.measuring import ROOT, Measured
from hypaware.capture.decode import decode
from hypaware.capture.gateway import Gateway
from hypaware.capture.recording import Recording
from hypaware.capture.routes import Route, Routes

STREAMS, EVENTS, GAP_MS = 100, 200, 50
REQUEST = b'{"model":"claude-test","stream":true,"messages":[{"role":"user","content":"' + b"word " * 9_600 + b'"}]}'
EVENT = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":'
    b'{"type":"text_delta","text":"some words"}}\n\n'
)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
BULK = b"10000\r\n" + b"b" * 65_536 + b"\r\n"
END = b"0\r\n\r\n"


@dataclass(frozen=True)
class Place:
    port: int
    process: psutil.Process
    tls: ssl.SSLContext | None = None
    mark: bytes = b""


# The provider.


class Provider(asyncio.Protocol):
    """Says what the path asks for: `/events/<count>/<gap in ms>` or `/bulk/<MiB>`."""

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
            _, kind, *numbers = head.split(b" ", 2)[1].decode().split("/")
            self._task = asyncio.ensure_future(self._say(kind, [int(number) for number in numbers]))

    async def _say(self, kind: str, numbers: list[int]) -> None:
        write = self._transport.write
        if kind == "bulk":
            write(HEAD)
            for _ in range(numbers[0] * 16):
                write(BULK)
                await self._may_write.wait()
                if self._transport.is_closing():
                    return
        else:
            count, gap = numbers
            write(HEAD + CHUNK)
            for _ in range(count - 1):
                if gap:
                    await asyncio.sleep(gap / 1000)
                write(CHUNK)
        write(END)


async def provide(folder: Path) -> None:
    import trustme

    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server = await asyncio.get_running_loop().create_server(Provider, "127.0.0.1", 0, ssl=context, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


# The gateway.


async def serve(folder: Path, upstream: int, keeping: str) -> None:
    kept = threading.Semaphore(0)

    def keep(recording: Recording) -> None:
        if keeping == "decode":
            decode(recording)
        kept.release()

    route = Route("bench", "/", f"https://127.0.0.1:{upstream}", "anthropic")
    # A mark whose client is not recorded: the way without a copy.
    target = Routes([route], recorded=() if keeping == "nothing" else ("claude",))
    gateway = Gateway(
        "127.0.0.1:0",
        target,
        keep,
        folder / f"spill-{keeping}",
        tls=ssl.create_default_context(cafile=str(folder / "ca.pem")),
        environment={},
    )
    _, port = await gateway.start()
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await gateway.stop(5)
    print(gateway.counts, file=sys.stderr)


# The least that a process in between can do.


class Copy(asyncio.Protocol):
    """Hands what comes to its other half; a half that is full stops the other."""

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
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


@contextmanager
def process(*arguments: str) -> Iterator[tuple[int, psutil.Process]]:
    command = [sys.executable, "-m", "bench.gateway", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        yield int(started.stdout.readline()), psutil.Process(started.pid)
        started.communicate()


# The client.


async def ask(place: Place, connection: Any, path: str, body: bytes = REQUEST) -> tuple[float, int]:
    """Seconds to the first byte of the body, and how many bytes the answer had."""
    reader, writer = connection
    began = time.perf_counter()
    writer.write(
        b"POST %b%b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (place.mark, path.encode(), len(body)) + body
    )
    data = await reader.readuntil(b"\r\n\r\n")
    data = await reader.read(1 << 18)
    first = time.perf_counter() - began
    size = len(data)
    while not data.endswith(END):
        data = await reader.read(1 << 18)
        if not data:
            raise SystemExit("the answer broke off")
        size += len(data)
    return first, size


async def connect(place: Place) -> Any:
    return await asyncio.open_connection("127.0.0.1", place.port, ssl=place.tls, limit=1 << 20)


async def first_bytes(place: Place) -> list[float]:
    """Steady load on warm connections: the streams begin spread over the length of one, and each has a second."""
    connections = [await connect(place) for _ in range(STREAMS)]
    await asyncio.gather(*(ask(place, connection, "/events/1/0") for connection in connections))

    async def one(number: int) -> list[float]:
        await asyncio.sleep(number * EVENTS * GAP_MS / 1000 / STREAMS)
        found = [(await ask(place, connections[number], f"/events/{EVENTS}/{GAP_MS}"))[0] for _ in range(2)]
        connections[number][1].close()
        return found

    return [each for found in await asyncio.gather(*map(one, range(STREAMS))) for each in found]


async def bulk(place: Place, mebibytes: int, streams: int) -> float:
    """MB a second, of all streams together."""
    connections = [await connect(place) for _ in range(streams)]
    for connection in connections:
        await ask(place, connection, "/events/1/0")
    began = time.perf_counter()
    done = await asyncio.gather(*(ask(place, each, f"/bulk/{mebibytes // streams}", b"{}") for each in connections))
    took = time.perf_counter() - began
    for _, writer in connections:
        writer.close()
    return sum(size for _, size in done) / 1e6 / took


async def many(place: Place, exchanges: int, at_once: int = 16) -> None:
    left = iter(range(exchanges))

    async def one() -> None:
        connection = await connect(place)
        for _ in left:
            await ask(place, connection, "/events/50/0")
        connection[1].close()

    await asyncio.gather(*(one() for _ in range(at_once)))


def percentile(found: list[float], share: float) -> float:
    return sorted(found)[min(len(found) - 1, int(len(found) * share))] * 1000


def cpu(place: Place) -> float:
    times = place.process.cpu_times()
    return float(times.user + times.system)


async def memory_and_cpu(gateway: Place, bare: Place, total: int) -> list[Measured]:
    found: list[Measured] = []
    sizes = []
    before = cpu(gateway)
    for _ in range(4):
        await many(gateway, total // 4)
        sizes.append(gateway.process.memory_info().rss / 1e6)
    spent = cpu(gateway) - before
    before = cpu(bare)
    await many(bare, total // 4)
    without_copy = (cpu(bare) - before) * 4
    megabytes = total * (len(REQUEST) + 50 * len(EVENT)) / 1e6
    found.append(
        Measured(
            f"memory over {total:,} exchanges",
            "≤ 120 MB, flat",
            " · ".join(f"{size:.0f}" for size in sizes) + " MB",
            sizes[-1] <= 120 and sizes[-1] <= sizes[1] * 1.1,
        )
    )
    found.append(
        Measured(
            "CPU of the copy and its decoding",
            "–",
            f"{(spent - without_copy) / megabytes * 1000:.1f} ms per recorded MB "
            f"({spent / total * 1000:.2f} ms per exchange in all, {without_copy / total * 1000:.2f} without a copy)",
        )
    )
    return found


async def measure(direct: Place, copied: Place, gateway: Place, bare: Place, quick: bool) -> list[Measured]:
    rounds = 1 if quick else 3
    found = await memory_and_cpu(gateway, bare, 1_000 if quick else 10_000)
    # In turn, so that a busy minute of the machine is everybody's.
    firsts: dict[str, list[float]] = {"direct": [], "copied": [], "gateway": []}
    rates: dict[tuple[str, int], list[float]] = {}
    for _ in range(rounds):
        for name, place in (("direct", direct), ("copied", copied), ("gateway", gateway)):
            firsts[name] += await first_bytes(place)
            for streams in (1, 8):
                rates.setdefault((name, streams), []).append(await bulk(place, 128 if quick else 512, streams))
    for share, name, limit in ((0.5, "p50", 2.0), (0.99, "p99", 10.0)):
        without, least, with_it = (percentile(firsts[way], share) for way in ("direct", "copied", "gateway"))
        found.append(
            Measured(
                f"first byte, {STREAMS} streams of {EVENTS} events, {name}",
                f"≤ {limit:g} ms added",
                f"{with_it - without:.2f} ms added; {least - without:.2f} by a mere copy ({without:.2f} direct)",
                with_it - without <= limit,
            )
        )
    for streams in (1, 8):
        without, least, with_it = (statistics.median(rates[way, streams]) for way in ("direct", "copied", "gateway"))
        found.append(
            Measured(
                f"throughput, {streams} streams",
                "≥ 90 % of direct, up to 200 MB/s",
                f"{with_it:.0f} MB/s; {least:.0f} by a mere copy, {without:.0f} direct",
                with_it >= 0.9 * min(without, 200.0),
            )
        )
    size = gateway.process.memory_info().rss / 1e6
    found.append(Measured(f"memory after all of it, {STREAMS} pooled connections", "–", f"{size:.0f} MB"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures what the gateway adds.")
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--provide", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--copy", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--upstream", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--keep", choices=("decode", "nothing"), default="decode", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.provide:
        asyncio.run(provide(chosen.provide))
        return
    if chosen.copy:
        asyncio.run(copy(chosen.copy, chosen.upstream))
        return
    if chosen.serve:
        asyncio.run(serve(chosen.serve, chosen.upstream, chosen.keep))
        return
    with tempfile.TemporaryDirectory() as name, process("--provide", name) as (upstream, provider):
        tls = ssl.create_default_context(cafile=str(Path(name) / "ca.pem"))
        options = ("--upstream", str(upstream))
        with (
            process("--copy", name, *options) as (copy_port, copying),
            process("--serve", name, *options) as (port, gateway),
            process("--serve", name, *options, "--keep", "nothing") as (bare_port, bare),
        ):
            places = (
                Place(upstream, provider, tls),
                Place(copy_port, copying),
                Place(port, gateway, mark=b"/claude"),
                Place(bare_port, bare, mark=b"/claude"),
            )
            found = asyncio.run(measure(*places, quick=chosen.quick))
    print("| work | target | measured | |\n|---|---|---|---|")
    for each in found:
        print(each.line())


if __name__ == "__main__":
    main()
