"""The second pass over a transcript: turn the lines of one session, sorted by time, into an exchange."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from hypaware.clients import git
from hypaware.clients.claude.index import (
    TranscriptEntry,
    TranscriptIndex,
    TranscriptSession,
    get_columns,
    get_content,
    get_error,
    get_message,
    get_parent,
    get_role,
    get_shape_columns,
    is_api_error,
)
from hypaware.home.file_system import open_regular_file
from hypaware.model.columns import format_timestamp
from hypaware.model.expand import Exchange, Message

_MAX_META_BYTES = 1 << 16


def build_exchange(
    session: TranscriptSession, *, index: TranscriptIndex, record: Mapping[str, str], path: Path, mtime_ns: int
) -> Exchange:
    cwd = record.get("cwd") or session.facts.get("cwd")
    is_complete = "git_remote" in record and "repo_root" in record
    repository = git.find_repository(cwd) if cwd and not is_complete else git.NO_REPOSITORY
    return Exchange(
        provider="anthropic",
        session_id=session.id,
        client_name="claude",
        client_version=session.facts.get("version"),
        started_at=session.started_at,
        fallback_time=_file_time(mtime_ns),
        messages=(_build_message(entry, index.parents) for entry in sorted(session.entries, key=_time_order)),
        columns={
            "conversation_source": "claude",
            "cwd": cwd,
            "git_branch": record.get("git_branch") or session.facts.get("git_branch"),
            "git_remote": record.get("git_remote") or repository.remote,
            "head_sha": record.get("head_sha"),
            "repo_root": record.get("repo_root") or repository.repo_root,
        },
        attributes=_read_spawning_call(path),
        links=index.links,
    )


def _file_time(mtime_ns: int) -> tuple[str, str] | None:
    seconds, rest = divmod(mtime_ns, 10**9)
    try:
        moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)
    except (OverflowError, OSError, ValueError):
        return None
    return format_timestamp(moment), "file_mtime"


def _time_order(entry: TranscriptEntry) -> tuple[bool, str]:
    return entry.time is None, entry.time or ""


def _build_message(entry: TranscriptEntry, parents: Mapping[str, str | None]) -> Message:
    value, response = entry.line.value, entry.response
    message = get_message(value)
    content, columns = get_content(value, message), get_columns(value, message)
    if entry.shape is not None:
        columns |= get_shape_columns(entry.shape)
    result = value.get("toolUseResult")
    code, error = get_error(value, content) if is_api_error(value) else (None, None)
    is_last = response is not None and response.last_line == entry.line.offset
    return Message(
        role=get_role(value, message),
        content=content,
        created_at=entry.time or value.get("timestamp"),
        message_id=entry.uuid,
        occurrence=entry.occurrence,
        parent=parents[entry.uuid] if entry.uuid else get_parent(value),
        fresh=is_fresh(entry),
        usage=response.usage() if response is not None and is_last else None,
        finish_reason=response.stop_reason if response is not None and is_last else None,
        error_code=code,
        error_message=error,
        columns=columns,
        attributes={} if result is None else {"claude": {"tool_use_result": result}},
    )


def is_fresh(entry: TranscriptEntry) -> bool:
    return entry.fresh and not (entry.response is not None and entry.response.held)


def _read_spawning_call(path: Path) -> dict[str, Any]:
    """Return the tool call that started a subagent, from the file next to the subagent's transcript."""
    if not path.name.startswith("agent-"):
        return {}
    try:
        with open_regular_file(path.with_suffix(".meta.json")) as file:
            meta = orjson.loads(file.read(_MAX_META_BYTES))
    except (OSError, ValueError):
        return {}
    call = meta.get("toolUseId") if isinstance(meta, dict) else None
    return {"claude": {"spawned_by_tool_use_id": call}} if isinstance(call, str) else {}
