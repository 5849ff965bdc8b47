"""The exception for each kind of response."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from typing import Any

import pytest

from hypaware.export.sink import (
    ChunkRefused,
    DestinationBusy,
    DestinationDenied,
    DestinationUnreachable,
    RangeOverlap,
    StreamCoverage,
)
from hypaware.export.sinks.forward import http_client
from hypaware.home import Home
from hypaware.state.streams import StreamKey
from tests.support.forward_servers import CAPABILITIES, STREAM, always, chunk, lines, opened, served, settings
from tests.support.plain_server import INGEST, PlainServer


def shipped(server: PlainServer, home: Home, stream: StreamKey = STREAM) -> int:
    async def work() -> int:
        async with opened(settings(home, server.url)) as sink:
            return int(await sink.ship(chunk(stream=stream), lines(), 0))

    return asyncio.run(work())


def answered(home: Home, status: int, body: bytes = b"", **values: str) -> BaseException | None:
    """Build a response; `values` are headers, with _ for -."""
    with PlainServer(None) as server:
        server.answer(status, body=body, headers={name.replace("_", "-"): value for name, value in values.items()})
        try:
            shipped(server, home)
        except Exception as error:
            return error
        finally:
            assert server.rows() == []
    return None


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_a_batch_is_accepted_with_or_without_a_body(home: Home, status: int) -> None:
    assert answered(home, status) is None
    assert answered(home, status, b"" if status == 204 else b'{"stored":3}', Content_Type="application/json") is None


@pytest.mark.parametrize("status", [400, 409, 413, 422])
def test_a_refused_batch_has_the_servers_reason(home: Home, status: int) -> None:
    error = answered(home, status, b'{"error":"bad_row","detail":"line 2: no role"}')

    assert isinstance(error, ChunkRefused)
    assert str(error) == f"the server responded with {status} bad_row: line 2: no role"


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"", "422"),
        (b'{"error":"bad_row"}', "422 bad_row"),
        (b'{"error":"bad_row","line":3}', '422 bad_row: {"line":3}'),
        (b'{"error":"bad_row","line":3,"reason":"no role"}', "422 bad_row: line 3: no role"),
        (b'{"error":17,"message":"no"}', "422: no"),
        (b'{"error":"No Such Thing"}', '422: {"error":"No Such Thing"}'),
        (b"[1,2]", "422: [1,2]"),
        (b"not \x1b[2J\xff json\n\n at all", "422: not [2J\ufffd json at all"),
        (b'{"error":"bad_row","detail":"' + b"x" * 5000 + b'"}', "422 bad_row: " + "x" * 287),
    ],
)
def test_server_text_is_shown_short_and_printable(home: Home, body: bytes, shown: str) -> None:
    assert str(answered(home, 422, body)) == f"the server responded with {shown}"


@pytest.mark.parametrize("status", [408, 425, 500, 502, 504, 507, 599])
def test_a_server_error_says_nothing_about_the_batch(home: Home, status: int) -> None:
    assert isinstance(answered(home, status), DestinationUnreachable)


@pytest.mark.parametrize("status", [402, 403, 404, 405, 410, 415, 426, 431])
def test_errors_that_need_a_user_are_denied_by_the_server(home: Home, status: int) -> None:
    error = answered(home, status, b'{"error":"some_kind"}')

    assert isinstance(error, DestinationDenied)
    assert error.kind == "some_kind"
    assert str(status) in str(error)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_its_target_is_named(home: Home, status: int) -> None:
    with PlainServer(None) as elsewhere, PlainServer(None) as server:
        server.answer(status, headers={"Location": f"{elsewhere.url}/v1/ingest/proxy"})

        with pytest.raises(DestinationDenied, match=elsewhere.url) as denied:
            shipped(server, home)

    assert denied.value.kind == "redirected"
    assert elsewhere.requests == []


def test_an_unknown_dataset_is_named(home: Home) -> None:
    with (
        PlainServer(None) as server,
        pytest.raises(DestinationDenied, match="does not accept the dataset other_things") as denied,
    ):
        shipped(server, home, StreamKey("team", "other_things", "x"))

    assert denied.value.kind == "unknown_signal"
    assert "sinks.team.datasets" in str(denied.value.repair)


@pytest.mark.parametrize("status", [200, 202, 404, 503])
def test_an_html_page_is_never_an_acknowledgement(home: Home, status: int) -> None:
    """A login page of a network or a proxy responds with 200 to everything."""
    error = answered(home, status, b"<html>Welcome", Content_Type="text/html; charset=utf-8")

    assert isinstance(error, DestinationUnreachable | DestinationDenied | DestinationBusy)
    assert "an HTML page" in str(error)


@pytest.mark.hazard(29)
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("values", "seconds"),
    [("7", 7.0), ("1.5", 1.5), ("0", None), ("-3", None), ("soon", None), ("", None), ("nan", None), ("1e400", 1e9)],
)
def test_only_a_positive_retry_after_is_respected(home: Home, status: int, values: str, seconds: float | None) -> None:
    error = answered(home, status, Retry_After=values)

    assert isinstance(error, DestinationBusy)
    assert error.after == seconds


def test_header_names_are_case_insensitive(home: Home) -> None:
    error = answered(home, 503, retry_after="9")

    assert isinstance(error, DestinationBusy)
    assert error.after == 9


@pytest.mark.hazard(29)
def test_a_retry_after_date_is_relative_to_the_servers_clock() -> None:
    """The local clock may be wrong by hours."""
    noon = 1_800_000_000
    dates = {"date": formatdate(noon, usegmt=True), "retry-after": formatdate(noon + 90, usegmt=True)}

    assert http_client.retry_after(dates) == 90
    assert http_client.retry_after({**dates, "retry-after": formatdate(noon, usegmt=True)}) is None
    assert http_client.retry_after({**dates, "retry-after": formatdate(noon - 90, usegmt=True)}) is None
    assert http_client.retry_after({"retry-after": formatdate(time.time() + 10_000, usegmt=True)}) is not None
    assert http_client.retry_after({"retry-after": "Fri, 99 Foo 2026 99:99:99 GMT"}) is None


@pytest.mark.parametrize(
    ("body", "covered"),
    [
        ({"covered_to": 7}, StreamCoverage(7)),
        ({"covered_to": 0}, StreamCoverage(0)),
        ({"covered_to": "9007199254740993"}, StreamCoverage(9007199254740993)),
        ({"covered_to": 9, "holes": [[1, 2], ["3", 5]]}, StreamCoverage(9, ((1, 2), (3, 5)))),
        ({"covered_to": 9, "holes": None}, StreamCoverage(9)),
    ],
)
def test_an_overlap_reports_the_servers_coverage(home: Home, body: dict[str, Any], covered: StreamCoverage) -> None:
    async def work() -> None:
        route = always({"error": "range_overlap", **body}, 409)
        async with served({"POST /v1/ingest/{signal}": route}) as url, opened(settings(home, url)) as sink:
            with pytest.raises(RangeOverlap) as overlap:
                await sink.ship(chunk(), lines(), 0)
            assert overlap.value.covered == covered

    asyncio.run(work())


@pytest.mark.parametrize(
    "body",
    [{}, {"covered_to": -1}, {"covered_to": True}, {"covered_to": 1.5}, {"covered_to": "x"}, {"covered_to": 2**63}]
    + [{"covered_to": 9, "holes": holes} for holes in ([1], [[1]], [[2, 1]], [[1, 1]], [[1, 12]], "xy", 7, [["a", 2]])],
)
def test_an_invalid_overlap_does_not_drop_rows(home: Home, body: dict[str, Any]) -> None:
    async def work() -> None:
        route = always({"error": "range_overlap", **body}, 409)
        async with served({"POST /v1/ingest/{signal}": route}) as url, opened(settings(home, url)) as sink:
            with pytest.raises(DestinationUnreachable, match="without a valid covered_to"):
                await sink.ship(chunk(), lines(), 0)

    asyncio.run(work())


@pytest.mark.parametrize("status", [404, 405, 501, 400, 403, 301])
def test_a_server_without_capabilities_is_a_plain_server(home: Home, status: int) -> None:
    async def work() -> None:
        with PlainServer(None) as server:
            server.answer(status, under="/v1/capabilities", headers={"Location": "/docs"})
            async with opened(settings(home, server.url)) as sink:
                assert await sink.has_chunk(chunk()) is None
                assert await sink.coverage(STREAM, "gw", "i") is None
            assert [request.path for request in server.received(INGEST)] == []

    asyncio.run(work())


@pytest.mark.parametrize(
    ("status", "kind"),
    [(429, DestinationBusy), (503, DestinationBusy), (500, DestinationUnreachable), (502, DestinationUnreachable)],
)
def test_a_failing_server_is_not_treated_as_a_plain_one(home: Home, status: int, kind: type[Exception]) -> None:
    async def work() -> None:
        with PlainServer(None) as server:
            server.answer(status, under="/v1/capabilities")
            with pytest.raises(kind):
                async with opened(settings(home, server.url)):
                    pass

    asyncio.run(work())


@pytest.mark.parametrize(
    "document",
    [[], "x", {}, {**CAPABILITIES, "api": 2}, {**CAPABILITIES, "api": "1"}, {**CAPABILITIES, "extensions": {}}],
)
def test_invalid_capabilities_mean_a_plain_server(home: Home, document: Any) -> None:
    async def work() -> None:
        async with served({"GET /v1/capabilities": always(document)}) as url, opened(settings(home, url)) as sink:
            assert await sink.has_chunk(chunk()) is None
            assert (sink.limits.rows, sink.limits.bytes) == (5000, 4 << 20)

    asyncio.run(work())


@pytest.mark.parametrize(
    ("limits", "rows", "size"),
    [
        ({"max_rows": 100, "max_body_bytes": 1000}, 100, 1000),
        ({"max_rows": 10**9, "max_body_bytes": 10**12}, 5000, 4 << 20),
        ({"max_rows": 0, "max_body_bytes": -1}, 5000, 4 << 20),
        ({"max_rows": "9", "max_body_bytes": True}, 5000, 4 << 20),
        (None, 5000, 4 << 20),
    ],
)
def test_the_smaller_limit_applies(home: Home, limits: Any, rows: int, size: int) -> None:
    async def work() -> None:
        document = {**CAPABILITIES, "limits": limits}
        async with served({"GET /v1/capabilities": always(document)}) as url, opened(settings(home, url)) as sink:
            assert (sink.limits.rows, sink.limits.bytes) == (rows, size)

    asyncio.run(work())
