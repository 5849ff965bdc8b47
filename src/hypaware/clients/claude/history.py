"""Claude Code's history provider: find its transcripts, and turn each session in them into an exchange.

Transcripts are every `.jsonl` under `<CLAUDE_CONFIG_DIR or ~/.claude>/projects`; `history.jsonl` next to that folder
rescues the prompts of sessions whose transcripts are gone. Folders are entered once and files
listed once, by device and inode, so that links cannot form a cycle. Anything that cannot be inspected is reported as
an event, and the search continues.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from hypaware.clients import git
from hypaware.clients.claude import prompt_history
from hypaware.clients.claude.index import (
    SYNTHETIC,
    LineValue,
    TranscriptEntry,
    TranscriptIndex,
    TranscriptSession,
    get_content,
    get_message,
    get_parent,
    get_role,
    is_api_error,
)
from hypaware.clients.client import Environment, ExpiryRule, ImportItem, Provenance, ProviderEvent, Source
from hypaware.clients.reader import SourceLine, SourceReader, SourceSnapshot
from hypaware.home.durable_files import open_regular_file
from hypaware.home.session_context import SessionColumns, session_columns
from hypaware.model.columns import format_timestamp
from hypaware.model.expand import Exchange, Message
from hypaware.model.sanitize import to_utc_text

Inode = tuple[int, int]
_LINE_COLUMNS = {
    "uuid": "provider_uuid",
    "parentUuid": "parent_uuid",
    "logicalParentUuid": "logical_parent_uuid",
    "sourceToolAssistantUUID": "source_tool_assistant_uuid",
    "requestId": "request_id",
    "promptId": "prompt_id",
    "agentId": "agent_id",
    "type": "provider_type",
    "subtype": "provider_subtype",
    "entrypoint": "entrypoint",
    "userType": "user_type",
    "permissionMode": "permission_mode",
    "is_sidechain": "is_sidechain",
    "isSidechain": "is_sidechain",
    "is_compact_summary": "is_compact_summary",
    "isCompactSummary": "is_compact_summary",
    "compact_metadata": "compact_metadata",
    "compactMetadata": "compact_metadata",
    "hookEvent": "hook_event",
}
_FRAME = {
    "uuid": "uuid",
    "parentUuid": "parent_uuid",
    "logicalParentUuid": "logical_parent_uuid",
    "type": "type",
    "subtype": "subtype",
    "timestamp": "timestamp",
}
_MAX_META_BYTES = 1 << 16
_DEFAULT_DAYS = 30
_MAX_DAYS = 36_500
_MANAGED_SETTINGS = (
    Path("/etc/claude-code/managed-settings.json"),
    Path("/Library/Application Support/ClaudeCode/managed-settings.json"),
)
"""The settings of the machine's administrator, before those of the user; on Linux and macOS."""
_SESSION = re.compile(rb'"sessionId":\s?"([0-9A-Za-z_-]{1,100})"')
_TIMESTAMP = re.compile(rb'"timestamp":\s?"([0-9TZ:.+-]{10,40})"')


