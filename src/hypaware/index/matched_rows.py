"""Which rows of the spool the next flush will not add, because a live row and a native row record the same part.

The rules are those of the flush (`model.match_keys`), without its limits: if the two disagree, the index shows a part
twice or the other row of the two until the flush has decided.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from hypaware.index import blocks
from hypaware.index.parts import find_response_id, hash_response_id, to_microseconds
from hypaware.index.schema import IS_LIVE, SIDECHAIN, SPOOLED
from hypaware.model.datasets import Row
from hypaware.model.match_keys import MESSAGE_MATCH_RULES

# Rows of a part are recorded at most this long apart.
_WINDOW_MICROSECONDS = 3600 * 1_000_000


class _Candidate(NamedTuple):
    at: int
    seq: int
    keys: tuple[str, ...]
    is_live: bool


def find_superseded(connection: sqlite3.Connection, spooled: Iterable[tuple[int, Row]]) -> set[int]:
    """Return the sequences of spooled live rows that have a native row, and of native rows that the lake has as live.

    `spooled` has the rows of the spool with their sequences, without duplicates.
    """
    candidates: dict[tuple[str, str], list[_Candidate]] = defaultdict(list)
    for seq, row in spooled:
        row = {**row, "raw_frame": {"message_id": _hash_or_none(row.get("raw_frame"))}}
        if candidate := _make_candidate(seq, to_microseconds(row["message_created_at"]), row):
            candidates[row["gateway_id"], row["session_id"]].append(candidate)
    superseded: set[int] = set()
    for (machine, session_id), rows in candidates.items():
        earliest = min(row.at for row in rows) - _WINDOW_MICROSECONDS
        rows += _read_lake_candidates(connection, machine, session_id, earliest)
        if any(row.is_live for row in rows):
            superseded |= _match(rows)
    return superseded


def _match(rows: list[_Candidate]) -> set[int]:
    rows.sort()
    natives: dict[str, deque[_Candidate]] = defaultdict(deque)
    for row in rows:
        if not row.is_live:
            for key in row.keys:
                natives[key].append(row)
    matched: set[int] = set()
    superseded: set[int] = set()
    for live in rows:
        if not live.is_live:
            continue
        for key in live.keys:
            while natives[key] and natives[key][0].seq in matched:
                natives[key].popleft()
            if natives[key]:
                native = natives[key].popleft()
                matched.add(native.seq)
                if live.seq >= SPOOLED:
                    superseded.add(live.seq)
                elif native.seq >= SPOOLED:
                    superseded.add(native.seq)
                break
    return superseded


def _read_lake_candidates(
    connection: sqlite3.Connection, machine: str, session_id: str, earliest: int
) -> Iterator[_Candidate]:
    query = (
        "SELECT p.seq, p.block, p.at, r.name, t.name, o.name, p.flags FROM sessions s"
        " JOIN names m ON m.id = s.machine JOIN parts p ON p.session = s.id"
        " JOIN names r ON r.id = p.role JOIN names t ON t.id = p.type LEFT JOIN names o ON o.id = p.tool"
        " WHERE s.session_id = ? AND m.name = ? AND p.at >= ? AND p.seq < ? ORDER BY p.block"
    )
    loaded, entries = None, {}
    for seq, block, at, role, kind, tool, flags in connection.execute(query, (session_id, machine, earliest, SPOOLED)):
        if block != loaded:
            loaded, entries = block, {entry.seq: entry for entry in blocks.load_block(connection, block)}
        entry = entries[seq]
        content = blocks.to_content(entry)
        more = entry.keys[6] if len(entry.keys) > 6 else {}
        live = {"source": "live", "identity_source": more.get("identity")} if flags & IS_LIVE else {}
        row = {
            "session_id": session_id,
            "agent_id": content.agent_id,
            "is_sidechain": True if flags & SIDECHAIN else None,
            "role": role,
            "part_type": kind,
            "content_text": entry.text,
            "tool_name": tool,
            "tool_args": entry.tool_args,
            "tool_call_id": content.tool_call_id,
            "tool_result_for": content.tool_result_for,
            "request_id": more.get("request"),
            "provider_subtype": more.get("subtype"),
            "attributes": {"gateway": live},
            "raw_frame": {"message_id": None if content.response is None else str(content.response)},
        }
        if candidate := _make_candidate(seq, at, row):
            yield candidate


def _make_candidate(seq: int, at: int, row: dict[str, Any]) -> _Candidate | None:
    found = MESSAGE_MATCH_RULES.match_keys(row)
    if found is None or found.is_settled or found.is_unsettled:
        return None
    return _Candidate(at, seq, found.keys, found.is_live)


def _hash_or_none(raw_frame: str | None) -> str | None:
    found = find_response_id(raw_frame)
    return None if found is None else str(hash_response_id(found))
