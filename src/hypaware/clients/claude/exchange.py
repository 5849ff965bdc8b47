"""The second pass over a transcript: turn the lines of one session, sorted by time, into an exchange."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from hypaware.clients import git
from hypaware.clients.claude.line import (
    Value,
    columns_of,
    content_of,
    error_of,
    is_api_error,
    message_of,
    role_of,
)
from hypaware.clients.claude.lines import Entry, Index, Session
from hypaware.clients.claude.request_log import shape_columns
from hypaware.clients.claude.threads import parent_of
from hypaware.model.columns import timestamp_text
from hypaware.model.exchange import Exchange, Message
from hypaware.regular import open_regular

_MAX_META_BYTES = 1 << 16


def exchange_of(session: Session, *, index: Index, record: Mapping[str, str], path: Path, mtime_ns: int) -> Exchange:
    cwd = record.get("cwd") or session.facts.get("cwd")
    is_complete = "git_remote" in record and "repo_root" in record
    repository = git.facts(cwd) if cwd and not is_complete else git.NOTHING
    return Exchange(
        provider="anthropic",
        session_id=session.id,
        client_name="claude",
        client_version=session.facts.get("version"),
        started_at=session.started_at,
        fallback_time=_time_of_file(mtime_ns),
        messages=_messages(session.entries, index.parents),
        columns={
            "conversation_source": "claude",
            "cwd": cwd,
            "git_branch": record.get("git_branch") or session.facts.get("git_branch"),
            "git_remote": record.get("git_remote") or repository.remote,
            "head_sha": record.get("head_sha"),
            "repo_root": record.get("repo_root") or repository.repo_root,
        },
        attributes=_spawned_by(path),
        links=index.links,
    )


def _time_of_file(mtime_ns: int) -> tuple[str, str] | None:
    seconds, rest = divmod(mtime_ns, 10**9)
    try:
        moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)
    except (OverflowError, OSError, ValueError):
        return None
    return timestamp_text(moment), "file_mtime"


def _messages(entries: list[Entry], parents: Mapping[str, str | None]) -> Iterator[Message]:
    for entry in sorted(entries, key=_by_time):
        value = entry.line.value
        yield _message(entry, value, parents[entry.uuid] if entry.uuid else parent_of(value))


def _by_time(entry: Entry) -> tuple[bool, str]:
    return entry.time is None, entry.time or ""


def _message(entry: Entry, value: Value, parent: str | None) -> Message:
    message, response = message_of(value), entry.response
    content, columns = content_of(value, message), columns_of(value, message)
    if entry.shape is not None:
        columns |= shape_columns(entry.shape)
    result = value.get("toolUseResult")
    code, error = error_of(value, content) if is_api_error(value) else (None, None)
    is_last = response is not None and response.last_line == entry.line.offset
    return Message(
        role=role_of(value, message),
        content=content,
        created_at=entry.time or value.get("timestamp"),
        message_id=entry.uuid,
        occurrence=entry.occurrence,
        parent=parent,
        fresh=is_fresh(entry),
        usage=response.usage() if response is not None and is_last else None,
        finish_reason=response.stop_reason if response is not None and is_last else None,
        error_code=code,
        error_message=error,
        columns=columns,
        attributes={} if result is None else {"claude": {"tool_use_result": result}},
    )


def is_fresh(entry: Entry) -> bool:
    return entry.fresh and not (entry.response is not None and entry.response.held)


def _spawned_by(path: Path) -> dict[str, Any]:
    """Return the tool call that started a subagent, from the file next to the subagent's transcript."""
    if not path.name.startswith("agent-"):
        return {}
    try:
        with open_regular(path.with_suffix(".meta.json")) as file:
            meta = orjson.loads(file.read(_MAX_META_BYTES))
    except (OSError, ValueError):
        return {}
    call = meta.get("toolUseId") if isinstance(meta, dict) else None
    return {"claude": {"spawned_by_tool_use_id": call}} if isinstance(call, str) else {}
