"""Decoding of recorded exchanges: decompress and parse the bodies, redact the headers and the URL.

Malformed input never raises. A body that cannot be decompressed or exceeds the limits is left out, and `error` says
why. A body that is not JSON stays text; a body that is not text is None. `error` holds why the exchange ended early,
then the problems with its bodies: `client_abort; response gzip: ends early`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from hypaware.capture import sse
from hypaware.capture.decoded import Decoded, Event
from hypaware.capture.recording import Body, Headers, Recording
from hypaware.capture.redact import redact_headers, redact_query
from hypaware.capture.unpack import Bounds, unpack

_RUN_ID_HEADER = "x-hyp-dev-run-id"
_TEXTUAL = ("text/", "application/json", "application/x-ndjson", "+json", "application/xml", "urlencoded")


@dataclass(frozen=True)
class _Read:
    """As much of one body as can be read."""

    text: str | None = None
    document: Any = None
    events: tuple[Event, ...] | None = None
    problem: str | None = None


def decode(recording: Recording, limits: Bounds | None = None) -> Decoded:
    limits = limits or Bounds()
    request = _read(recording.request, recording.request_headers, limits, may_stream=False)
    response = _read(recording.response, recording.response_headers, limits, may_stream=True)
    path, query = redact_query(recording.path)
    return Decoded(
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
        error=_error(recording.error, request.problem, response.problem),
        metadata=_metadata(recording.request_headers),
    )


def _read(body: Body, headers: Headers, limits: Bounds, *, may_stream: bool) -> _Read:
    encodings = [name.strip().lower() for name in _header(headers, "content-encoding").split(",")]
    body_data = unpack(body.blocks(), encodings, limits, body.size)
    if not body_data.data:
        return _Read("" if body.size == 0 else None, problem=body_data.problem)
    media_type = _header(headers, "content-type").partition(";")[0].strip().lower()
    text = _text(body_data.data, media_type)
    if text is None:
        return _Read(problem=body_data.problem)
    if may_stream and media_type == "text/event-stream":
        return _Read(text, events=_events(text), problem=body_data.problem)
    document = _json(body_data.data)
    if document is None and may_stream and "json" not in media_type and sse.looks_like_events(text):
        return _Read(text, events=_events(text), problem=body_data.problem)
    return _Read(text, document, problem=body_data.problem)


def _text(data: bytes | bytearray, media_type: str) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode(errors="replace") if any(kind in media_type for kind in _TEXTUAL) else None


def _json(data: bytes | bytearray | str) -> Any:
    """Parse JSON; return None for anything else, including JSON that is nested too deeply."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


def _events(text: str) -> tuple[Event, ...]:
    return tuple(Event(raw.type, raw.data if (data := _json(raw.data)) is None else data) for raw in sse.events(text))


def _error(ended: str | None, request: str | None, response: str | None) -> str | None:
    problems = [ended, request and f"request {request}", response and f"response {response}"]
    return "; ".join(problem for problem in problems if problem) or None


def _metadata(headers: Headers) -> Mapping[str, Any]:
    run_id = _header(headers, _RUN_ID_HEADER)
    return {"dev_run_id": run_id} if run_id else {}


def _header(headers: Headers, name: str) -> str:
    return ", ".join(value for header, value in headers if header.lower() == name)
