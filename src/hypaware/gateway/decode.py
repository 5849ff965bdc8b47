"""Decoding of recorded exchanges: decompress and parse the bodies, redact the headers, the URL and the content.

Malformed input never raises. A body that cannot be decompressed or exceeds the limits is left out, and `error` says
why. A body that is not JSON stays text; a body that is not text is None. `error` holds why the exchange ended early,
then the problems with its bodies: `client_abort; response gzip: ends early`.

Content is redacted (`redaction.kept` in the config) before projection, so that rows, raw exchange and a later
reprojection contain the same text and derive the same ids. An exchange without secrets is not changed at all.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import brotli  # type: ignore[import-untyped]
import orjson
from backports import zstd

from hypaware.gateway.exchange import DecodedExchange, Headers, RecordedBody, RecordedExchange, SseEvent
from hypaware.gateway.senders import list_recorded_headers
from hypaware.privacy.redact import (
    Redaction,
    map_json,
    redact_headers,
    redact_json,
    redact_json_text,
    redact_query,
    redact_text,
)

_TEXT_TYPES = ("text/", "application/json", "application/x-ndjson", "+json", "application/xml", "urlencoded")
_STEP = 1 << 16
_MAX_LAYERS = 4
# Larger windows are rejected, as browsers do.
_ZSTD_OPTIONS: dict[int, int] = {zstd.DecompressionParameter.window_log_max: 23}
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_INDEX_KEYS = ("item_id", "output_index", "content_index", "summary_index")
_METADATA_KEYS = ("type", "id", "role", "name")
_ARGUMENT_KEYS = ("partial_json", "arguments")
_TOO_DEEP = '"nested too deeply"'
Blocks = Iterable[bytes]


def decode_exchange(
    recording: RecordedExchange, redaction: Redaction | None = None, limits: DecompressionLimits | None = None
) -> DecodedExchange:
    bodies = BodyReader(redaction, limits or DecompressionLimits())
    request = bodies.read(recording.request, recording.request_headers, may_stream=False)
    response = bodies.read(recording.response, recording.response_headers, may_stream=True)
    problems = (
        recording.error,
        request.problem and f"request {request.problem}",
        response.problem and f"response {response.problem}",
    )
    run_id = _get_header(recording.request_headers, "x-hyp-dev-run-id")
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
        request_headers=redact_headers(recording.request_headers, list_recorded_headers()),
        response_headers=redact_headers(recording.response_headers, list_recorded_headers()),
        request_bytes=recording.request.size,
        response_bytes=recording.response.size,
        request_text=request.text,
        response_text=response.text,
        request=request.document,
        response=response.document,
        events=response.events,
        error="; ".join(problem for problem in problems if problem) or None,
        metadata={"dev_run_id": run_id} if run_id else {},
        redacted=bodies.redacted,
    )


@dataclass(frozen=True)
class BodyContent:
    """As much of one body as can be read."""

    text: str | None = None
    document: Any = None
    events: tuple[SseEvent, ...] | None = None
    problem: str | None = None


class BodyReader:
    """Reads the bodies of an exchange. With a redaction, their content has no secrets."""

    def __init__(self, redaction: Redaction | None, limits: DecompressionLimits) -> None:
        self._redaction, self._limits = redaction, limits
        self.redacted: Counter[str] = Counter()
        """Rule → how many secrets it found."""

    def read(self, body: RecordedBody, headers: Headers, *, may_stream: bool) -> BodyContent:
        encodings = [name.strip().lower() for name in _get_header(headers, "content-encoding").split(",")]
        data, problem = decompress(body.blocks(), encodings, self._limits, body.size)
        if not data:
            return BodyContent("" if body.size == 0 else None, problem=problem)
        media_type = _get_header(headers, "content-type").partition(";")[0].strip().lower()
        try:
            text = data.decode()
        except UnicodeDecodeError:
            if not any(kind in media_type for kind in _TEXT_TYPES):
                return BodyContent(problem=problem)
            text = data.decode(errors="replace")
        is_stream = may_stream and media_type == "text/event-stream"
        document = None if is_stream else parse_json(data)
        if is_stream or (document is None and may_stream and "json" not in media_type and looks_like_sse(text)):
            return replace(self.redact_stream(text, parse_events(text)), problem=problem)
        return replace(self.redact_document(text, document), problem=problem)

    def redact_document(self, text: str, document: Any) -> BodyContent:
        if self._redaction is None:
            return BodyContent(text, document)
        if document is None:
            text, found = redact_text(text, self._redaction)
            self.redacted.update(found)
            return BodyContent(text)
        document, found = redact_json(document, self._redaction)
        self.redacted.update(found)
        if not found:
            return BodyContent(text, document)
        try:
            # Serialized as clients do it, with the keys in their order, so that a repeated history has the same parts.
            return BodyContent(orjson.dumps(document).decode(), document)
        except TypeError:
            # Nested too deeply to serialize.
            return BodyContent(redact_text(text, self._redaction)[0], document)

    def redact_stream(self, text: str, events: tuple[SseEvent, ...]) -> BodyContent:
        """Redact the fragments of each text joined, because a secret may be split anywhere, then event by event.

        If the joined fragments contain a secret, the first one gets all of the redacted text and the others become
        empty, so a reader assembles the same response.
        """
        if self._redaction is None:
            return BodyContent(text, events=events)
        counts: Counter[str] = Counter()
        documents = [map_json(event.data, lambda text: text, lambda _name, text: text) for event in events]
        streams: dict[Hashable, list[_Fragment]] = {}
        for event, document in zip(events, documents, strict=True):
            for fragment in _find_fragments(event.type, document):
                streams.setdefault(fragment.stream, []).append(fragment)
        for fragments in streams.values():
            if len(fragments) < 2:
                continue
            joined = "".join(fragment.holder[fragment.name] for fragment in fragments)
            redact = redact_json_text if fragments[0].is_json else redact_text
            redacted, kinds = redact(joined, self._redaction)
            if kinds:
                counts.update(kinds)
                for fragment in fragments:
                    fragment.holder[fragment.name] = ""
                fragments[0].holder[fragments[0].name] = redacted
        found = [redact_json(document, self._redaction) for document in documents]
        counts.update(kind for _, each in found for kind in each.elements())
        if not counts:
            return BodyContent(text, events=events)
        self.redacted.update(counts)
        events = tuple(SseEvent(event.type, document) for event, (document, _) in zip(events, found, strict=True))
        return BodyContent("".join(map(_serialize_event, events)), events=events)


def _get_header(headers: Headers, name: str) -> str:
    return ", ".join(value for header, value in headers if header.lower() == name)


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
    return text.removeprefix("\ufeff").lstrip("\r\n").startswith(("event:", "data:", "id:", "retry:", ":"))


@dataclass(frozen=True)
class DecompressionLimits:
    size: int = 32 << 20
    """The largest request that providers accept. Reading it takes twice as much memory."""
    ratio: int = 1000
    """Largest ratio of decompressed to compressed size, checked above `ratio_from`; text never reaches it."""
    ratio_from: int = 4 << 20


def decompress(
    blocks: Iterable[bytes | bytearray], encodings: Sequence[str], limits: DecompressionLimits, size: int = 0
) -> tuple[bytes | bytearray, str | None]:
    """Decompress blocks: gzip, deflate (with a zlib frame or raw), br and zstd, also several in sequence.

    Return the data, or the part before an error, and the error; no data if it exceeds the limits.

    Decompression runs in small steps, so only the last layer is ever complete in memory, and it stops at the limits: a
    decompression bomb costs no more than the limit. A truncated stream yields the data before the truncation.

    `encodings` is ordered as in the header: the last encoding was applied last and is removed first. Blocks whose total
    `size` is known and already too large are not read.
    """
    layers = [name for name in encodings if name not in ("identity", "")]
    unknown = [name for name in layers if name not in _DECODERS]
    if unknown:
        return b"", f"encoding {unknown[0][:40]} is unknown"
    if len(layers) > _MAX_LAYERS:
        return b"", f"{len(layers)} encodings, one in the other"
    if size > limits.size:
        return b"", f"larger than {limits.size >> 20} MiB"
    compressed_size = 0

    def read_steps() -> Iterator[bytes]:
        nonlocal compressed_size
        for block in blocks:
            compressed_size += len(block)
            # A block may be an entire body.
            view = memoryview(block)
            for at in range(0, len(block), _STEP):
                yield bytes(view[at : at + _STEP])

    stream = read_steps()
    for name in reversed(layers):
        stream = _DECODERS[name](stream)
    data = bytearray()
    try:
        for chunk in stream:
            data += chunk
            if len(data) > limits.size:
                return b"", f"larger than {limits.size >> 20} MiB"
            if layers and len(data) > max(limits.ratio_from, limits.ratio * compressed_size):
                return b"", f"unpacks to more than {limits.ratio} times its size"
    except _InvalidData as broken:
        return data, str(broken)
    return data, None


class _InvalidData(Exception):
    """The compressed data is invalid or truncated."""


def _zlib(blocks: Blocks, name: str) -> Iterator[bytes]:
    stream = None
    for block in blocks:
        rest = block
        while rest:
            if stream is None:
                has_frame = rest[0] & 0x0F == 8 and (len(rest) < 2 or int.from_bytes(rest[:2], "big") % 31 == 0)
                is_raw = name == "deflate" and not has_frame
                stream = zlib.decompressobj(-zlib.MAX_WBITS if is_raw else _GZIP_OR_ZLIB)
            full = False
            # A full step may leave output behind in the decompressor.
            while rest or full:
                try:
                    chunk = stream.decompress(rest, _STEP)
                except zlib.error as error:
                    raise _InvalidData(f"{name}: {error!s:.120}") from None
                yield chunk
                rest, full = stream.unconsumed_tail, len(chunk) == _STEP
                if stream.eof:
                    break
            if stream.eof:
                rest, stream = stream.unused_data, None
                if not rest.startswith(b"\x1f\x8b"[: len(rest)]):
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
            raise _InvalidData(f"br: {error!s:.120}") from None
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
                raise _InvalidData(f"zstd: {error!s:.120}") from None
            rest = b""
            if stream.eof:
                rest, stream = stream.unused_data, None
    if stream is not None:
        raise _InvalidData("zstd: ends early")


_DECODERS: dict[str, Callable[[Blocks], Iterator[bytes]]] = {
    "gzip": partial(_zlib, name="gzip"),
    "x-gzip": partial(_zlib, name="gzip"),
    "deflate": partial(_zlib, name="deflate"),
    "br": _br,
    "zstd": _zstd,
}


class _Fragment(NamedTuple):
    """A string that continues the others of its stream: `holder[name]`."""

    stream: Hashable
    holder: dict[str, Any]
    name: str
    is_json: bool
    """Whether it holds a tool's arguments. Other text stays text even if it is JSON, as in the transcript."""


