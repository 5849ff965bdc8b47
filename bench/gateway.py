"""Measure the overhead of the gateway: the same client and provider, with and without the gateway, in one run.

    python -m bench.gateway [--quick]

Provider (TLS), gateway and client are separate processes. On two cores they compete, and the direct route has one
process less. A third route therefore goes through a process that only copies bytes between a plain and a TLS
connection: any process in the middle adds at least that much.

The routes take turns, so that load on the machine affects all of them. Connections are open and warm.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psutil

from bench.gateway_ways import END
from bench.measure import ROOT, Measured

STREAMS, EVENTS, GAP_MS = 100, 200, 50
_TURNS = 50
_PROMPT = b"word " * 9_600
_numbers = count()
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Way:
    name: str
    port: int
    process: psutil.Process
    tls: ssl.SSLContext | None = None
    mark: bytes = b""

    def cpu(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def memory(self) -> float:
        return float(self.process.memory_info().rss / 1e6)


@dataclass(frozen=True)
class Ways:
    direct: Way
    copied: Way
    gateway: Way
    unrecorded: Way
    """The gateway for a client that it keeps nothing of."""


@contextmanager
def ways(folder: Path) -> Iterator[Ways]:
    with _process("provide", folder) as (upstream, provider):
        options = ("--upstream", str(upstream))
        with (
            _process("copy", folder, *options) as copied,
            _process("serve", folder, *options) as gateway,
            _process("serve", folder, *options, "--unrecorded") as unrecorded,
        ):
            yield Ways(
                Way("direct", upstream, provider, ssl.create_default_context(cafile=str(folder / "ca.pem"))),
                Way("copied", *copied),
                Way("gateway", *gateway, mark=b"/claude"),
                Way("unrecorded", *unrecorded, mark=b"/claude"),
            )


@contextmanager
def _process(part: str, folder: Path, *options: str) -> Iterator[tuple[int, psutil.Process]]:
    command = [sys.executable, "-m", "bench.gateway_ways", part, str(folder), *options]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        yield int(started.stdout.readline()), psutil.Process(started.pid)
        started.communicate()


def _request(prompt: bytes) -> bytes:
    """Build a unique request, because repeated messages are stored once; sessions have a usual length."""
    number = next(_numbers)
    session = str(uuid.UUID(int=number // _TURNS, version=4))
    return (
        b'{"model":"claude-test","stream":true,"metadata":{"user_id":"user_1_account__session_%b"},'
        b'"messages":[{"role":"user","content":"%d %b"}]}' % (session.encode(), number, prompt)
    )


async def ask(way: Way, connection: Connection, query: str, prompt: bytes = b"") -> tuple[float, int]:
    """Return the seconds to the first byte of the body and the size of the response."""
    reader, writer = connection
    body = _request(prompt)
    head = (
        b"POST %b/v1/messages?%b HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
    )
    began = time.perf_counter()
    writer.write(head % (way.mark, query.encode(), len(body)) + body)
    await reader.readuntil(b"\r\n\r\n")
    data = await reader.read(1 << 18)
    first = time.perf_counter() - began
    size = len(data)
    while not data.endswith(END):
        data = await reader.read(1 << 18)
        if not data:
            raise SystemExit(f"{way.name}: the answer broke off, not a measurement")
        size += len(data)
    return first, size


async def _connected(way: Way, number: int) -> list[Connection]:
    found = [await asyncio.open_connection("127.0.0.1", way.port, ssl=way.tls, limit=1 << 20) for _ in range(number)]
    await asyncio.gather(*(ask(way, connection, "events=2&gap=0") for connection in found))
    return found


async def first_bytes(way: Way) -> list[float]:
    """Measure under steady load: streams start spread over the length of one, and each is followed by a second one."""
    connections = await _connected(way, STREAMS)

    async def one(number: int) -> list[float]:
        await asyncio.sleep((number + random.random()) * EVENTS * GAP_MS / 1000 / STREAMS)
        asked = f"events={EVENTS}&gap={GAP_MS}"
        found = [(await ask(way, connections[number], asked, _PROMPT))[0] for _ in range(2)]
        connections[number][1].close()
        return found

    return [each for found in await asyncio.gather(*map(one, range(STREAMS))) for each in found]


async def bulk(way: Way, mebibytes: int, streams: int) -> float:
    """Return MB/s of all streams together."""
    connections = await _connected(way, streams)
    began = time.perf_counter()
    done = await asyncio.gather(*(ask(way, each, f"bulk={mebibytes // streams}") for each in connections))
    took = time.perf_counter() - began
    for _, writer in connections:
        writer.close()
    return sum(size for _, size in done) / 1e6 / took


async def many(way: Way, exchanges: int, at_once: int = 16) -> float:
    """Return the megabytes transferred in both directions."""
    left, prompt = iter(range(exchanges)), _PROMPT[:16_000]
    sizes = []

    async def one(connection: Connection) -> None:
        for _ in left:
            sizes.append((await ask(way, connection, "events=50&gap=0", prompt))[1] + len(prompt))
        connection[1].close()

    await asyncio.gather(*map(one, await _connected(way, at_once)))
    return sum(sizes) / 1e6


async def memory_and_cpu(found: Ways, total: int) -> list[Measured]:
    sizes, spent, bare, megabytes = [], 0.0, 0.0, 0.0
    for _ in range(4):
        for way in (found.gateway, found.unrecorded):
            before = way.cpu()
            passed = await many(way, total // 4)
            if way is found.gateway:
                # Include the exchanges that are still being stored.
                await asyncio.sleep(1)
                spent, megabytes = spent + way.cpu() - before, megabytes + passed
                sizes.append(way.memory())
            else:
                bare += way.cpu() - before
    return [
        Measured(
            f"memory over {total:,} exchanges",
            "≤ 120 MB, flat",
            " · ".join(f"{size:.0f}" for size in sizes) + " MB",
            sizes[-1] <= 120 and sizes[-1] <= sizes[1] * 1.1,
        ),
        Measured(
            "CPU of recording: the copy, decoding, redaction, rows, spool",
            "–",
            f"{(spent - bare) / megabytes * 1000:.1f} ms per recorded MB "
            f"({spent / total * 1000:.2f} ms per exchange in all, {bare / total * 1000:.2f} if it is not recorded)",
        ),
    ]


def _percentile(found: list[float], share: float) -> float:
    return sorted(found)[min(len(found) - 1, int(len(found) * share))] * 1000


async def delay_and_speed(found: Ways, rounds: int, mebibytes: int) -> list[Measured]:
    firsts: dict[str, list[list[float]]] = {}
    rates: dict[tuple[str, int], list[float]] = {}
    for number in range(rounds):
        turn = [found.direct, found.copied, found.gateway]
        for way in turn if number % 2 else reversed(turn):
            firsts.setdefault(way.name, []).append(await first_bytes(way))
            for streams in (1, 8):
                rates.setdefault((way.name, streams), []).append(await bulk(way, mebibytes, streams))
    lines = []
    for share, name, limit in ((0.5, "p50", 2.0), (0.99, "p99", 10.0)):
        direct, copied, gateway = (
            statistics.median(_percentile(each, share) for each in firsts[way])
            for way in ("direct", "copied", "gateway")
        )
        lines.append(
            Measured(
                f"first byte, {STREAMS} streams of {EVENTS} events, {name}",
                f"≤ {limit:g} ms added",
                f"{gateway - direct:.2f} ms added; {copied - direct:.2f} by a mere copy ({direct:.2f} direct)",
                gateway - direct <= limit,
            )
        )
    for streams in (1, 8):
        direct, copied, gateway = (statistics.median(rates[way, streams]) for way in ("direct", "copied", "gateway"))
        lines.append(
            Measured(
                f"throughput, streams at once: {streams}",
                "≥ 90 % of direct, up to 200 MB/s",
                f"{gateway:.0f} MB/s; {copied:.0f} by a mere copy, {direct:.0f} direct",
                gateway >= 0.9 * min(direct, 200.0),
            )
        )
    return lines


def measure(folder: Path, quick: bool = False) -> Iterator[Measured]:
    with ways(folder) as found:
        yield from asyncio.run(memory_and_cpu(found, 1_000 if quick else 10_000))
        yield from asyncio.run(delay_and_speed(found, 1 if quick else 3, 128 if quick else 512))
        size = found.gateway.memory()
        yield Measured(f"memory after all of it, {STREAMS} pooled connections", "–", f"{size:.0f} MB")
    yield Measured(
        "load of the machine at the end (1, 5, 15 minutes)", "–", "{:.1f} · {:.1f} · {:.1f}".format(*os.getloadavg())
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures what the gateway adds.")
    parser.add_argument("--quick", action="store_true", help="less of everything")
    chosen = parser.parse_args()
    print("| work | target | measured | |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="hyp-gateway-") as folder:
        for each in measure(Path(folder), chosen.quick):
            print(each.line(), flush=True)


if __name__ == "__main__":
    main()
