"""The forward sink with a plain server and with our extensions, over real HTTP."""

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

from hypaware.export.sink import (
    ChunkRefused,
    DestinationDenied,
    DestinationUnreachable,
    LinesPayload,
    SinkSettings,
    StreamCoverage,
)
from hypaware.export.sinks.forward import FORWARD
from hypaware.home import Home
from hypaware.state.streams import StreamKey
from tests.support import rows
from tests.support.forward_servers import (
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
from tests.support.plain_server import INGEST, PlainServer, plain_server_process, read_store
from tests.support.rows import DATASET

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
    assert sent == len(server.received(INGEST)[0].body)


def test_headers_carry_the_identity_and_range_of_a_chunk(home: Home) -> None:
    async def work(url: str) -> None:
        async with opened(settings(home, url)) as sink:
            await sink.ship(chunk(7, 19, ODD), lines(), 5)

    with PlainServer(None) as server:
        asyncio.run(work(server.url))

    (request,) = server.received(INGEST)
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
def test_a_batch_with_a_lost_acknowledgement_is_stored_once(home: Home) -> None:
    async def work(url: str) -> None:
        async with opened(settings(home, url)) as sink:
            with pytest.raises(DestinationUnreachable, match="closed the connection"):
                await sink.ship(chunk(), lines(), 0)
            await sink.ship(chunk(), lines(), 0)

    with PlainServer(None) as server:
        server.cut_after_storing()
        asyncio.run(work(server.url))

    assert [request.status for request in server.received(INGEST)] == [None, 202]
    assert len(server.rows()) == 3


@pytest.mark.hazard(33)
def test_a_batch_is_stored_once_across_a_server_restart(home: Home, tmp_path: Path) -> None:
    store = tmp_path / "store"

    async def shipped(url: str) -> None:
        async with opened(settings(home, url, token_file=str(tmp_path / "token"))) as sink:
            await sink.ship(chunk(), lines(), 0)

    (tmp_path / "token").write_text("secret-of-this-test")
    with plain_server_process(store, token="secret-of-this-test") as first:
        asyncio.run(shipped(first.url))
        first.kill()
        with pytest.raises(DestinationUnreachable, match="cannot be reached"):
            asyncio.run(shipped(first.url))
    with plain_server_process(store, token="secret-of-this-test") as second:
        asyncio.run(shipped(second.url))

    assert [batch.id for batch in read_store(store)] == [chunk().id]


def test_a_batch_cut_before_it_was_stored_arrives_with_the_next_attempt(home: Home) -> None:
    async def work(url: str) -> None:
        async with opened(settings(home, url)) as sink:
            with pytest.raises(DestinationUnreachable):
                await sink.ship(chunk(), lines(), 0)
            await sink.ship(chunk(), lines(), 0)

    with PlainServer(None) as server:
        server.cut_before_storing()
        asyncio.run(work(server.url))

    assert len(server.rows()) == 3


def test_an_invalid_row_refuses_its_whole_batch(home: Home) -> None:
    async def work(url: str) -> None:
        async with opened(settings(home, url)) as sink:
            with pytest.raises(ChunkRefused, match="422 bad_row: line 3 is refused"):
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
def test_a_body_is_compressed_only_if_the_server_announces_it(
    home: Home, announced: list[str], encoding: str | None
) -> None:
    got: list[tuple[str | None, bytes, str]] = []

    async def take(request: web.Request) -> web.Response:
        headers = request.headers
        got.append((headers.get("Content-Encoding"), await request.read(), headers["X-Hyp-Content-Sha256"]))
        return web.Response(status=202)

    large = LinesPayload([b'{"text":"%s"}\n' % (b"words and words " * 20) for _ in range(4000)])

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
    # A few bytes are not compressed.
    assert got[1][:2] == (None, b"".join(lines().lines))
    assert sizes == [len(body) for _, body, _ in got]


def test_a_server_on_this_machine_gets_uncompressed_bodies(home: Home) -> None:
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


def test_a_server_with_extensions_reports_its_id_and_coverage(home: Home) -> None:
    requests: list[tuple[str, str, str]] = []

    async def has(request: web.Request) -> web.Response:
        requests.append((request.raw_path, request.headers["X-Hyp-Gateway"], request.headers["X-Hyp-Incarnation"]))
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
            assert await sink.coverage(ODD, GATEWAY, "before") == StreamCoverage(40, ((3, 4),))
            await sink.close()

    asyncio.run(work())

    assert requests[0] == (f"{INGEST}proxy/batches/{chunk(0, 10, ODD).id}", GATEWAY, INCARNATION)


@pytest.mark.parametrize("without", ["batches", "watermark"])
def test_only_announced_extensions_are_used(home: Home, without: str) -> None:
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
    ("answer", "expected"),
    [
        (always({"error": "no_data"}, 404), StreamCoverage(0)),
        (always({"error": "unknown_signal"}, 404), DestinationDenied),
        (always("Not Found", 404), DestinationDenied),
        (always({"last": None}), DestinationUnreachable),
        (always([]), DestinationUnreachable),
        (always({"error": "bad_request"}, 400), DestinationDenied),
        (always({"error": "oh"}, 500), DestinationUnreachable),
    ],
)
def test_an_empty_coverage_differs_from_a_failed_query(home: Home, answer: Any, expected: Any) -> None:
    async def work() -> None:
        routes = {"GET /v1/capabilities": always(CAPABILITIES), "GET " + INGEST + "proxy/watermark": answer}
        async with served(routes) as url, opened(settings(home, url)) as sink:
            if isinstance(expected, StreamCoverage):
                assert await sink.coverage(STREAM, GATEWAY, INCARNATION) == expected
            else:
                with pytest.raises(expected):
                    await sink.coverage(STREAM, GATEWAY, INCARNATION)

    asyncio.run(work())


