from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import brotli  # type: ignore[import-untyped]
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from hypaware.gateway.decode import DecompressionLimits, decode_exchange, decompress
from hypaware.gateway.exchange import Headers, RecordedBody, RecordedExchange, SseEvent

START = datetime(2026, 11, 15, 12, tzinfo=UTC)
STREAM = b'event: message_start\ndata: {"type": "message_start"}\n\nevent: message_stop\ndata: {"type": "message_stop"}'
JSON: Headers = (("Content-Type", "application/json"),)
EVENT_STREAM: Headers = (("content-type", "text/event-stream; charset=utf-8"),)


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": lambda data: bytes(brotli.compress(data, quality=4)),
    "zstd": zstd.compress,
}
BOMBS: dict[str, Callable[[bytes], bytes]] = {**PACKERS, "deflate": raw_deflate}


def recording(
    response: bytes | Path | RecordedBody = b"",
    response_headers: Headers = (),
    *,
    request: bytes = b"",
    request_headers: Headers = (),
    error: str | None = None,
    path: str = "/v1/messages?beta=true",
) -> RecordedExchange:
    if isinstance(response, Path):
        response = RecordedBody(response, response.stat().st_size)
    elif isinstance(response, bytes):
        response = RecordedBody(response, len(response))
    return RecordedExchange(
        exchange_id="e1",
        started_at=START,
        ended_at=START + timedelta(seconds=2),
        first_byte_ms=120,
        upstream="anthropic",
        provider="anthropic",
        client_name="claude",
        method="POST",
        path=path,
        request_headers=request_headers,
        request=RecordedBody(request, len(request)),
        status=200,
        response_headers=response_headers,
        response=response,
        error=error,
    )


def compress(data: bytes, *encodings: str) -> tuple[bytes, Headers]:
    for name in encodings:
        data = PACKERS[name](data)
    return data, (*EVENT_STREAM, ("Content-Encoding", ", ".join(encodings)))


def test_decoding_keeps_the_metadata_of_the_exchange() -> None:
    found = decode_exchange(recording(request=b'{"model": "m"}', request_headers=JSON))

    assert (found.exchange_id, found.upstream, found.provider, found.client_name) == (
        "e1",
        "anthropic",
        "anthropic",
        "claude",
    )
    assert (found.started_at, found.ended_at, found.first_byte_ms) == (START, START + timedelta(seconds=2), 120)
    assert (found.method, found.path, found.status) == ("POST", "/v1/messages", 200)
    assert (found.request, found.request_text, found.request_bytes) == ({"model": "m"}, '{"model": "m"}', 14)
    assert (found.response, found.response_text, found.response_bytes) == (None, "", 0)
    assert (found.error, found.events) == (None, None)


@pytest.mark.parametrize(
    "encodings",
    [(), ("gzip",), ("x-gzip",), ("deflate",), ("br",), ("zstd",), ("gzip", "br"), ("zstd", "deflate", "gzip")],
    ids=lambda names: "+".join(names) or "plain",
)
def test_every_encoding_is_decompressed_including_nested_ones(encodings: tuple[str, ...]) -> None:
    found = decode_exchange(recording(*compress(STREAM * 500, *encodings)))

    assert found.response_text == (STREAM * 500).decode()
    assert found.error is None


def test_raw_deflate_without_a_zlib_frame_is_decompressed() -> None:
    found = decode_exchange(recording(raw_deflate(STREAM), (*EVENT_STREAM, ("content-encoding", "deflate"))))

    assert (found.response_text, found.error) == (STREAM.decode(), None)


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_several_gzip_members_form_one_body(name: str) -> None:
    pack = PACKERS[name]
    found = decode_exchange(
        recording(pack(STREAM[:40]) + pack(STREAM[40:]), (*EVENT_STREAM, ("content-encoding", name)))
    )

    assert (found.response_text, found.error) == (STREAM.decode(), None)


def test_a_body_in_a_file_is_read_in_blocks(tmp_path: Path) -> None:
    data, headers = compress(STREAM * 5000, "gzip")
    file = tmp_path / "body"
    file.write_bytes(data)

    assert decode_exchange(recording(file, headers)).response_text == (STREAM * 5000).decode()


@pytest.mark.hazard(60)
@pytest.mark.parametrize("name", sorted(BOMBS))
def test_a_decompression_bomb_stops_at_the_limit_with_a_reason(name: str) -> None:
    bounds = DecompressionLimits(size=8 << 20, ratio=10**9)
    bomb = BOMBS[name](bytes(96 << 20))

    tracemalloc.start()
    found = decode_exchange(recording(bomb, (*JSON, ("content-encoding", name))), limits=bounds)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert (found.response_text, found.response) == (None, None)
    assert found.error == "response larger than 8 MiB"
    assert found.response_bytes == len(bomb)
    assert peak < 4 * bounds.size


