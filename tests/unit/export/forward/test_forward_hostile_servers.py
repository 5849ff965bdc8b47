"""Servers that send too much, too little, too slowly or nothing; and cancellations."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from hypaware.export.sink import ChunkRefused, DestinationUnreachable, LinesPayload
from hypaware.home import Home
from tests.support.forward_servers import (
    CAPABILITIES,
    STREAM,
    Talk,
    always,
    chunk,
    lines,
    opened,
    run,
    served,
    settings,
    socket_server,
    wait,
)
from tests.support.plain_server import INGEST, PlainServer
from tests.support.ports import FreePort

NOT_HERE = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(length_in(head))
    return head


def length_in(head: bytes) -> int:
    return next((int(line[16:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length: ")), 0)


def after_opening(talk: Talk) -> Talk:
    """A plain server until the first POST."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(NOT_HERE)
        await talk(reader, writer)

    return answer


def ship_to(home: Home, talk: Talk, payload: LinesPayload | None = None) -> int:
    async def work() -> int:
        async with socket_server(after_opening(talk)) as url, opened(settings(home, url)) as sink:
            return int(await sink.ship(chunk(), payload or lines(), 0))

    return run(work())


def test_an_endless_response_is_cut(home: Home) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 422 No\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            await writer.drain()

    with pytest.raises(DestinationUnreachable, match="incomplete or oversized response"):
        ship_to(home, talk)


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"\x16\x03\x01 nonsense\r\n\r\n",
        b"HTTP/1.1 two hundred\r\n\r\n",
        b"HTTP/1.1 202 Accepted\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 202 Accepted\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 202 Accepted\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 202 Acc",
    ],
)
def test_an_invalid_response_says_nothing_about_the_batch(home: Home, words: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(words)

    with pytest.raises(DestinationUnreachable):
        ship_to(home, talk)


def test_a_response_sent_byte_by_byte_times_out(home: Home) -> None:
    """Each byte counts as activity, so an idle timeout alone would never end it."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 202 Accepted\r\nX-Slow: ")
        while True:
            writer.write(b"z")
            await writer.drain()
            wait(20)
            await asyncio.sleep(0)

    with pytest.raises(DestinationUnreachable, match="did not respond in time"):
        ship_to(home, talk)


def test_a_server_that_stops_reading_times_out(home: Home) -> None:
    async def talk(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        wait(61)
        await asyncio.Event().wait()

    with pytest.raises(DestinationUnreachable, match="did not respond in time"):
        ship_to(home, talk, LinesPayload([b"x" * (64 << 20)]))


def test_a_server_that_never_responds_times_out(home: Home) -> None:
    async def talk(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        wait(61)
        await asyncio.Event().wait()

    with pytest.raises(DestinationUnreachable, match="did not respond in time"):
        ship_to(home, talk)


def test_a_server_that_does_not_finish_its_handshake_times_out(home: Home) -> None:
    async def talk(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        wait(15)
        await asyncio.Event().wait()

    async def work() -> None:
        async with socket_server(talk) as url:
            with pytest.raises(DestinationUnreachable, match="the connection timed out"):
                async with opened(settings(home, url.replace("http:", "https:"))):
                    pass

    run(work())


def test_a_slow_connection_may_take_longer_than_the_idle_timeout(home: Home) -> None:
    """The body takes many times the idle timeout, but always makes progress."""
    passed = 0.0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal passed
        head = await reader.readuntil(b"\r\n\r\n")
        left = length_in(head)
        while left:
            left -= len(await reader.read(1 << 16))
            wait(0.5)
            passed += 0.5
            await asyncio.sleep(0)
        writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")

    ship_to(home, talk, LinesPayload([b"x" * (32 << 20)]))

    assert passed > 240


def test_a_large_body_has_time_to_leave_the_system_buffers(home: Home) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        wait(100)
        writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")

    assert ship_to(home, talk, LinesPayload([b"x" * (8 << 20)])) == 8 << 20


def test_a_refusal_before_the_body_was_read_is_received(home: Home) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        while await reader.read(1 << 20):
            pass

    with pytest.raises(ChunkRefused, match="413"):
        ship_to(home, talk, LinesPayload([b"x" * (16 << 20)]))


def test_a_closed_port_is_unreachable(home: Home, free_port: FreePort) -> None:
    async def work() -> None:
        with pytest.raises(DestinationUnreachable, match="cannot be reached"):
            async with opened(settings(home, f"http://127.0.0.1:{free_port()}")):
                pass

    asyncio.run(work())


def test_an_unknown_host_name_is_unreachable(home: Home) -> None:
    async def work() -> None:
        with pytest.raises(DestinationUnreachable, match="unknown host name"):
            async with opened(settings(home, "http://nowhere.invalid")):
                pass

    asyncio.run(work())


def test_a_response_is_not_decompressed(home: Home) -> None:
    """A compression bomb stays small; its bytes are then not JSON."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_request(reader)
        assert b"accept-encoding: identity" in head.lower()
        writer.write(b"HTTP/1.1 422 No\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc")

    with pytest.raises(ChunkRefused, match="422: abc"):
        ship_to(home, talk)


@pytest.mark.hazard(29)
def test_a_cancellation_ends_all_requests_immediately(home: Home) -> None:
    """While it waits for a response, while it sends a body, and while it queries the server."""

    async def work() -> None:
        arrived, over = asyncio.Semaphore(0), asyncio.Event()

        async def wait_for_ever(_request: web.Request) -> web.Response:
            arrived.release()
            await over.wait()
            return web.Response()

        routes = {
            "GET /v1/capabilities": always(CAPABILITIES),
            "POST " + INGEST + "proxy": wait_for_ever,
            "GET " + INGEST + "proxy/batches/{id}": wait_for_ever,
            "GET " + INGEST + "proxy/watermark": wait_for_ever,
        }
        async with served(routes) as url, opened(settings(home, url)) as sink:
            tasks = [
                asyncio.create_task(sink.ship(chunk(), lines(), 0)),
                asyncio.create_task(sink.ship(chunk(10, 20), LinesPayload([b"x" * (64 << 20)]), 0)),
                asyncio.create_task(sink.has_chunk(chunk())),
                asyncio.create_task(sink.coverage(STREAM, "gw", "i")),
            ]
            for _ in tasks:
                await arrived.acquire()
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            over.set()

        assert all(isinstance(end, asyncio.CancelledError) for end in ended)

    asyncio.run(work())


def test_a_sink_can_be_closed_twice_and_after_a_failed_open(home: Home) -> None:
    async def work(url: str) -> None:
        async with opened(settings(home, url)) as sink:
            await sink.close()
        with pytest.raises(DestinationUnreachable):
            await sink.open()
        await sink.close()

    with PlainServer(None) as server:
        server.answer(404, under="/v1/capabilities")
        server.answer(500, under="/v1/capabilities")
        asyncio.run(work(server.url))