class ClaudeHistory:
    name = "claude"
    summary = "Claude Code transcripts: every .jsonl under ~/.claude/projects, including subagents"
    datasets = ("ai_gateway_messages",)
    environment = ("CLAUDE_CONFIG_DIR", "HOME", "HYP_HOME")

    def folders(self, environment: Environment) -> tuple[Path, ...]:
        return (config_folder(environment) / "projects",)

    def find(self, environment: Environment) -> Iterator[Source | ProviderEvent]:
        (projects,) = self.folders(environment)
        if (prompts := projects.with_name(prompt_history.FILE_NAME)).is_file():
            yield Source(prompts)
        if not projects.is_dir():
            yield ProviderEvent("no_history", {"path": _printable(projects)})
            return
        seen: set[Inode] = set()
        pending = [projects]
        while pending:
            folder = pending.pop()
            try:
                entries = sorted(folder.iterdir()) if _is_new(folder.stat(), seen) else []
            except OSError as error:
                yield _unreadable_event(folder, error.strerror)
                continue
            folders: list[Path] = []
            for path in entries:
                is_transcript = path.suffix == ".jsonl"
                try:
                    status = path.stat()
                except OSError as error:
                    if is_transcript:
                        yield _unreadable_event(path, error.strerror)
                    continue
                if stat.S_ISDIR(status.st_mode):
                    folders.append(path)
                elif is_transcript and not stat.S_ISREG(status.st_mode):
                    yield _unreadable_event(path, "not a regular file")
                elif is_transcript and _is_new(status, seen):
                    yield Source(path)
            pending.extend(reversed(folders))

    def first_time(self, head: bytes) -> str | None:
        times = (to_utc_text(found.decode("ascii")) for found in _TIMESTAMP.findall(head))
        return min((time for time in times if time is not None), default=None)

    def session_of(self, path: Path, head: bytes) -> str | None:
        found = _SESSION.search(head)
        return found[1].decode("ascii") if found else None

    def expiry(self, environment: Environment) -> ExpiryRule | None:
        """Return the rule of `cleanupPeriodDays`: at its start, at most once a day, Claude Code deletes transcripts.

        It goes by the time of the file and deletes the folder of the session as well. The settings of the project in
        which it is started count too, for the transcripts of all projects; they are not known here.
        """
        for path in (*_MANAGED_SETTINGS, config_folder(environment) / "settings.json"):
            with suppress(OSError, ValueError, RecursionError):
                settings = orjson.loads(path.read_bytes())
                days = settings.get("cleanupPeriodDays") if isinstance(settings, dict) else None
                # 0 deletes nothing, in old versions and new ones. Another invalid value counts as the default.
                if type(days) is int and days >= 0:
                    setting = f"cleanupPeriodDays in {_printable(path)}"
                    return ExpiryRule(min(days, _MAX_DAYS), setting) if days else None
        return ExpiryRule(_DEFAULT_DAYS, "cleanupPeriodDays, by default")

    def list_sessions(self, environment: Environment) -> Iterator[tuple[str, os.stat_result]]:
        (projects,) = self.folders(environment)
        for project in _scan(str(projects)):
            for entry in _scan(project.path) if _is_folder(project) else ():
                # Older versions keep the transcripts of subagents next to those of sessions.
                if entry.name.endswith(".jsonl") and not entry.name.startswith("agent-"):
                    with suppress(OSError):
                        if stat.S_ISREG((status := entry.stat()).st_mode):
                            yield entry.path, status

    def list_parts(self, path: str) -> list[str]:
        folder = f"{path.removesuffix('.jsonl')}{os.sep}subagents"
        return [entry.path for entry in _scan(folder) if entry.name.endswith(".jsonl")]

    def read(self, reader: SourceReader, environment: Environment) -> Iterator[ImportItem | ProviderEvent]:
        (projects,) = self.folders(environment)
        if reader.source.path == projects.with_name(prompt_history.FILE_NAME):
            yield from prompt_history.read_prompts(reader, environment, projects)
            return
        index = TranscriptIndex(reader)
        reader.titles, reader.leaves = index.titles(), index.leaves()
        records = read_session_records(environment)
        for session in index.sessions.values():
            if any(_is_fresh(entry) for entry in session.entries):
                exchange = _build_exchange(session, index, records.get(session.id, {}), reader.source)
                provenance = Provenance("claude", str(reader.source.path), session.id)
                yield ImportItem("ai_gateway_messages", "ai_gateway.projected_exchange", exchange, provenance)


HISTORY = ClaudeHistory()


def config_folder(environment: Environment) -> Path:
    if chosen := environment.get("CLAUDE_CONFIG_DIR"):
        return Path(chosen)
    return Path(environment["HOME"]) / ".claude"


