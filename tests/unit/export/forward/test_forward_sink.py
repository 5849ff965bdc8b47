"""Chunks to a plain server and to one with our extensions, over real HTTP."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from aiohttp import web

from hypaware.export.payload import Lines
from hypaware.export.sink import Delivered, Denied, Refused, SinkSettings, Unreachable
from hypaware.export.sinks.forward import FORWARD
from hypaware.home import Home
from hypaware.state.stream_key import StreamKey
from tests import rows
from tests.plain_server import INGEST, PlainServer, plain_server_process, read_store
from tests.rows import DATASET
from tests.unit.export.forward.forwarding import (
    CAPABILITIES,
    GATEWAY,
    INCARNATION,
    STREAM,
    always,
    chunk,
    lines,
    opened,
    served,
    settings,
    stored,
    table,
)

ODD = StreamKey("team", DATASET, "a b/é%+&=?#\n")
ODD_ESCAPED = "a%20b%2F%C3%A9%25%2B%26%3D%3F%23%0A"


def test_rows_arrive_at_a_plain_server_under_the_chunks_id(home: Home) -> None:
    coerced = stored(rows.rows(20))

    async def work(url: str) -> int:
        async with opened(settings(home, url)) as sink:
            return int(await sink.ship(chunk(), sink.encode(table(coerced)), 0))

    with PlainServer(None) as server:
        sent = asyncio.run(work(server.url))

    assert stored(server.rows()) == coerced
    assert [batch.id for batch in server.batches] == [chunk().id]
    assert sent == len(server.asked(INGEST)[0].body)


def test_a_chunk_says_whose_it_is_and_what_it_covers(home: Home) -> None:
    async def work(url: str) -> None:
        async with opened(settings(home, url)) as sink:
            await sink.ship(chunk(7, 19, ODD), lines(), 5)

    with PlainServer(None) as server:
        asyncio.run(work(server.url))

    (request,) = server.asked(INGEST)
    assert request.headers["Content-Type"] == "application/x-ndjson"
    assert "Content-Encoding" not in request.headers
    assert {name: value for name, value in request.headers.items() if name.startswith("X-Hyp-")} == {
        "X-Hyp-Batch-Id": chunk(7, 19, ODD).id,
        "X-Hyp-Gateway": GATEWAY,
        "X-Hyp-Incarnation": INCARNATION,
        "X-Hyp-Source": ODD_ESCAPED,
        "X-Hyp-Seq-Range": "7-19",
        "X-Hyp-Acked-To": "5",
        "X-Hyp-Content-Sha256": hashlib.sha256(b"".join(lines().lines)).hexdigest(),
        "X-Hyp-Host": quote(socket.gethostname(), safe=""),
    }


@pytest.mark.hazard(33)
def test_a_batch_whose_acknowledgement_was_lost_is_stored_once(home: Home) -> None:
    async def work(url: str) -> None:
        async with opened(settings(home, url)) as sink:
            with pytest.raises(Unreachable, match="closed the connection"):
                await sink.ship(chunk(), lines(), 0)
            await sink.ship(chunk(), lines(), 0)

    with PlainServer(None) as server:
        server.cut_after_storing()
        asyncio.run(work(server.url))

    assert [request.status for request in server.asked(INGEST)] == [None, 202]
    assert len(server.rows()) == 3


@pytest.mark.hazard(33)
def test_a_batch_is_stored_once_though_the_server_was_killed_and_started_again(home: Home, tmp_path: Path) -> None:
    store = tmp_path / "store"

    async def shipped(url: str) -> None:
        async with opened(settings(home, url, token_file=str(tmp_path / "token"))) as sink:
            await sink.ship(chunk(), lines(), 0)

    (tmp_path / "token").write_text("secret-of-this-test")
    with plain_server_process(store, token="secret-of-this-test") as first:
        asyncio.run(shipped(first.url))
        first.kill()
        with pytest.raises(Unreachable, match="cannot be reached"):
            asyncio.run(shipped(first.url))
    with plain_server_process(store, token="secret-of-this-test") as second:
        asyncio.run(shipped(second.url))

    assert [batch.id for batch in read_store(store)] == [chunk().id]


def test_a_batch_that_was_cut_before_it_was_stored_arrives_with_the_next_try(home: Home) -> None:
    async def work(url: str) -> None:
        async with opened(settings(home, url)) as sink:
            with pytest.raises(Unreachable):
                await sink.ship(chunk(), lines(), 0)
            await sink.ship(chunk(), lines(), 0)

    with PlainServer(None) as server:
        server.cut_before_storing()
        asyncio.run(work(server.url))

    assert len(server.rows()) == 3


def test_a_bad_row_is_refused_with_its_whole_batch(home: Home) -> None:
    async def work(url: str) -> None:
        async with opened(settings(home, url)) as sink:
            with pytest.raises(Refused, match="422 bad_row: line 3 is refused"):
                await sink.ship(chunk(), lines(), 0)
            await sink.ship(chunk(0, 1), lines(2), 0)

    with PlainServer(None) as server:
        server.refuse(lambda row: row["n"] == 2)
        asyncio.run(work(server.url))

    assert server.rows() == [{"n": 0}, {"n": 1}]


def unzstd(body: bytes) -> bytes:
    with pa.input_stream(pa.BufferReader(body), compression="zstd") as stream:
        return bytes(stream.read())


@pytest.mark.parametrize(
    ("announced", "encoding"), [(["gzip", "zstd"], "zstd"), (["gzip"], "gzip"), (["br"], None), ([], None)]
)
def test_a_body_is_compressed_only_as_the_server_announces(
    home: Home, announced: list[str], encoding: str | None
) -> None:
    got: list[tuple[str | None, bytes, str]] = []

    async def take(request: web.Request) -> web.Response:
        headers = request.headers
        got.append((headers.get("Content-Encoding"), await request.read(), headers["X-Hyp-Content-Sha256"]))
        return web.Response(status=202)

    large = Lines([b'{"text":"%s"}\n' % (b"words and words " * 20) for _ in range(4000)])

    async def work() -> list[int]:
        routes = {
            "GET /v1/capabilities": always({**CAPABILITIES, "encodings": announced}),
            "POST " + INGEST + "proxy": take,
        }
        async with served(routes) as url, opened(settings(home, url), compress=True) as sink:
            return [await sink.ship(chunk(), sent, 0) for sent in (large, lines())]

    sizes = asyncio.run(work())

    unpack: dict[str | None, Any] = {"gzip": gzip.decompress, "zstd": unzstd}
    whole = b"".join(large.lines)
    assert got[0][0] == encoding
    assert unpack.get(encoding, bytes)(got[0][1]) == whole
    assert got[0][2] == hashlib.sha256(whole).hexdigest()
    assert (len(got[0][1]) < len(whole) / 2) == (encoding is not None)
    # A few bytes are not worth it.
    assert got[1][:2] == (None, b"".join(lines().lines))
    assert sizes == [len(body) for _, body, _ in got]


def test_a_server_on_this_machine_gets_bodies_as_they_are(home: Home) -> None:
    encodings: list[str | None] = []

    async def take(request: web.Request) -> web.Response:
        encodings.append(request.headers.get("Content-Encoding"))
        return web.Response(status=202)

    async def work() -> None:
        routes = {"GET /v1/capabilities": always(CAPABILITIES), "POST " + INGEST + "proxy": take}
        async with served(routes) as url, opened(settings(home, url)) as sink:
            await sink.ship(chunk(), lines(10_000), 0)

    asyncio.run(work())

    assert encodings == [None]


def test_a_server_with_extensions_says_who_it_is_and_what_it_has(home: Home) -> None:
    asked: list[tuple[str, str, str]] = []

    async def has(request: web.Request) -> web.Response:
        asked.append((request.raw_path, request.headers["X-Hyp-Gateway"], request.headers["X-Hyp-Incarnation"]))
        there = request.match_info["id"] == chunk(0, 10, ODD).id
        return web.Response(status=200) if there else web.json_response({"error": "not_found"}, status=404)

    async def watermark(request: web.Request) -> web.Response:
        assert request.query == {"source": ODD.source, "incarnation": "before"}
        assert (request.headers["X-Hyp-Gateway"], request.headers["X-Hyp-Incarnation"]) == (GATEWAY, "before")
        return web.json_response({"last": 40, "holes": [[3, 4]]})

    async def work() -> None:
        routes = {
            "GET /v1/capabilities": always(CAPABILITIES),
            "GET " + INGEST + "proxy/batches/{id}": has,
            "GET " + INGEST + "proxy/watermark": watermark,
        }
        async with served(routes) as url:
            sink = FORWARD.make(settings(home, url))
            destination = await sink.open()
            assert (destination.address, destination.id) == (url, "srv-1")
            assert await sink.has_chunk(chunk(0, 10, ODD)) is True
            assert await sink.has_chunk(chunk(10, 20, ODD)) is False
            assert await sink.coverage(ODD, GATEWAY, "before") == Delivered(40, ((3, 4),))
            await sink.close()

    asyncio.run(work())

    assert asked[0] == (f"{INGEST}proxy/batches/{chunk(0, 10, ODD).id}", GATEWAY, INCARNATION)


@pytest.mark.parametrize("without", ["batches", "watermark"])
def test_only_what_is_announced_is_asked(home: Home, without: str) -> None:
    async def work() -> None:
        document = {**CAPABILITIES, "extensions": [name for name in ("batches", "watermark") if name != without]}
        routes = {
            "GET /v1/capabilities": always(document),
            "GET " + INGEST + "proxy/batches/{id}": always({}),
            "GET " + INGEST + "proxy/watermark": always({"last": 1}),
        }
        async with served(routes) as url, opened(settings(home, url)) as sink:
            assert (await sink.has_chunk(chunk()) is None) == (without == "batches")
            assert (await sink.coverage(STREAM, GATEWAY, INCARNATION) is None) == (without == "watermark")

    asyncio.run(work())


@pytest.mark.parametrize(
    ("answer", "meant"),
    [
        (always({"error": "no_data"}, 404), Delivered(0)),
        (always({"error": "unknown_signal"}, 404), Denied),
        (always("Not Found", 404), Denied),
        (always({"last": None}), Unreachable),
        (always([]), Unreachable),
        (always({"error": "bad_request"}, 400), Denied),
        (always({"error": "oh"}, 500), Unreachable),
    ],
)
def test_nothing_there_is_not_the_same_as_no_answer(home: Home, answer: Any, meant: Any) -> None:
    async def work() -> None:
        routes = {"GET /v1/capabilities": always(CAPABILITIES), "GET " + INGEST + "proxy/watermark": answer}
        async with served(routes) as url, opened(settings(home, url)) as sink:
            if isinstance(meant, Delivered):
                assert await sink.coverage(STREAM, GATEWAY, INCARNATION) == meant
            else:
                with pytest.raises(meant):
                    await sink.coverage(STREAM, GATEWAY, INCARNATION)

    asyncio.run(work())


def test_streams_go_side_by_side(home: Home) -> None:
    """All of them are at the server before the first one is answered."""
    count = 20

    async def work() -> None:
        everybody = asyncio.Barrier(count)

        async def take(_request: web.Request) -> web.Response:
            await everybody.wait()
            return web.Response(status=202)

        async with served({"POST " + INGEST + "proxy": take}) as url, opened(settings(home, url)) as sink:
            streams = [StreamKey("team", DATASET, f"source-{number}") for number in range(count)]
            await asyncio.gather(*(sink.ship(chunk(stream=stream), lines(), 0) for stream in streams))

    asyncio.run(work())


def test_the_path_of_the_url_is_kept(home: Home) -> None:
    async def work() -> None:
        async with (
            served({"POST /team/a/v1/ingest/proxy": always({}, 202)}) as url,
            opened(settings(home, f"{url}/team/a/")) as sink,
        ):
            await sink.ship(chunk(), lines(), 0)

    asyncio.run(work())


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://Host.Example:443/", "https://host.example"),
        ("HTTP://host.example:80", "http://host.example"),
        ("http://host.example.:8080/A/b/", "http://host.example:8080/A/b"),
        ("https://user@host.example:80", "https://host.example:80"),
        ("http://[::1]:80", "http://[::1]"),
        ("http://[::1]:9000/x", "http://[::1]:9000/x"),
    ],
)
def test_an_address_has_one_spelling(home: Home, url: str, address: str) -> None:
    assert FORWARD.address(settings(home, url)) == address


def test_a_column_that_is_json_in_one_dataset_and_text_in_another_travels_as_text(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receiver reads JSON columns from text as well; text that was read as JSON would be another text."""
    from hypaware.model import datasets
    from hypaware.model.columns import Column, Type
    from hypaware.model.datasets import Dataset

    other = Dataset(
        "other",
        "For tests.",
        (Column("status", Type.STRING, ""), Column("at", Type.TIMESTAMP, "")),
        "at",
        ("status",),
        "status",
    )
    real = datasets.get
    monkeypatch.setattr(datasets, "get", lambda name: other if name == "other" else real(name))
    made = SinkSettings("team", home, {"url": "http://localhost"}, (DATASET, "other"), GATEWAY, INCARNATION)
    coerced = stored([rows.row(1, status={"tool_status": "success"}, tool_args={"a": 1})])

    (line,) = FORWARD.make(made).encode(table(coerced)).lines  # type: ignore[attr-defined]

    assert b'"status":"{\\"tool_status\\":\\"success\\"}"' in line
    assert b'"tool_args":{"a":1}' in line


def test_the_address_of_a_sink_is_known_without_anything_heavy() -> None:
    script = (
        "import sys; from hypaware.export.sinks.forward import FORWARD; from hypaware.export.sink import SinkSettings\n"
        "FORWARD.address(SinkSettings('team', None, {'url': 'http://h'}, (), '', ''))\n"
        "print(*({'aiohttp', 'pyarrow', 'pyspark', 'sqlalchemy', 'ssl'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