def _find_fragments(kind: str, data: Any) -> Iterator[_Fragment]:
    """`delta` is a string (Responses), an object of strings (Anthropic), or such an object in each choice (Chat)."""
    if not isinstance(data, dict):
        return
    delta = data.get("delta")
    if isinstance(delta, str):
        stream = (kind, *(str(data.get(name)) for name in _INDEX_KEYS))
        yield _Fragment(stream, data, "delta", is_json="arguments" in kind)
    elif isinstance(delta, dict):
        yield from _text_fragments(("delta", str(data.get("index"))), delta)
    choices = data.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and isinstance(delta := choice.get("delta"), dict):
            stream = ("choice", str(choice.get("index")))
            yield from _text_fragments(stream, delta)
            for name in ("function_call", "audio"):
                if isinstance(nested := delta.get(name), dict):
                    yield from _text_fragments((*stream, name), nested)
            calls = delta.get("tool_calls")
            for call in calls if isinstance(calls, list) else ():
                tool = call.get("function") or call.get("custom") if isinstance(call, dict) else None
                if isinstance(tool, dict):
                    yield from _text_fragments((*stream, str(call.get("index"))), tool)


def _text_fragments(stream: tuple[str, ...], holder: dict[str, Any]) -> Iterator[_Fragment]:
    for name, value in holder.items():
        if isinstance(value, str) and name not in _METADATA_KEYS:
            yield _Fragment((*stream, name), holder, name, is_json=name in _ARGUMENT_KEYS)


def _serialize_event(event: SseEvent) -> str:
    try:
        text = event.data if isinstance(event.data, str) else orjson.dumps(event.data).decode()
    except TypeError:
        text = _TOO_DEEP
    lines = "\n".join(f"data: {line}" for line in text.split("\n"))
    return f"event: {event.type}\n{lines}\n\n"
