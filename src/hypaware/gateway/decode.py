"""Decoding of recorded exchanges: decompress and parse the bodies, redact the headers and the URL.

Malformed input never raises. A body that cannot be decompressed or exceeds the limits is left out, and `error` says
why. A body that is not JSON stays text; a body that is not text is None. `error` holds why the exchange ended early,
then the problems with its bodies: `client_abort; response gzip: ends early`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import brotli  # type: ignore[import-untyped]
import orjson
from backports import zstd

from hypaware.gateway.exchange import DecodedExchange, Headers, RecordedBody, RecordedExchange, SseEvent
from hypaware.privacy.redact import redact_headers, redact_query

_FIELD_PREFIXES = ("event:", "data:", "id:", "retry:", ":")
_RUN_ID_HEADER = "x-hyp-dev-run-id"
_TEXT_TYPES = ("text/", "application/json", "application/x-ndjson", "+json", "application/xml", "urlencoded")
_STEP = 1 << 16
_MAX_LAYERS = 4
# Larger windows are rejected, as browsers do.
_ZSTD_WINDOW_LOG = 23
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_GZIP_MAGIC = b"\x1f\x8b"
Blocks = Iterable[bytes]
_Decoder = Callable[[Blocks], Iterator[bytes]]


def decode_exchange(recording: RecordedExchange, limits: DecompressionLimits | None = None) -> DecodedExchange:
    limits = limits or DecompressionLimits()
    request = _read_body(recording.request, recording.request_headers, limits, may_stream=False)
    response = _read_body(recording.response, recording.response_headers, limits, may_stream=True)
    problems = (
        recording.error,
        request.problem and f"request {request.problem}",
        response.problem and f"response {response.problem}",
    )
    run_id = _get_header(recording.request_headers, _RUN_ID_HEADER)
    path, query = redact_query(recording.path)
    return DecodedExchange(
        exchange_id=recording.exchange_id,
        started_at=recording.started_at,
        ended_at=recording.ended_at,
        first_byte_ms=recording.first_byte_ms,
        upstream=recording.upstream,
        provider=recording.provider,
        client_name=recording.client_name,
        method=recording.method,
        path=path,
        query=query,
        status=recording.status,
        request_headers=redact_headers(recording.request_headers),
        response_headers=redact_headers(recording.response_headers),
        request_bytes=recording.request.size,
        response_bytes=recording.response.size,
        request_text=request.text,
        response_text=response.text,
        request=request.document,
        response=response.document,
        events=response.events,
        error="; ".join(problem for problem in problems if problem) or None,
        metadata={"dev_run_id": run_id} if run_id else {},
    )


@dataclass(frozen=True)
class _BodyContent:
    """As much of one body as can be read."""

    text: str | None = None
    document: Any = None
    events: tuple[SseEvent, ...] | None = None
    problem: str | None = None


def _read_body(body: RecordedBody, headers: Headers, limits: DecompressionLimits, *, may_stream: bool) -> _BodyContent:
    encodings = [name.strip().lower() for name in _get_header(headers, "content-encoding").split(",")]
    body_data = decompress(body.blocks(), encodings, limits, body.size)
    if not body_data.data:
        return _BodyContent("" if body.size == 0 else None, problem=body_data.problem)
    media_type = _get_header(headers, "content-type").partition(";")[0].strip().lower()
    text = _decode_text(body_data.data, media_type)
    if text is None:
        return _BodyContent(problem=body_data.problem)
    if may_stream and media_type == "text/event-stream":
        return _BodyContent(text, events=parse_events(text), problem=body_data.problem)
    document = parse_json(body_data.data)
    if document is None and may_stream and "json" not in media_type and looks_like_sse(text):
        return _BodyContent(text, events=parse_events(text), problem=body_data.problem)
    return _BodyContent(text, document, problem=body_data.problem)


def _get_header(headers: Headers, name: str) -> str:
    return ", ".join(value for header, value in headers if header.lower() == name)


def _decode_text(data: bytes | bytearray, media_type: str) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode(errors="replace") if any(kind in media_type for kind in _TEXT_TYPES) else None


def parse_json(data: bytes | bytearray | str) -> Any:
    """Parse JSON; return None for anything else, including JSON that is nested too deeply."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


def parse_events(text: str) -> tuple[SseEvent, ...]:
    """Parse server-sent events, with their data as JSON if it is JSON."""
    return tuple(
        event if (data := parse_json(event.data)) is None else SseEvent(event.type, data) for event in parse_sse(text)
    )


def parse_sse(text: str) -> Iterator[SseEvent]:
    """Parse server-sent events, with their data as text.

    The HTML standard applies: lines end in CR, LF or both, a blank line ends an event, `data` lines are joined by line
    feeds, a line that starts with a colon is a comment, a byte order mark is skipped. One difference: text after the
    last blank line also counts as an event, because a truncated stream has sent it. A truncation anywhere therefore
    yields the complete events before it and at most one partial event.
    """
    # Split at line ends only: `splitlines` also splits at characters that occur within JSON.
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    # The text after the last line end is no line if it is empty, and it may be a truncated field name.
    if ":" not in lines[-1]:
        lines.pop()
    event_type, data = "", list[str]()
    for line in lines:
        if not line:
            if data:
                yield SseEvent(event_type or "message", "\n".join(data))
            event_type, data = "", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name == "event":
            event_type = value
    if data:
        yield SseEvent(event_type or "message", "\n".join(data))


def looks_like_sse(text: str) -> bool:
    """Return whether a response without a content type looks like an event stream."""
    return text.removeprefix("\ufeff").lstrip("\r\n").startswith(_FIELD_PREFIXES)


