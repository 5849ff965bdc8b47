"""Qwen Code's history provider: one file per session and one per subagent, a line for each finished message.

Files are `<QWEN_RUNTIME_DIR or QWEN_HOME or ~/.qwen>/projects/<folder>/chats/<session>.jsonl`, in older versions
`tmp/<hash>/chats/<session>.jsonl`, and `projects/<folder>/subagents/<session>/*.jsonl`. A line is

    {uuid, parentUuid, sessionId, timestamp, type, cwd, version, gitBranch, model, message: {role, parts},
     usageMetadata, toolCallResult, agentId, isSidechain, …}

of type user, assistant, tool_result or system. Lines are appended and never change, so no message is held back. A
system line that reports an API error makes a row; the others make none, their links lead to the message before them,
and one of them holds the title. A branch of a session copies lines with their uuid, and the key index keeps the first.

Lines of a subagent name no model. `<its file without .jsonl>.meta.json` does, in versions that write it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypaware.clients import git, session_files
from hypaware.clients.client import Environment, ImportItem, Provenance, ProviderEvent, Source
from hypaware.clients.google_parts import to_blocks, to_usage
from hypaware.clients.reader import SourceLine, SourceReader, SourceSnapshot, text_or_none, unknown_type_reason
from hypaware.home.durable_files import open_regular_file
from hypaware.model import canonical
from hypaware.model.expand import Exchange, Message
from hypaware.model.sanitize import to_utc_text
from hypaware.state.titles import MAX_RAW_LENGTH, SessionTitle

_ROLES = {"user": "user", "assistant": "assistant", "tool_result": "tool"}
_USAGE = {
    "prompt": "promptTokenCount",
    "output": "candidatesTokenCount",
    "cached": "cachedContentTokenCount",
    "thoughts": "thoughtsTokenCount",
    "tool": "toolUsePromptTokenCount",
    "total": "totalTokenCount",
}
_MAX_META_BYTES = 1 << 20


class QwenHistory:
    name = "qwen"
    summary = "Qwen Code sessions: ~/.qwen (or QWEN_HOME), including subagents"
    datasets = ("ai_gateway_messages",)
    only_if_found = True
    environment = ("HOME", "QWEN_HOME", "QWEN_RUNTIME_DIR")

    def folders(self, environment: Environment) -> tuple[Path, ...]:
        top = runtime_folder(environment)
        return (top / "projects", top / "tmp")

    def find(self, environment: Environment) -> Iterator[Source | ProviderEvent]:
        projects, older = self.folders(environment)
        yield from session_files.find_files(projects, _is_session)
        if older.is_dir():
            yield from session_files.find_files(older, _is_session)

    def first_time(self, head: bytes) -> str | None:
        return session_files.find_first_time(head)

    def session_of(self, path: Path, head: bytes) -> str | None:
        return session_files.find_session_id(head)

    def read(self, reader: SourceReader, environment: Environment) -> Iterator[ImportItem | ProviderEvent]:
        sessions: dict[str, _Session] = {}
        for line in reader.lines():
            value = line.value
            session = text_or_none(value.get("sessionId")) or reader.source.path.stem
            sessions.setdefault(session, _Session(session)).add(line, value, reader)
        for each in sessions.values():
            reader.titles += each.titles
            if any(fresh for _, fresh in each.lines):
                exchange = _build_exchange(each, reader)
                provenance = Provenance("qwen", str(reader.source.path), each.id)
                yield ImportItem("ai_gateway_messages", "ai_gateway.projected_exchange", exchange, provenance)


HISTORY = QwenHistory()


def runtime_folder(environment: Environment) -> Path:
    chosen = environment.get("QWEN_RUNTIME_DIR") or environment.get("QWEN_HOME")
    home = Path(environment["HOME"])
    if not chosen:
        return home / ".qwen"
    return home / chosen[2:] if chosen.startswith("~/") else Path(chosen)


def _is_session(path: Path) -> bool:
    """The path of a session's file: in `chats`, or below `subagents`."""
    return path.suffix == ".jsonl" and (path.parent.name == "chats" or _is_subagent(path))


def _is_subagent(path: Path) -> bool:
    return path.parent.parent.name == "subagents"


