"""Raw exchanges: a decoded exchange as a row of `ai_gateway_exchanges`, and back.

The row holds what `DecodedExchange` holds, without secrets; the request body is split into parts (`body_parts`). A
later decoder can project from it whatever cannot be projected today: `restore_exchange` returns the exchange,
`reproject` the rows of many exchanges with their original ids.

`build_raw_row` does not mark its parts as stored, because they are not until the row is: call `RawRow.mark_stored`
after the append. If two rows are built before the first is marked, both hold the part; that costs only space.

@ref capture#raw
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import orjson

from hypaware.capture import sse
from hypaware.capture.body_parts import Cut, Lookup, PartsMissing, StoredParts, cut, parts_of, restore
from hypaware.capture.decoded import Decoded, Event
from hypaware.capture.project.projection import Projection, SessionFacts, project
from hypaware.capture.project.seen import Seen
from hypaware.model import canonical
from hypaware.model.columns import timestamp_text
from hypaware.model.datasets import Row

_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True)
class RawRow:
    row: Row
    session: str
    day: str
    new: frozenset[str]

    def mark_stored(self, stored: StoredParts) -> None:
        """Note that the row is stored, so that later rows may refer to its parts."""
        if self.new:
            stored.add(self.session, self.day, self.new)


def raw_row(decoded: Decoded, projection: Projection, stored: StoredParts) -> RawRow:
    session, day = projection.session_id, decoded.started_at.astimezone(UTC).date().isoformat()
    text = decoded.request_text
    if text is None or session is None:
        body = Cut(text or "", None)
    else:
        body = cut(text, decoded.request, stored.known(session, day))
    about = {"kind": projection.kind, "dialect": projection.dialect, **decoded.metadata}
    events = decoded.events
    row = {
        "exchange_id": decoded.exchange_id,
        "ts_start": timestamp_text(decoded.started_at),
        "ts_end": timestamp_text(decoded.ended_at),
        "duration_ms": (decoded.ended_at - decoded.started_at) // _MILLISECOND,
        "ttfb_ms": decoded.first_byte_ms,
        "upstream": decoded.upstream,
        "provider": decoded.provider,
        "client_name": projection.client_name or decoded.client_name,
        "session_id": session,
        "method": decoded.method,
        "path": f"{decoded.path}?{decoded.query}" if decoded.query else decoded.path,
        "status_code": decoded.status,
        "request_bytes": decoded.request_bytes,
        "response_bytes": decoded.response_bytes,
        "is_sse": decoded.is_sse,
        "stream_event_count": None if events is None else len(events),
        "request_headers": dict(decoded.request_headers),
        "response_headers": dict(decoded.response_headers),
        "request_body": None if text is None else body.body,
        "response_body": decoded.response_text,
        "body_refs": body.refs,
        "error": decoded.error,
        "decoded": projection.dialect is not None,
        "metadata": {name: value for name, value in about.items() if value is not None} or None,
    }
    present = {name: value for name, value in row.items() if value is not None}
    return RawRow(present, session or "", day, body.new)


def decoded_of(row: Mapping[str, Any], lookup: Lookup) -> Decoded:
    """Return the exchange of a stored row; raise `PartsMissing` if its request cannot be reassembled."""
    request_text, response_text = restore(row, lookup), row.get("response_body")
    path, _, query = row["path"].partition("?")
    metadata = _object(row.get("metadata"))
    is_sse = row.get("is_sse") is True
    started_at = datetime.fromisoformat(row["ts_start"])
    return Decoded(
        exchange_id=row["exchange_id"],
        started_at=started_at,
        ended_at=datetime.fromisoformat(row["ts_end"]) if row.get("ts_end") else started_at,
        first_byte_ms=row.get("ttfb_ms"),
        upstream=row.get("upstream") or "",
        provider=row.get("provider") or "unknown",
        client_name=row.get("client_name"),
        method=row["method"],
        path=path,
        query=query,
        status=row.get("status_code"),
        request_headers=_object(row.get("request_headers")),
        response_headers=_object(row.get("response_headers")),
        request_bytes=row.get("request_bytes") or 0,
        response_bytes=row.get("response_bytes") or 0,
        request_text=request_text,
        response_text=response_text,
        request=_json(request_text),
        response=None if is_sse else _json(response_text),
        events=tuple(_events(response_text or "")) if is_sse else None,
        error=row.get("error"),
        metadata={name: value for name, value in metadata.items() if name not in ("kind", "dialect")},
    )


class Parts(Protocol):
    """The parts of the stored rows that were read so far."""

    def add(self, session: str, day: str, parts: Mapping[str, str]) -> None: ...

    def lookup(self, session: str, day: str) -> Lookup: ...


def reproject(
    rows: Iterable[Mapping[str, Any]],
    *,
    facts: SessionFacts | None = None,
    conversations: Seen | None = None,
    parts: Parts | None = None,
) -> Iterator[Projection]:
    """Project stored exchanges with today's decoders, one projection each, with the original ids.

    `rows` must come in the order in which the exchanges ended. Projections are created lazily, so a caller can undo one
    (`ConversationCache.rollback`) before it takes the next. An exchange with missing parts yields an empty projection
    that counts them in `skipped`.
    """
    conversations, parts = conversations or Seen(), parts or _PartsOfTwoDays()
    for row in rows:
        session, day = row.get("session_id") or "", str(row["ts_start"])[:10]
        if held := parts_of(row):
            parts.add(session, day, held)
        try:
            decoded = decoded_of(row, parts.lookup(session, day))
        except PartsMissing:
            yield Projection(
                session_id=row.get("session_id"),
                client_name=row.get("client_name"),
                skipped=Counter({"parts_missing": 1}),
            )
            continue
        yield project(decoded, conversations, facts=facts)


class _PartsOfTwoDays:
    """Parts in memory. An exchange that began before midnight may follow rows of the next day."""

    def __init__(self) -> None:
        self._days: dict[str, dict[tuple[str, str], str]] = {}

    def add(self, session: str, day: str, parts: Mapping[str, str]) -> None:
        held = self._days.setdefault(day, {})
        held |= {(session, name): text for name, text in parts.items()}
        for old in sorted(self._days)[:-2]:
            del self._days[old]

    def lookup(self, session: str, day: str) -> Lookup:
        held = self._days.get(day, {})
        return lambda name: held.get((session, name))


def _object(value: Any) -> dict[str, Any]:
    parsed = canonical.parse(value) if isinstance(value, str) else value
    return parsed if isinstance(parsed, dict) else {}


def _json(text: str | None) -> Any:
    try:
        return None if text is None else orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _events(text: str) -> Iterator[Event]:
    for raw in sse.events(text):
        data = _json(raw.data)
        yield Event(raw.type, raw.data if data is None else data)
