"""Servers that say too much, too little, too slowly, or nothing at all; and stops in the middle."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from hypaware.export.payload import Lines
from hypaware.export.sink import Refused, Unreachable
from hypaware.home import Home
from tests.plain_server import INGEST, PlainServer
from tests.ports import FreePort
from tests.unit.export.forward.forwarding import (
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
    speaking,
    wait,
)

NOT_HERE = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(length_in(head))
    return head


def length_in(head: bytes) -> int:
    return next((int(line[16:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length: ")), 0)


def after_opening(talk: Talk) -> Talk:
    """A plain server, until something is posted."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(NOT_HERE)
        await talk(reader, writer)

    return answer


def shipping_to(home: Home, talk: Talk, payload: Lines | None = None) -> None:
    async def work() -> None:
        async with speaking(after_opening(talk)) as url, opened(settings(home, url)) as sink:
            await sink.ship(chunk(), payload or lines(), 0)

    run(work())


def test_an_answer_without_end_is_cut(home: Home) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 422 No\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            await writer.drain()

    with pytest.raises(Unreachable, match="incomplete or oversized response"):
        shipping_to(home, talk)


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
def test_an_answer_that_is_not_one_says_nothing_about_the_batch(home: Home, words: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(words)

    with pytest.raises(Unreachable):
        shipping_to(home, talk)


def test_an_answer_that_drops_byte_by_byte_comes_to_an_end(home: Home) -> None:
    """Each byte is a sign of life, so that a limit on silence alone would never end it."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 202 Accepted\r\nX-Slow: ")
        while True:
            writer.write(b"z")
            await writer.drain()
            wait(20)
            await asyncio.sleep(0)

    with pytest.raises(Unreachable, match="did not respond in time"):
        shipping_to(home, talk)


def test_a_server_that_stops_reading_is_given_up(home: Home) -> None:
    async def talk(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        wait(61)
        await asyncio.Event().wait()

    with pytest.raises(Unreachable, match="did not respond in time"):
        shipping_to(home, talk, Lines([b"x" * (64 << 20)]))


def test_a_server_that_never_answers_is_given_up(home: Home) -> None:
    async def talk(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        wait(61)
        await asyncio.Event().wait()

    with pytest.raises(Unreachable, match="did not respond in time"):
        shipping_to(home, talk)


def test_a_server_that_does_not_finish_its_handshake_is_given_up(home: Home) -> None:
    async def talk(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        wait(15)
        await asyncio.Event().wait()

    async def work() -> None:
        async with speaking(talk) as url:
            with pytest.raises(Unreachable, match="the connection timed out"):
                async with opened(settings(home, url.replace("http:", "https:"))):
                    pass

    run(work())


def test_a_slow_line_may_take_longer_than_any_limit_on_silence(home: Home) -> None:
    """The body takes many times the limit, and something of it moves all the time."""
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

    shipping_to(home, talk, Lines([b"x" * (32 << 20)]))

    assert passed > 240


def test_a_large_body_has_time_to_leave_the_buffers_of_the_system(home: Home) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        wait(100)
        writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")

    shipping_to(home, talk, Lines([b"x" * (8 << 20)]))


def test_a_refusal_before_the_body_was_read_is_heard(home: Home) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        while await reader.read(1 << 20):
            pass

    with pytest.raises(Refused, match="413"):
        shipping_to(home, talk, Lines([b"x" * (16 << 20)]))


def test_nobody_there_is_unreachable(home: Home, free_port: FreePort) -> None:
    async def work() -> None:
        with pytest.raises(Unreachable, match="cannot be reached"):
            async with opened(settings(home, f"http://127.0.0.1:{free_port()}")):
                pass

    asyncio.run(work())


def test_a_name_that_does_not_exist_is_unreachable(home: Home) -> None:
    async def work() -> None:
        with pytest.raises(Unreachable, match="unknown host name"):
            async with opened(settings(home, "http://nowhere.invalid")):
                pass

    asyncio.run(work())


def test_an_answer_is_not_unpacked(home: Home) -> None:
    """A bomb stays as small as it was sent; what it holds is not JSON then."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_request(reader)
        assert b"accept-encoding: identity" in head.lower()
        writer.write(b"HTTP/1.1 422 No\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc")

    with pytest.raises(Refused, match="422: abc"):
        shipping_to(home, talk)


@pytest.mark.hazard(29)
def test_a_stop_breaks_everything_at_once(home: Home) -> None:
    """While it waits for an answer, while a body is on its way, and while the server is asked."""

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
                asyncio.create_task(sink.ship(chunk(10, 20), Lines([b"x" * (64 << 20)]), 0)),
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


def test_closing_twice_or_after_a_failed_opening_is_no_trouble(home: Home) -> None:
    async def work(url: str) -> None:
        async with opened(settings(home, url)) as sink:
            await sink.close()
        with pytest.raises(Unreachable):
            await sink.open()
        await sink.close()

    with PlainServer(None) as server:
        server.answer(404, under="/v1/capabilities")
        server.answer(500, under="/v1/capabilities")
        asyncio.run(work(server.url))
