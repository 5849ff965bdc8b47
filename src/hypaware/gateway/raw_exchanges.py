"""Raw exchanges: a decoded exchange as a row of `ai_gateway_exchanges`, and back.

The row holds what `DecodedExchange` holds; the request body is split into parts. A later decoder can project from it
whatever cannot be projected today: `restore_exchange` returns the exchange, `reproject_exchanges` the rows of many
exchanges with their original ids.

A body is split along the values that clients repeat: the blocks of its messages (or its items), its system prompt, its
tools. `body_refs` says how to reassemble it, byte for byte:

    {"v": 1, "new": [<hash of a part>, …], "body": [<token>, …]}
    token = "literal text" | [<hash of a part>] | [<hash of a part>, 1]

`request_body` holds the `new` parts, one per line: serialized JSON contains no line ends. A token `[hash, 1]` names a
part whose text is itself a list of tokens: runs of tokens form such groups, so that a row does not name every part of a
long history. Small fragments stay literal text. A key that a client adds to a block for one request only
(`cache_control`, the last key) is split off; otherwise the last message of each request would be stored twice.

A part is new in the first row *of its session and UTC day* that contains it. Retention removes whole days, so it never
removes a part that a remaining row needs. `StoredParts` learns a part only after its row is stored, and is bounded; a
forgotten part is stored again, which costs only space.

The client's JSON style (spaces, escapes, the order of keys) is detected by serializing the body in the same style. If
the result differs, the body is not split: `body_refs` is null and `request_body` is the whole body.

@ref capture#raw
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import orjson

from hypaware.errors import HypError
from hypaware.gateway.decode import parse_events, parse_json
from hypaware.gateway.exchange import DecodedExchange
from hypaware.gateway.projection.conversation import ConversationCache
from hypaware.gateway.projection.projector import Projection, SessionFacts, project_exchange
from hypaware.model import canonical
from hypaware.model.columns import format_timestamp
from hypaware.model.datasets import Row

_MILLISECOND = timedelta(milliseconds=1)
MIN_PART_SIZE = 200
"""Characters; shorter fragments are not worth a part of their own."""
_HISTORY_KEYS = ("messages", "input")
Token = str | list[Any]
PartLookup = Callable[[str], str | None]
"""Hash of a part → its text, or None if it is missing."""
_MAX_TOKENS, _MIN_GROUP = 16, 4
_HASH_DIGITS = 24
_MAX_DEPTH = 8


@dataclass(frozen=True)
class RawRow:
    row: Row
    session: str
    day: str
    new: frozenset[str]


def build_raw_row(decoded: DecodedExchange, projection: Projection, stored: StoredParts) -> RawRow:
    session, day = projection.session_id, decoded.started_at.astimezone(UTC).date().isoformat()
    text = decoded.request_text
    body, refs, new = text, None, frozenset[str]()
    if text is not None and session is not None:
        body, refs, new = _split_body(text, decoded.request, stored.known(session, day))
    about = {"kind": projection.kind, "dialect": projection.dialect, **decoded.metadata}
    events = decoded.events
    row = {
        "exchange_id": decoded.exchange_id,
        "ts_start": format_timestamp(decoded.started_at),
        "ts_end": format_timestamp(decoded.ended_at),
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
        "is_sse": events is not None,
        "stream_event_count": None if events is None else len(events),
        "request_headers": dict(decoded.request_headers),
        "response_headers": dict(decoded.response_headers),
        "request_body": body,
        "response_body": decoded.response_text,
        "body_refs": refs,
        "error": decoded.error,
        "decoded": projection.dialect is not None,
        "metadata": {name: value for name, value in about.items() if value is not None} or None,
    }
    present = {name: value for name, value in row.items() if value is not None}
    return RawRow(present, session or "", day, new)


def restore_exchange(row: Mapping[str, Any], lookup: PartLookup) -> DecodedExchange:
    """Return the exchange of a stored row; raise `PartsMissing` if its request cannot be reassembled."""
    request_text, response_text = restore_body(row, lookup), row.get("response_body")
    path, _, query = row["path"].partition("?")
    metadata = _parse_object(row.get("metadata"))
    is_sse = row.get("is_sse") is True
    started_at = datetime.fromisoformat(row["ts_start"])
    return DecodedExchange(
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
        request_headers=_parse_object(row.get("request_headers")),
        response_headers=_parse_object(row.get("response_headers")),
        request_bytes=row.get("request_bytes") or 0,
        response_bytes=row.get("response_bytes") or 0,
        request_text=request_text,
        response_text=response_text,
        request=None if request_text is None else parse_json(request_text),
        response=None if is_sse or response_text is None else parse_json(response_text),
        events=parse_events(response_text or "") if is_sse else None,
        error=row.get("error"),
        metadata={name: value for name, value in metadata.items() if name not in ("kind", "dialect")},
    )


class PartStore(Protocol):
    """The parts of the stored rows that were read so far."""

    def add(self, session: str, day: str, parts: Mapping[str, str]) -> None: ...

    def lookup(self, session: str, day: str) -> PartLookup: ...


def reproject_exchanges(
    rows: Iterable[Mapping[str, Any]],
    *,
    facts: SessionFacts | None = None,
    conversations: ConversationCache | None = None,
    parts: PartStore | None = None,
) -> Iterator[Projection]:
    """Project stored exchanges with today's decoders, one projection each, with the original ids.

    `rows` must come in the order in which the exchanges ended. Projections are created lazily, so a caller can undo one
    (`ConversationCache.rollback`) before it takes the next. An exchange with missing parts yields an empty projection
    that counts them in `skipped`.
    """
    conversations, parts = conversations or ConversationCache(), parts or _RecentParts()
    for row in rows:
        session, day = row.get("session_id") or "", str(row["ts_start"])[:10]
        if held := read_parts(row):
            parts.add(session, day, held)
        try:
            decoded = restore_exchange(row, parts.lookup(session, day))
        except PartsMissing:
            yield Projection(
                session_id=row.get("session_id"),
                client_name=row.get("client_name"),
                skipped=Counter({"parts_missing": 1}),
            )
            continue
        yield project_exchange(decoded, conversations, facts=facts)


class _RecentParts:
    """Parts in memory. An exchange that began before midnight may follow rows of the next day."""

    def __init__(self) -> None:
        self._days: dict[str, dict[tuple[str, str], str]] = {}

    def add(self, session: str, day: str, parts: Mapping[str, str]) -> None:
        held = self._days.setdefault(day, {})
        held |= {(session, name): text for name, text in parts.items()}
        for old in sorted(self._days)[:-2]:
            del self._days[old]

    def lookup(self, session: str, day: str) -> PartLookup:
        held = self._days.get(day, {})
        return lambda name: held.get((session, name))


def _parse_object(value: Any) -> dict[str, Any]:
    parsed = canonical.loads(value) if isinstance(value, str) else value
    return parsed if isinstance(parsed, dict) else {}


class PartsMissing(HypError):
    """A body cannot be reassembled: the rows that hold these parts are gone."""

    def __init__(self, exchange_id: Any, missing: list[str]) -> None:
        self.missing = missing
        super().__init__(
            f"exchange {exchange_id}: {len(missing)} parts of its request are missing, first {', '.join(missing[:3])}",
            kind="parts_missing",
        )


class StoredParts:
    """The parts that are stored for each session and day; the least recent sessions are evicted."""

    def __init__(self, *, max_sessions: int = 128, max_parts: int = 8192) -> None:
        self._known: OrderedDict[tuple[str, str], set[str]] = OrderedDict()
        self._max_sessions, self._max_parts = max_sessions, max_parts

    def known(self, session: str, day: str) -> set[str]:
        return self._known.get((session, day), set())

    def add(self, raw: RawRow) -> None:
        """Add the new parts of a row, so that later rows may refer to them. Call it only after the row is stored."""
        if not raw.new:
            return
        known = self._known.setdefault((raw.session, raw.day), set())
        if len(known) + len(raw.new) > self._max_parts:
            known.clear()
        known |= raw.new
        self._known.move_to_end((raw.session, raw.day))
        while len(self._known) > self._max_sessions:
            self._known.popitem(last=False)


def _split_body(text: str, document: Any, stored: set[str]) -> tuple[str, dict[str, Any] | None, frozenset[str]]:
    """Return the body as a row holds it, how to reassemble it, and the hashes of its new parts.

    A body whose JSON style is unknown is not split.
    """
    if not isinstance(document, dict) or "\n" in text:
        return text, None, frozenset()
    fragments: list[str] = []
    try:
        _add_object(fragments, document, _SPACED if '": ' in text[:100] else _COMPACT, _HISTORY_KEYS, _add_item)
    except (TypeError, ValueError, RecursionError):
        return text, None, frozenset()
    if "".join(fragments) != text:
        return text, None, frozenset()
    new: dict[str, str] = {}
    tokens: list[Token] = []
    for fragment in fragments:
        if len(fragment) >= MIN_PART_SIZE:
            tokens.append([_name_part(fragment, stored, new)])
        elif tokens and isinstance(tokens[-1], str) and len(tokens[-1]) < MIN_PART_SIZE:
            tokens[-1] += fragment
        else:
            tokens.append(fragment)
    grouped = _group_tokens(tokens, stored, new)
    return "\n".join(new.values()), {"v": 1, "new": list(new), "body": grouped}, frozenset(new)


def read_parts(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the parts that a row holds: hash → text."""
    refs, body = _parse_object(row.get("body_refs")), row.get("request_body")
    if not refs or not isinstance(body, str):
        return {}
    return dict(zip(refs["new"], body.split("\n"), strict=False))