def test_streams_are_sent_concurrently(home: Home) -> None:
    """All requests reach the server before it responds to the first one."""
    count = 20

    async def work() -> list[int]:
        all_requests = asyncio.Barrier(count)

        async def take(_request: web.Request) -> web.Response:
            await all_requests.wait()
            return web.Response(status=202)

        async with served({"POST " + INGEST + "proxy": take}) as url, opened(settings(home, url)) as sink:
            streams = [StreamKey("team", DATASET, f"source-{number}") for number in range(count)]
            return list(await asyncio.gather(*(sink.ship(chunk(stream=stream), lines(), 0) for stream in streams)))

    assert len(asyncio.run(work())) == count


def test_the_path_of_the_url_is_kept(home: Home) -> None:
    async def work() -> int:
        async with (
            served({"POST /team/a/v1/ingest/proxy": always({}, 202)}) as url,
            opened(settings(home, f"{url}/team/a/")) as sink,
        ):
            return int(await sink.ship(chunk(), lines(), 0))

    assert asyncio.run(work()) > 0


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
def test_a_url_has_one_canonical_spelling(home: Home, url: str, address: str) -> None:
    assert FORWARD.address(settings(home, url)) == address


def test_a_column_that_is_json_in_only_one_dataset_is_sent_as_text(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver parses text in JSON columns; text parsed as JSON would change."""
    from hypaware.model import datasets
    from hypaware.model.columns import Column, ColumnType
    from hypaware.model.datasets import Dataset

    other = Dataset(
        "other",
        "For tests.",
        (Column("status", ColumnType.STRING, ""), Column("at", ColumnType.TIMESTAMP, "")),
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


def test_the_address_of_a_forward_sink_needs_no_heavy_import() -> None:
    script = (
        "import sys\n"
        "from hypaware.export.sink import SinkSettings\n"
        "from hypaware.export.sinks.forward import FORWARD\n"
        "FORWARD.address(SinkSettings('team', None, {'url': 'http://h'}, (), '', ''))\n"
        "print(*({'aiohttp', 'pyarrow', 'pyspark', 'sqlalchemy', 'ssl'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
