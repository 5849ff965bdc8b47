"""OpenCode's history provider: one SQLite database with all sessions.

The database is `<XDG_DATA_HOME or ~/.local/share>/opencode/opencode*.db`, or the one that OPENCODE_DB names. It has:

    session  id, parent_id, directory, title, version, time_created
    message  id, session_id, time_created, time_updated,
             data: {role, modelID, providerID, path, tokens, time, finish, error}
    part     id, message_id, session_id, time_created, time_updated, data: {type, …}

Parts are text, reasoning, tool (the call and its result), file, and bookkeeping. Ids rise with time, and order messages
and parts. A response is recorded when it is completed; while the model works its parts change in place. A session with
a parent is that of a subagent and belongs to its first ancestor.

Versions before the database kept a JSON file for each message under `storage`. OpenCode moves them into the database
when it is started, so they are reported and not read.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from hypaware.clients import git, session_files
from hypaware.clients.client import Environment, ImportItem, Provenance, ProviderEvent, Source
from hypaware.clients.database_source import ChangedRecord, DatabaseCursor, list_databases, open_database
from hypaware.clients.reader import SourceReader, text_or_none, unknown_type_reason
from hypaware.home.sqlite_readonly import has_table
from hypaware.model import canonical
from hypaware.model.columns import format_timestamp
from hypaware.model.expand import Exchange, Message
from hypaware.model.sanitize import to_utc_text
from hypaware.state.titles import MAX_RAW_LENGTH, SessionTitle

Data = dict[str, Any]
_BOOKKEEPING = frozenset({"step-start", "step-finish", "snapshot", "patch", "compaction", "retry"})
_DEFAULT_TITLES = ("New session - ", "Child session - ")
_ENDED = ("completed", "error")
_MAX_COUNT = 2**53
_MAX_DEPTH = 100
_CHANGES = """
    SELECT m.session_id, m.id, max(m.time_updated, coalesce(max(p.time_updated), 0))
    FROM message m LEFT JOIN part p ON p.message_id = m.id GROUP BY m.id ORDER BY m.session_id, m.id"""


class OpenCodeHistory:
    name = "opencode"
    summary = "OpenCode sessions: the database in ~/.local/share/opencode (or XDG_DATA_HOME, OPENCODE_DB)"
    datasets = ("ai_gateway_messages",)
    only_if_found = True
    environment = ("HOME", "OPENCODE_DB", "XDG_DATA_HOME")

    def find(self, environment: Environment) -> Iterator[Source | ProviderEvent]:
        folder = Path(environment.get("XDG_DATA_HOME") or Path(environment["HOME"]) / ".local" / "share") / "opencode"
        found = list_databases(folder, "opencode*.db")
        if (named := environment.get("OPENCODE_DB")) and named != ":memory:":
            found.append(folder / named)
        if not found:
            older = folder / "storage" / "message"
            if os.access(older, os.F_OK):
                facts = {"kind": "older_version", "path": session_files.printable(older)}
                yield ProviderEvent("unsupported_location", facts)
            yield ProviderEvent("no_history", {"path": session_files.printable(folder)})
        for path in dict.fromkeys(found):
            yield Source(path)

    def first_time(self, head: bytes) -> str | None:
        return None

    def read(self, reader: SourceReader, environment: Environment) -> Iterator[ImportItem | ProviderEvent]:
        with open_database(reader) as database:
            if not all(has_table(database, name) for name in ("session", "message", "part")):
                reader.skipped["not_a_session_database"] += 1
                DatabaseCursor.load(reader, []).store([])
                return
            sessions = _read_sessions(database)
            changes = [(str(row[0]), ChangedRecord(str(row[1]), _count(row[2]))) for row in database.execute(_CHANGES)]
            records = [record for _, record in changes]
            cursor = DatabaseCursor.load(reader, records)
            for key, group in groupby(changes, key=itemgetter(0)):
                session = _resolve(sessions, key)
                listed = {record.key: record for _, record in group}
                if any(map(cursor.is_new, listed.values())):
                    exchange = _build_exchange(database, session, listed, cursor)
                    provenance = Provenance("opencode", str(reader.source.path), session.id)
                    yield ImportItem("ai_gateway_messages", "ai_gateway.projected_exchange", exchange, provenance)
                if (title := session.title()) is not None:
                    reader.titles.append(title)
            cursor.store(records)


HISTORY = OpenCodeHistory()


@dataclass(frozen=True)
class _Session:
    id: str
    root: str
    """The first ancestor, or the session itself."""
    facts: Mapping[str, Any]

    def title(self) -> SessionTitle | None:
        title = text_or_none(self.facts.get("title"))
        if title is None or self.id != self.root or title.startswith(_DEFAULT_TITLES):
            return None
        at = to_utc_text(_to_iso(self.facts.get("time_updated"))) or ""
        return SessionTitle("client", title[:MAX_RAW_LENGTH], self.id, at, text_or_none(self.facts.get("directory")))


def _read_sessions(database: sqlite3.Connection) -> dict[str, Data]:
    cursor = database.execute("SELECT * FROM session")
    names = [column[0] for column in cursor.description]
    return {str(row["id"]): row for row in (dict(zip(names, values, strict=True)) for values in cursor)}


def _resolve(sessions: Mapping[str, Data], key: str) -> _Session:
    root = key
    for _ in range(_MAX_DEPTH):
        parent = sessions.get(root, {}).get("parent_id")
        if not isinstance(parent, str) or parent not in sessions or parent == key:
            break
        root = parent
    return _Session(key, root, sessions.get(key, {}))


def _build_exchange(
    database: sqlite3.Connection, session: _Session, records: Mapping[str, ChangedRecord], cursor: DatabaseCursor
) -> Exchange:
    messages = _read_messages(database, session.id, cursor.reader.skipped)
    is_subagent = session.root != session.id
    cwd = text_or_none(session.facts.get("directory"))
    repository = git.find_repository(cwd) if cwd else git.NO_REPOSITORY
    providers = (text_or_none(data.get("providerID")) for _, data, _ in messages)
    return Exchange(
        provider=next(filter(None, providers), "opencode"),
        session_id=session.root,
        conversation_id=session.id if is_subagent else None,
        client_name="opencode",
        client_version=text_or_none(session.facts.get("version")),
        started_at=_to_iso(session.facts.get("time_created")),
        fallback_time=session_files.file_time(cursor.reader.source),
        columns={
            "conversation_source": "opencode",
            "cwd": cwd,
            "git_remote": repository.remote,
            "repo_root": repository.repo_root,
            "is_sidechain": True if is_subagent else None,
            "agent_id": session.id if is_subagent else None,
            "parent_thread_id": text_or_none(session.facts.get("parent_id")),
        },
        # Listed at once: the connection is closed when the rows are made.
        messages=[
            message
            for key, data, parts in messages
            if key in records
            for message in _build_messages(records[key], data, parts, cursor)
        ],
    )


def _read_messages(
    database: sqlite3.Connection, session: str, skipped: Counter[str]
) -> list[tuple[str, Data, list[tuple[str, Data]]]]:
    """Return (id, data, parts) of the messages of a session, in order."""
    parts: dict[str, list[tuple[str, Data]]] = {}
    for part_id, message_id, data in database.execute(
        "SELECT id, message_id, data FROM part WHERE session_id = ? ORDER BY message_id, id", (session,)
    ):
        parts.setdefault(str(message_id), []).append((str(part_id), _parse(data, skipped)))
    return [
        (str(key), {"time": {"created": created}, **_parse(data, skipped)}, parts.get(str(key), []))
        for key, created, data in database.execute(
            "SELECT id, time_created, data FROM message WHERE session_id = ? ORDER BY id", (session,)
        )
    ]


def _parse(data: Any, skipped: Counter[str]) -> Data:
    try:
        found = canonical.loads(data)
    except (ValueError, RecursionError, TypeError):
        found = None
    if not isinstance(found, dict):
        skipped["not_json"] += 1
        return {}
    return found


def _build_messages(
    record: ChangedRecord, data: Data, parts: list[tuple[str, Data]], cursor: DatabaseCursor
) -> Iterator[Message]:
    """Yield a message with its text and calls, and a message for the result of each call."""
    is_assistant = data.get("role") == "assistant"
    error, time = _get_error(data), _get_time(data, "created")
    is_completed = _get_time(data, "completed") is not None or error is not None
    is_finished = is_completed if is_assistant else bool(parts)
    fresh = cursor.wants(record, to_utc_text(time), is_finished=is_finished)
    skipped = cursor.reader.skipped if fresh else Counter[str]()
    blocks = [block for _, part in parts if (block := _to_block(part, skipped)) is not None]
    if error is not None:
        blocks.append({"type": "error", "message": error[1]})
    path = data.get("path")
    build = partial(
        Message,
        fresh=fresh,
        columns={
            "model": data.get("modelID"),
            "cwd": path.get("cwd") if isinstance(path, dict) else None,
            "provider_uuid": record.key,
            "parent_uuid": text_or_none(data.get("parentID")),
            "permission_mode": text_or_none(data.get("mode")),
        },
    )
    yield build(
        role=text_or_none(data.get("role")) or "user",
        content=blocks,
        created_at=time,
        message_id=record.key,
        usage=_to_usage(data.get("tokens")) if is_completed else None,
        finish_reason=data.get("finish"),
        error_code=error[0] if error else None,
        error_message=error[1] if error else None,
        attributes=_cost_of(data),
    )
    for part_id, part in parts:
        state = part.get("state")
        if part.get("type") == "tool" and isinstance(state, dict) and state.get("status") in _ENDED:
            failed = state["status"] == "error"
            result = state.get("error") if failed else state.get("output")
            content = result if isinstance(result, str) or result is None else canonical.dumps(result)
            block = {"type": "tool_result", "tool_use_id": part.get("callID"), "content": content, "is_error": failed}
            yield build(
                role="tool",
                content=[block],
                created_at=_get_time(state, "end") or time,
                message_id=f"{part_id}:result",
                attributes={"opencode": {"tool_metadata": state.get("metadata")}} if state.get("metadata") else {},
            )


def _to_block(part: Data, skipped: Counter[str]) -> dict[str, Any] | None:
    match part.get("type"):
        case "text":
            return {"type": "text", "text": part.get("text")} if part.get("text") else None
        case "reasoning":
            return {"type": "thinking", "thinking": part.get("text")} if part.get("text") else None
        case "tool":
            state = part.get("state")
            given = state.get("input") if isinstance(state, dict) else None
            return {"type": "tool_use", "id": part.get("callID"), "name": part.get("tool"), "input": given}
        case "file":
            is_image = str(part.get("mime")).startswith("image/")
            url = part.get("url")
            # The content of a file that was pasted is in its address.
            address = url if isinstance(url, str) and not url.startswith("data:") else None
            return {"type": "image" if is_image else "file", "text": part.get("filename") or address}
        case "subtask":
            return {"type": "text", "text": part.get("prompt")}
        case kind:
            known = isinstance(kind, str) and kind in _BOOKKEEPING
            skipped["bookkeeping" if known else unknown_type_reason(kind, skipped)] += 1
            return None


def _get_error(data: Data) -> tuple[str | None, str | None] | None:
    """Return (code, message) of the error in place of a response."""
    error = data.get("error")
    if not isinstance(error, dict):
        return None
    facts = error.get("data")
    message = facts.get("message") if isinstance(facts, dict) else None
    return text_or_none(error.get("name")), text_or_none(message) or text_or_none(error.get("name"))


def _cost_of(data: Data) -> dict[str, Any]:
    """Return the cost that the client computed, which is zero for models without a price."""
    cost = data.get("cost")
    return {"opencode": {"cost": cost}} if isinstance(cost, int | float) and cost else {}


def _to_usage(tokens: Any) -> dict[str, int] | None:
    """Return token counts. The client's input is without cached tokens, and its output without reasoning."""
    if not isinstance(tokens, dict):
        return None
    cache = tokens.get("cache")
    cache = cache if isinstance(cache, dict) else {}
    reasoning = _count(tokens.get("reasoning"))
    usage = {
        "input_tokens": _count(tokens.get("input")),
        "output_tokens": _count(tokens.get("output")) + reasoning,
        "cache_read_tokens": _count(cache.get("read")),
        "cache_write_tokens": _count(cache.get("write")),
        "reasoning_tokens": reasoning,
    }
    if not any(usage.values()):
        return None
    parts = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    return usage | {"total_tokens": _count(tokens.get("total")) or sum(usage[name] for name in parts)}


def _count(value: Any) -> int:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and 0 <= value < _MAX_COUNT else 0


def _get_time(data: Mapping[str, Any], name: str) -> str | None:
    times = data.get("time")
    return _to_iso(times.get(name)) if isinstance(times, dict) else None


def _to_iso(milliseconds: Any) -> str | None:
    if not isinstance(milliseconds, int | float) or isinstance(milliseconds, bool):
        return None
    try:
        return format_timestamp(datetime.fromtimestamp(milliseconds / 1000, UTC))
    except (OverflowError, OSError, ValueError):
        return None