def restore_body(row: Mapping[str, Any], lookup: PartLookup) -> str | None:
    """Return the original request body; raise `PartsMissing` if parts are missing."""
    refs = _parse_object(row.get("body_refs"))
    if not refs:
        return row.get("request_body")
    held = read_parts(row)
    missing: list[str] = []

    def text_of(name: str) -> str:
        found = held.get(name) or lookup(name)
        if found is None:
            missing.append(name)
        return found or ""

    body_text = "".join(_expand_tokens(refs["body"], text_of, _MAX_DEPTH))
    if missing:
        raise PartsMissing(row.get("exchange_id"), missing)
    return body_text


def _expand_tokens(tokens: list[Token], text_of: Callable[[str], str], depth: int) -> Iterator[str]:
    for token in tokens:
        if isinstance(token, str):
            yield token
        elif len(token) == 1:
            yield text_of(token[0])
        elif depth > 0 and (group := text_of(token[0])):
            yield from _expand_tokens(orjson.loads(group), text_of, depth - 1)


def _group_tokens(tokens: list[Token], stored: set[str], new: dict[str, str]) -> list[Token]:
    if len(tokens) <= _MAX_TOKENS:
        return tokens
    groups: list[Token] = []
    run: list[Token] = []
    for token in tokens:
        run.append(token)
        # One token in eight ends a group, by its content alone, so that groups soon match again after a change.
        ends_group = token[0][0] in "01" if isinstance(token, list) else zlib.crc32(token.encode()) % 8 == 0
        if ends_group and len(run) >= _MIN_GROUP:
            groups.append([_name_part(orjson.dumps(run).decode(), stored, new), 1])
            run = []
    return [*_group_tokens(groups, stored, new), *run] if groups else run


