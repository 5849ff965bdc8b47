"""Exchanges of real clients, from the samples in fixtures/wire, and constructed ones."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hypaware.gateway import decode
from hypaware.gateway.exchange import DecodedExchange, Headers, RecordedBody, RecordedExchange, SseEvent

SAMPLES = Path(__file__).parents[1] / "fixtures" / "wire"
_BEGIN = datetime(2026, 11, 15, 8, 0, tzinfo=UTC)


def list_samples() -> list[Path]:
    return sorted(SAMPLES.rglob("*.xz"))


def read_sample(path: Path) -> list[DecodedExchange]:
    """The exchanges of one recorded scenario, in the order in which they ended."""
    data = path.read_bytes()
    lines = (lzma.decompress(data) if path.suffix == ".xz" else data).splitlines()
    found = [json.loads(line) for line in lines]
    found = [each for each in found if each["response"]["status"] != 101]
    return [_decoded(f"{path.name}-{each['seq']}", each) for each in sorted(found, key=lambda each: each["t_end"])]


def read_recordings(path: Path) -> list[RecordedExchange]:
    """The same exchanges as recorded, before decoding."""
    return [to_recording(each) for each in read_sample(path)]


def to_recording(exchange: DecodedExchange, **more: Any) -> RecordedExchange:
    """Build the recorded exchange, with uncompressed bodies."""

    def body(text: str | None) -> RecordedBody:
        data = (text or "").encode()
        return RecordedBody(data, len(data))

    def headers(found: Mapping[str, str]) -> Headers:
        return tuple((name, value) for name, value in found.items() if name != "content-encoding")

    response = dict(exchange.response_headers)
    if exchange.events is not None:
        response["content-type"] = "text/event-stream"
    given: dict[str, Any] = {
        "path": f"{exchange.path}?{exchange.query}" if exchange.query else exchange.path,
        "client_name": exchange.client_name,
        "request_headers": headers(exchange.request_headers),
        "error": exchange.error,
        **more,
    }
    return RecordedExchange(
        exchange_id=exchange.exchange_id,
        started_at=exchange.started_at,
        ended_at=exchange.ended_at,
        first_byte_ms=exchange.first_byte_ms,
        upstream=exchange.upstream,
        provider=exchange.provider,
        method=exchange.method,
        request=body(exchange.request_text),
        status=exchange.status,
        response_headers=headers(response),
        response=body(exchange.response_text),
        **given,
    )


def _decoded(exchange_id: str, each: dict[str, Any]) -> DecodedExchange:
    request, response = each["request"], each["response"]
    path, _, query = request["path"].partition("?")
    headers = _headers(response["headers"])
    return build_exchange(
        path,
        parsed(request["body"]),
        response["body"],
        exchange_id=exchange_id,
        method=request["method"],
        query=query,
        started_at=datetime.fromtimestamp(each["t"], UTC),
        ended_at=datetime.fromtimestamp(each["t_end"], UTC),
        status=response["status"],
        request_headers=_headers(request["headers"]),
        response_headers=headers,
        request_text=request["body"],
        error="upstream_cut" if response.get("aborted") else None,
    )


def build_exchange(
    path: str, body: Any, answer: str | dict[str, Any] | Iterable[SseEvent], **more: Any
) -> DecodedExchange:
    """Build an exchange; the response is text (an event stream), JSON, or events."""
    provider = "anthropic" if "/messages" in path else "openai"
    events: tuple[SseEvent, ...] | None = None
    text = response = None
    if isinstance(answer, str):
        text = answer
        if answer.lstrip().startswith(("event:", "data:")):
            events = tuple(parse_stream(answer))
        else:
            response = parsed(answer)
    elif isinstance(answer, dict):
        text, response = json.dumps(answer), answer
    else:
        events = tuple(answer)
        text = more.pop("response_text", None)
        if text is None:
            text = "".join(f"event: {event.type}\ndata: {json.dumps(event.data)}\n\n" for event in events)
    request_text = more.pop("request_text", None)
    if request_text is None and body is not None:
        request_text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    given: dict[str, Any] = {
        "exchange_id": "exchange-1",
        "started_at": _BEGIN,
        "ended_at": _BEGIN + timedelta(seconds=2),
        "first_byte_ms": 20,
        "upstream": provider,
        "provider": provider,
        "client_name": None,
        "method": "POST",
        "query": "",
        "status": 200,
        "request_headers": {},
        "response_headers": {},
        **more,
    }
    return DecodedExchange(
        path=path,
        request=body,
        request_text=request_text,
        request_bytes=len(request_text or ""),
        response_text=text,
        response_bytes=len(text or ""),
        response=response,
        events=events,
        **given,
    )


def minutes_later(minutes: float) -> dict[str, datetime]:
    """Times of an exchange that many seconds after the first."""
    at = _BEGIN + timedelta(minutes=minutes)
    return {"started_at": at, "ended_at": at + timedelta(seconds=2)}


def parse_stream(text: str) -> Iterator[SseEvent]:
    for found in decode.parse_sse(text):
        yield SseEvent(found.type, parsed(found.data, found.data))


def parsed(text: str, otherwise: Any = None) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return otherwise


def _headers(pairs: list[list[str]]) -> dict[str, str]:
    return {name.lower(): value for name, value in pairs}