@dataclass(frozen=True)
class DecompressionLimits:
    size: int = 32 << 20
    """The largest request that providers accept. Reading it takes twice as much memory."""
    ratio: int = 1000
    """Largest ratio of decompressed to compressed size, checked above `ratio_from`; text never reaches it."""
    ratio_from: int = 4 << 20


@dataclass(frozen=True)
class Decompressed:
    data: bytes | bytearray
    """The decompressed data, or the part before an error; empty if it exceeds the limits."""
    problem: str | None = None


def decompress(blocks: Blocks, encodings: Sequence[str], limits: DecompressionLimits, size: int = 0) -> Decompressed:
    """Decompress blocks: gzip, deflate (with a zlib frame or raw), br and zstd, also several in sequence.

    Decompression runs in small steps, so only the last layer is ever complete in memory, and it stops at the limits: a
    decompression bomb costs no more than the limit. A truncated stream yields the data before the truncation.

    `encodings` is ordered as in the header: the last encoding was applied last and is removed first. Blocks whose total
    `size` is known and already too large are not read.
    """
    layers = [name for name in encodings if name not in ("identity", "")]
    unknown = [name for name in layers if name not in _DECODERS]
    if unknown:
        return Decompressed(b"", f"encoding {unknown[0][:40]} is unknown")
    if len(layers) > _MAX_LAYERS:
        return Decompressed(b"", f"{len(layers)} encodings, one in the other")
    if size > limits.size:
        return Decompressed(b"", f"larger than {limits.size >> 20} MiB")
    counted = _CountedBlocks(blocks)
    stream: Iterator[bytes] = iter(counted)
    for name in reversed(layers):
        stream = _DECODERS[name](stream)
    data = bytearray()
    try:
        for chunk in stream:
            data += chunk
            if len(data) > limits.size:
                return Decompressed(b"", f"larger than {limits.size >> 20} MiB")
            if layers and len(data) > max(limits.ratio_from, limits.ratio * counted.size):
                return Decompressed(b"", f"unpacks to more than {limits.ratio} times its size")
    except _InvalidData as broken:
        return Decompressed(data, str(broken))
    return Decompressed(data)


class _CountedBlocks:
    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self.size = 0

    def __iter__(self) -> Iterator[bytes]:
        for block in self._blocks:
            self.size += len(block)
            # A block may be an entire body.
            for at in range(0, len(block), _STEP):
                yield block[at : at + _STEP]


class _InvalidData(Exception):
    """The compressed data is invalid or truncated."""


def _gzip(blocks: Blocks) -> Iterator[bytes]:
    return _zlib(blocks, lambda _first: _GZIP_OR_ZLIB, "gzip")


def _deflate(blocks: Blocks) -> Iterator[bytes]:
    return _zlib(blocks, lambda first: zlib.MAX_WBITS if _has_zlib_frame(first) else -zlib.MAX_WBITS, "deflate")


def _has_zlib_frame(first: bytes) -> bool:
    return first[0] & 0x0F == 8 and (len(first) < 2 or int.from_bytes(first[:2], "big") % 31 == 0)


def _zlib(blocks: Blocks, bits: Callable[[bytes], int], name: str) -> Iterator[bytes]:
    stream = None
    for block in blocks:
        rest = block
        while rest:
            stream = stream or zlib.decompressobj(bits(rest))
            full = False
            # A full step may leave output behind in the decompressor.
            while rest or full:
                try:
                    chunk = stream.decompress(rest, _STEP)
                except zlib.error as error:
                    raise _InvalidData(f"{name}: {_describe(error)}") from None
                yield chunk
                rest, full = stream.unconsumed_tail, len(chunk) == _STEP
                if stream.eof:
                    break
            if stream.eof:
                rest, stream = stream.unused_data, None
                if not rest.startswith(_GZIP_MAGIC[: len(rest)]):
                    # The rest is padding after the last member.
                    return
    if stream is not None:
        raise _InvalidData(f"{name}: ends early")


def _br(blocks: Blocks) -> Iterator[bytes]:
    stream = None
    for block in blocks:
        stream = stream or brotli.Decompressor()
        try:
            chunk = stream.process(block, output_buffer_limit=_STEP)
            while chunk or not stream.can_accept_more_data():
                yield chunk
                chunk = stream.process(b"", output_buffer_limit=_STEP)
        except brotli.error as error:
            raise _InvalidData(f"br: {_describe(error)}") from None
        if stream.is_finished():
            return
    if stream is not None:
        raise _InvalidData("br: ends early")


def _zstd(blocks: Blocks) -> Iterator[bytes]:
    stream = None
    for block in blocks:
        rest = block
        while rest:
            stream = stream or zstd.ZstdDecompressor(options=_ZSTD_OPTIONS)
            try:
                chunk = stream.decompress(rest, _STEP)
                while chunk or not (stream.needs_input or stream.eof):
                    yield chunk
                    if stream.eof:
                        break
                    chunk = stream.decompress(b"", _STEP)
            except zstd.ZstdError as error:
                raise _InvalidData(f"zstd: {_describe(error)}") from None
            rest = b""
            if stream.eof:
                rest, stream = stream.unused_data, None
    if stream is not None:
        raise _InvalidData("zstd: ends early")


def _describe(error: Exception) -> str:
    return str(error)[:120]


_ZSTD_OPTIONS: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}


_DECODERS: dict[str, _Decoder] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "br": _br,
    "zstd": _zstd,
}