@pytest.mark.hazard(60)
def test_a_nested_decompression_bomb_is_detected_by_its_ratio() -> None:
    bomb = gzip.compress(gzip.compress(bytes(64 << 20)))

    found = decode_exchange(recording(bomb, (*JSON, ("content-encoding", "gzip, gzip"))))

    assert (found.response_text, found.error) == (None, "response unpacks to more than 1000 times its size")


@pytest.mark.parametrize("name", sorted(set(PACKERS) - {"x-gzip"}))
@given(cut=st.integers(0, 10_000), seed=st.binary(max_size=30))
def test_a_truncated_compressed_body_yields_the_data_before_the_truncation(name: str, cut: int, seed: bytes) -> None:
    plain = bytes(STREAM * 20) + seed
    whole = PACKERS[name](plain)
    part = whole[: cut % len(whole)]

    data, problem = decompress([part], [name], DecompressionLimits())

    assert plain.startswith(bytes(data))
    assert problem is None if not part else problem is not None or bytes(data) == plain


@pytest.mark.parametrize("name", sorted(PACKERS))
@given(st.binary(max_size=300))
def test_no_input_bytes_make_decoding_fail(name: str, data: bytes) -> None:
    found = decode_exchange(recording(data, (("content-encoding", name),), request=data, request_headers=JSON))

    assert (found.request_bytes, found.response_bytes) == (len(data), len(data))


def test_the_error_lists_how_the_exchange_ended_and_the_problems_of_its_bodies() -> None:
    data, headers = compress(STREAM * 50, "gzip")

    found = decode_exchange(recording(data[:-9], headers, error="client_abort"))

    assert found.error == "client_abort; response gzip: ends early"
    assert found.events is not None
    assert found.events[0] == SseEvent("message_start", {"type": "message_start"})


def test_an_unknown_encoding_is_reported_and_the_exchange_is_kept() -> None:
    found = decode_exchange(recording(b"xyz", (*JSON, ("content-encoding", "compress"))))

    assert (found.response_text, found.response_bytes) == (None, 3)
    assert found.error == "response encoding compress is unknown"


@pytest.mark.hazard(56)
def test_event_data_is_parsed_as_json_and_the_last_event_needs_no_blank_line() -> None:
    found = decode_exchange(recording(b'data: {"a": 1}\n\ndata: [DONE]', EVENT_STREAM))

    assert found.events == (SseEvent("message", {"a": 1}), SseEvent("message", "[DONE]"))
    assert found.response is None


@pytest.mark.parametrize("headers", [(), (("content-type", "text/plain"),), (("content-type", "text/event-stream"),)])
def test_an_event_stream_is_detected_by_content_type_or_content(headers: Headers) -> None:
    found = decode_exchange(recording(STREAM, headers))

    assert found.events is not None
    assert [event.type for event in found.events] == ["message_start", "message_stop"]


def test_a_json_body_is_parsed_whatever_its_content_type() -> None:
    assert decode_exchange(recording(b'{"data": 1}', (("content-type", "text/plain"),))).response == {"data": 1}


@pytest.mark.hazard(60)
@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b'{"a": NaN}', '{"a": NaN}'),
        (b'{"a": "\xff"}', '{"a": "\ufffd"}'),
        (b'{"a": "\\ud800"}', '{"a": "\\ud800"}'),
        (b"[" * 100_000, "[" * 100_000),
        (b'{"a": ', '{"a": '),
    ],
    ids=["not a number", "no UTF-8", "half a character", "deep", "cut"],
)
def test_a_body_that_is_not_json_stays_text(data: bytes, text: str) -> None:
    found = decode_exchange(recording(data, JSON, request=data, request_headers=JSON))

    assert (found.response_text, found.response, found.request_text, found.request) == (text, None, text, None)
    assert found.error is None


def test_only_the_size_of_a_binary_body_is_kept() -> None:
    found = decode_exchange(recording(b"\x89PNG\xff\x00", (("content-type", "image/png"),)))

    assert (found.response_text, found.response, found.response_bytes, found.error) == (None, None, 6, None)


@pytest.mark.hazard(59)
def test_headers_and_url_are_redacted_and_the_run_id_is_kept() -> None:
    secret = "sk-ant-REDACTED"
    headers = (("X-Api-Key", secret), ("Authorization", f"Bearer {secret}"), ("x-hyp-dev-run-id", "bf-1"))

    found = decode_exchange(recording(request_headers=headers, path=f"/v1/messages?key={secret}"))

    assert found.path == "/v1/messages"
    shown = json.dumps([found.query, dict(found.request_headers), dict(found.metadata)])
    assert secret[:20] not in shown
    assert "x-api-key" in found.request_headers
    assert found.metadata == {"dev_run_id": "bf-1"}


def test_a_compressed_request_is_decompressed() -> None:
    headers = (*JSON, ("content-encoding", "zstd"))
    found = decode_exchange(
        recording(request=zstd.compress(json.dumps({"model": "m"}).encode()), request_headers=headers)
    )

    assert found.request == {"model": "m"}