def _name_part(part: str, stored: set[str], new: dict[str, str]) -> str:
    name = hashlib.sha256(part.encode()).hexdigest()[:_HASH_DIGITS]
    if name not in stored:
        new[name] = part
    return name


@dataclass(frozen=True)
class _JsonStyle:
    """How a client serializes JSON."""

    dumps: Callable[[Any], str]
    comma: str
    colon: str


_COMPACT = _JsonStyle(lambda value: orjson.dumps(value).decode(), ",", ":")
_SPACED = _JsonStyle(json.dumps, ", ", ": ")
_Adder = Callable[[list[str], Any, _JsonStyle], None]


def _add_object(
    fragments: list[str], value: dict[str, Any], style: _JsonStyle, opened: tuple[str, ...], add: _Adder
) -> None:
    """Add an object; the lists under the `opened` keys are added item by item."""
    pending = "{"
    for key, item in value.items():
        pending += style.dumps(key) + style.colon
        if key in opened and isinstance(item, list):
            pending += "["
            for each in item:
                fragments.append(pending)
                add(fragments, each, style)
                pending = style.comma
            pending = "]" if item else pending + "]"
        else:
            serialized = style.dumps(item)
            if len(serialized) < MIN_PART_SIZE:
                pending += serialized
            else:
                fragments += (pending, serialized)
                pending = ""
        pending += style.comma
    fragments.append((pending.removesuffix(style.comma) if value else pending) + "}")


def _add_item(fragments: list[str], value: Any, style: _JsonStyle) -> None:
    if isinstance(value, dict):
        _add_object(fragments, value, style, ("content",), _add_block)
    else:
        fragments.append(style.dumps(value))


def _add_block(fragments: list[str], value: Any, style: _JsonStyle) -> None:
    """Add a block without its closing brace, because a key for one request may precede the brace."""
    if not isinstance(value, dict) or not value:
        fragments.append(style.dumps(value))
        return
    *_, last = value
    if last != "cache_control":
        fragments += (style.dumps(value)[:-1], "}")
        return
    permanent = {key: item for key, item in value.items() if key != last}
    added = f"{style.dumps(last)}{style.colon}{style.dumps(value[last])}}}"
    fragments += (style.dumps(permanent)[:-1], style.comma + added if permanent else added)
