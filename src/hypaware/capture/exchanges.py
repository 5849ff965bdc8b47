"""The raw row: an exchange as a row of `ai_gateway_exchanges`, and an exchange out of such rows again.

It holds what `Decoded` holds, secrets gone; the request's body in parts (`body_parts`). Whatever could not be projected
today can be projected from it by a later decoder: `decoded_of` gives back the exchange, `reproject` the rows of many,
with the ids that they had.

`raw_row` does not note that its parts are stored, since they are not until the row is: call `RawRow.keep` after the
append. Two rows that were made before one of them was kept both hold the part; nothing is lost by that but space.

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
from hypaware.capture.project import Projection, Seen, project
from hypaware.capture.project.projection import SessionFacts
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

    def keep(self, stored: StoredParts) -> None:
        """The row is stored: later ones may name its parts."""
        if self.new:
            stored.keep(self.session, self.day, self.new)


def raw_row(decoded: Decoded, projection: Projection, stored: StoredParts) -> RawRow:
    session, day = projection.session_id, decoded.started_at.astimezone(UTC).date().isoformat()
    text = decoded.request_text
    if text is None or session is None:
        body = Cut(text or "", None)
    else:
        body = cut(text, decoded.request, stored.of(session, day))
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
    found = {name: value for name, value in row.items() if value is not None}
    return RawRow(found, session or "", day, body.new)


def decoded_of(row: Mapping[str, Any], lookup: Lookup) -> Decoded:
    """The exchange that a stored row holds; raises `PartsMissing` if its request cannot be put together."""
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
    """Parts of the stored rows that were read so far."""

    def keep(self, session: str, day: str, parts: Mapping[str, str]) -> None: ...

    def of(self, session: str, day: str) -> Lookup: ...


def reproject(
    rows: Iterable[Mapping[str, Any]],
    *,
    facts: SessionFacts | None = None,
    seen: Seen | None = None,
    parts: Parts | None = None,
) -> Iterator[Projection]:
    """Today's rows of stored exchanges, one projection each, with the ids that they had.

    The rows come in the order in which the exchanges ended. A projection is made when it is asked for, so whoever does
    not want it can take it back (`Seen.rollback`) before the next one. An exchange whose parts are gone gives an empty
    projection that says so in `skipped`.
    """
    seen, parts = seen or Seen(), parts or _PartsOfTwoDays()
    for row in rows:
        session, day = row.get("session_id") or "", str(row["ts_start"])[:10]
        if held := parts_of(row):
            parts.keep(session, day, held)
        try:
            decoded = decoded_of(row, parts.of(session, day))
        except PartsMissing:
            yield Projection(
                session_id=row.get("session_id"),
                client_name=row.get("client_name"),
                skipped=Counter({"parts_missing": 1}),
            )
            continue
        yield project(decoded, seen, facts=facts)


class _PartsOfTwoDays:
    """In memory. What began before midnight and ended after it stands behind rows of the next day."""

    def __init__(self) -> None:
        self._days: dict[str, dict[tuple[str, str], str]] = {}

    def keep(self, session: str, day: str, parts: Mapping[str, str]) -> None:
        held = self._days.setdefault(day, {})
        held |= {(session, name): text for name, text in parts.items()}
        for old in sorted(self._days)[:-2]:
            del self._days[old]

    def of(self, session: str, day: str) -> Lookup:
        held = self._days.get(day, {})
        return lambda name: held.get((session, name))


def _object(value: Any) -> dict[str, Any]:
    found = canonical.parse(value) if isinstance(value, str) else value
    return found if isinstance(found, dict) else {}


def _json(text: str | None) -> Any:
    try:
        return None if text is None else orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _events(text: str) -> Iterator[Event]:
    for found in sse.events(text):
        data = _json(found.data)
        yield Event(found.type, found.data if data is None else data)