def _scan(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_new(status: os.stat_result, seen: set[Inode]) -> bool:
    inode = (status.st_dev, status.st_ino)
    if inode in seen:
        return False
    seen.add(inode)
    return True


def _unreadable_event(path: Path, reason: str | None) -> ProviderEvent:
    return ProviderEvent("unreadable", {"path": _printable(path), "reason": reason or "unknown"})


def _printable(path: Path) -> str:
    return os.fsencode(path).decode("utf-8", "replace")


def read_session_records(environment: Environment) -> SessionColumns:
    """Return what the attached hooks recorded about each session."""
    return session_columns(Path(environment.get("HYP_HOME") or Path(environment["HOME"]) / ".hyp"), "claude")


def _build_exchange(
    session: TranscriptSession, index: TranscriptIndex, record: Mapping[str, str], source: SourceSnapshot
) -> Exchange:
    """Turn the lines of one session, sorted by time, into an exchange."""
    cwd = record.get("cwd") or session.facts.get("cwd")
    is_complete = "git_remote" in record and "repo_root" in record
    repository = git.find_repository(cwd) if cwd and not is_complete else git.NO_REPOSITORY
    entries = sorted(session.entries, key=lambda entry: (entry.time is None, entry.time or ""))
    file_time = None
    with suppress(OverflowError, OSError, ValueError):
        seconds, rest = divmod(source.mtime_ns, 10**9)
        moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)
        file_time = (format_timestamp(moment), "file_mtime")
    return Exchange(
        provider="anthropic",
        session_id=session.id,
        client_name="claude",
        client_version=session.facts.get("version"),
        started_at=session.started_at,
        fallback_time=file_time,
        messages=(_build_message(entry, index.parents) for entry in entries),
        columns={
            "conversation_source": "claude",
            "cwd": cwd,
            "git_branch": record.get("git_branch") or session.facts.get("git_branch"),
            "git_remote": record.get("git_remote") or repository.remote,
            "head_sha": record.get("head_sha"),
            "repo_root": record.get("repo_root") or repository.repo_root,
        },
        attributes=_read_spawning_call(source.path),
        links=index.links,
    )


def _build_message(entry: TranscriptEntry, parents: Mapping[str, str | None]) -> Message:
    value, response = entry.line.value, entry.response
    message = get_message(value)
    content, columns = get_content(value, message), _get_columns(value, message)
    if entry.shape is not None:
        columns |= _get_shape_columns(entry.shape)
    result = value.get("toolUseResult")
    code, error = _get_error(value, content) if is_api_error(value) else (None, None)
    is_last = response is not None and response.last_line == entry.line.offset
    return Message(
        role=get_role(value, message),
        content=content,
        created_at=entry.time or value.get("timestamp"),
        message_id=entry.uuid,
        occurrence=entry.occurrence,
        parent=parents[entry.uuid] if entry.uuid else get_parent(value),
        fresh=_is_fresh(entry),
        usage=response.usage() if response is not None and is_last else None,
        finish_reason=response.stop_reason if response is not None and is_last else None,
        error_code=code,
        error_message=error,
        columns=columns,
        attributes={} if result is None else {"claude": {"tool_use_result": result}},
    )


def _get_shape_columns(line: SourceLine) -> dict[str, Any]:
    shape = line.value.get("shape")
    if not isinstance(shape, dict):
        return {}
    return {"system_text": _system_text(shape.get("system")), "tools": shape.get("tools") or None}


def _system_text(system: Any) -> Any:
    if isinstance(system, list):
        texts = [block.get("text") if isinstance(block, dict) else block for block in system]
        return "\n".join(text for text in texts if isinstance(text, str)) or None
    return system or None


def _get_error(value: LineValue, content: Any) -> tuple[Any, Any]:
    """Return (code, message) of an API error."""
    codes = (value.get("apiErrorType"), value.get("error"), value.get("apiErrorStatus"))
    code = next((code for code in codes if code not in (None, "", "unknown")), None)
    errors = (block for block in content or () if isinstance(block, dict) and block.get("type") == "error")
    message = next(errors, {}).get("message")
    return code if code is None or isinstance(code, str) else str(code)[:100], message


def _get_columns(value: LineValue, message: LineValue) -> LineValue:
    """Return the columns of the line's rows, except those of its blocks and its session."""
    columns = {_LINE_COLUMNS[key]: field for key, field in value.items() if key in _LINE_COLUMNS and field is not None}
    frame = {_FRAME[key]: field for key, field in value.items() if key in _FRAME and isinstance(field, str)}
    if isinstance(api_id := message.get("id"), str):
        frame["message_id"] = api_id
    columns["raw_frame"] = frame
    if (model := message.get("model")) != SYNTHETIC:
        columns["model"] = model
    if isinstance(attachment := value.get("attachment"), dict):
        columns["attachment_type"] = attachment.get("type")
        if (event := attachment.get("hookEvent")) is not None:
            columns["hook_event"] = event
    return columns


def _is_fresh(entry: TranscriptEntry) -> bool:
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