def _read_model(path: Path) -> str | None:
    """Return the model of a subagent, by the file next to its own."""
    if not _is_subagent(path):
        return None
    try:
        with open_regular_file(path.with_suffix(".meta.json")) as file:
            found = canonical.loads(file.read(_MAX_META_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return text_or_none(found.get("model")) if isinstance(found, dict) else None


@dataclass
class _Session:
    """The lines of one session: the values that all rows share, and which lines are messages."""

    id: str
    lines: list[tuple[SourceLine, bool]] = field(default_factory=list)
    """The line of a message, and whether it makes rows now."""
    links: dict[str, str | None] = field(default_factory=dict)
    titles: list[SessionTitle] = field(default_factory=list)
    version: str | None = None
    started_at: str | None = None
    cwd: str | None = None

    def add(self, line: SourceLine, value: dict[str, Any], reader: SourceReader) -> None:
        new, time = reader.is_new(line.offset), to_utc_text(value.get("timestamp"))
        self.version = self.version or text_or_none(value.get("version"))
        self.started_at = self.started_at or time
        self.cwd = self.cwd or text_or_none(value.get("cwd"))
        has_message = _get_kind(value) in _ROLES and isinstance(value.get("message"), dict)
        if has_message or _get_api_error(value) is not None:
            self.lines.append((line, reader.wants(line, time, new=new)))
            return
        if uuid := text_or_none(value.get("uuid")):
            self.links[uuid] = text_or_none(value.get("parentUuid"))
        if value.get("type") == "system" and value.get("subtype") == "custom_title":
            self._add_title(value.get("systemPayload"), time)
        if new:
            reader.skipped[_skip_reason(value, reader.skipped)] += 1

    def _add_title(self, payload: Any, time: str | None) -> None:
        title = payload.get("customTitle") if isinstance(payload, dict) else None
        if isinstance(title, str):
            is_own = payload.get("titleSource") in (None, "manual")
            self.titles.append(
                SessionTitle("user" if is_own else "client", title[:MAX_RAW_LENGTH], self.id, time or "", self.cwd)
            )


def _get_kind(value: dict[str, Any]) -> str | None:
    kind = value.get("type")
    return kind if isinstance(kind, str) else None


def _get_api_error(value: dict[str, Any]) -> dict[str, Any] | None:
    """Return the event of a call to the model that failed."""
    payload = value.get("systemPayload") if value.get("type") == "system" else None
    event = payload.get("uiEvent") if isinstance(payload, dict) else None
    return event if isinstance(event, dict) and event.get("event.name") == "qwen-code.api_error" else None


def _skip_reason(value: dict[str, Any], skipped: Counter[str]) -> str:
    kind = _get_kind(value)
    if kind == "system":
        return "bookkeeping"
    return "no_message" if kind in _ROLES else unknown_type_reason(kind, skipped)


def _build_exchange(session: _Session, reader: SourceReader) -> Exchange:
    source: SourceSnapshot = reader.source
    repository = git.find_repository(session.cwd) if session.cwd else git.NO_REPOSITORY
    model = _read_model(source.path)
    return Exchange(
        provider="qwen",
        session_id=session.id,
        client_name="qwen",
        client_version=session.version,
        started_at=session.started_at,
        fallback_time=session_files.file_time(source),
        columns={
            "conversation_source": "qwen",
            "git_remote": repository.remote,
            "repo_root": repository.repo_root,
        },
        links=session.links,
        messages=(_build_message(line.value, model, fresh, reader) for line, fresh in session.lines),
    )


def _build_message(value: dict[str, Any], subagent_model: str | None, fresh: bool, reader: SourceReader) -> Message:
    error, model, result = _get_api_error(value) or {}, value.get("model"), value.get("toolCallResult")
    if error:
        blocks, model = [{"type": "error", "message": error.get("error_message")}], error.get("model")
    else:
        model = model or (subagent_model if value["type"] == "assistant" else None)
        blocks = to_blocks(value["message"].get("parts"), reader.skipped if fresh else Counter())
    if isinstance(result, dict) and result.get("status") == "error":
        blocks = [{**block, "is_error": True} if block["type"] == "tool_result" else block for block in blocks]
    return Message(
        role=_ROLES.get(value["type"], "assistant"),
        content=blocks,
        created_at=value.get("timestamp"),
        message_id=text_or_none(value.get("uuid")),
        parent=text_or_none(value.get("parentUuid")),
        fresh=fresh,
        usage=to_usage(value.get("usageMetadata"), _USAGE),
        error_code=error.get("error_type"),
        error_message=error.get("error_message"),
        columns={
            "model": model,
            "cwd": value.get("cwd"),
            "git_branch": value.get("gitBranch"),
            "client_version": value.get("version"),
            "agent_id": value.get("agentId"),
            "is_sidechain": value.get("isSidechain"),
            "provider_uuid": value.get("uuid"),
            "parent_uuid": value.get("parentUuid"),
            "provider_type": value["type"],
        },
        attributes={} if result is None else {"qwen": {"tool_call_result": result}},
    )
