"""GitHub Copilot CLI's history provider: one file per session, a line for each event.

Files are `<COPILOT_HOME or ~/.copilot>/session-state/<session>/events.jsonl`, in older versions
`session-state/<session>.jsonl`. A line is `{id, parentId, timestamp, type, data}`. These types make rows:

    user.message             {content, attachments}
    system.message           {content}
    assistant.message        {content, reasoningText, toolRequests: [{toolCallId, name, arguments}], model, apiCallId}
    tool.execution_complete  {toolCallId, success, result: {content}, error: {message}}
    session.error            {errorType, message, statusCode}

`session.start` and `session.resume` hold folder, branch and version. `session.usage_record` holds the token counts of a
call and precedes the message of the same `apiCallId`, which carries them. Lines are appended and never change, so no
message is held back. Each line of a subagent has its id (`agentId`), and `subagent.started` the call that started it.
The links lead through all lines, so a message after those of a subagent is linked to the last one of its own thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hypaware.clients import git, session_files
from hypaware.clients.client import Environment, ImportItem, Provenance, ProviderEvent, Source
from hypaware.clients.reader import SourceLine, SourceReader, text_or_none, unknown_type_reason
from hypaware.model import canonical
from hypaware.model.expand import Exchange, Message
from hypaware.model.sanitize import to_utc_text

Data = dict[str, Any]
_ROLES = {
    "user.message": "user",
    "system.message": "system",
    "assistant.message": "assistant",
    "tool.execution_complete": "tool",
    "session.error": "assistant",
}
_USAGE = "session.usage_record"
_STARTS = ("session.start", "session.resume")
_BOOKKEEPING = frozenset(
    [
        *("assistant.turn_start", "assistant.turn_end", "tool.execution_start", "session.shutdown", _USAGE, *_STARTS),
        *("session.model_change", "session.info", "session.warning", "session.truncation", "hook.start", "hook.end"),
        *("session.compaction_start", "session.compaction_complete", "abort"),
        *("subagent.started", "subagent.configured", "subagent.completed", "subagent.failed"),
    ]
)
_MAX_COUNT = 2**53


class CopilotHistory:
    name = "copilot"
    summary = "GitHub Copilot CLI sessions: ~/.copilot/session-state (or COPILOT_HOME)"
    datasets = ("ai_gateway_messages",)
    only_if_found = True
    environment = ("COPILOT_HOME", "HOME")

    def folders(self, environment: Environment) -> tuple[Path, ...]:
        top = environment.get("COPILOT_HOME") or Path(environment["HOME"]) / ".copilot"
        return (Path(top) / "session-state",)

    def find(self, environment: Environment) -> Iterator[Source | ProviderEvent]:
        (folder,) = self.folders(environment)
        return session_files.find_files(folder, _is_session)

    def first_time(self, head: bytes) -> str | None:
        return session_files.find_first_time(head)

    def session_of(self, path: Path, head: bytes) -> str | None:
        return session_files.find_session_id(head) or _name_of(path)

    def read(self, reader: SourceReader, environment: Environment) -> Iterator[ImportItem | ProviderEvent]:
        session = _Session()
        for line in reader.lines():
            session.add(line, line.value, reader)
        name = text_or_none(session.start.get("sessionId")) or _name_of(reader.source.path)
        exchange = _build_exchange(name, session, reader)
        provenance = Provenance("copilot", str(reader.source.path), name)
        yield ImportItem("ai_gateway_messages", "ai_gateway.projected_exchange", exchange, provenance)


HISTORY = CopilotHistory()


def _is_session(path: Path) -> bool:
    is_old = path.parent.name == "session-state" and path.suffix == ".jsonl"
    return is_old or (path.name == "events.jsonl" and path.parent.parent.name == "session-state")


def _name_of(path: Path) -> str:
    return path.parent.name if path.name == "events.jsonl" else path.stem


class _EventMessage(NamedTuple):
    line: SourceLine
    fresh: bool
    """Whether it makes rows now."""
    usage: dict[str, int] | None
    agent: str | None
    """The call that started its subagent; None for the session's own thread."""
    parent: str | None


@dataclass
class _Session:
    """The first pass: which lines are messages, and what they share."""

    start: Data = field(default_factory=dict)
    context: Data = field(default_factory=dict)
    """Folder and branch, as they were at the start."""
    started_at: str | None = None
    messages: list[_EventMessage] = field(default_factory=list)
    links: dict[str, str | None] = field(default_factory=dict)
    _calls: dict[str, str | None] = field(default_factory=dict)
    """The call that started each subagent, by the id of the subagent."""
    _threads: dict[str, str | None] = field(default_factory=dict)
    """The subagent of the message that a line is, or follows."""
    _last: dict[str | None, str | None] = field(default_factory=dict)
    """The last message of each subagent."""
    _usage: dict[str, dict[str, int] | None] = field(default_factory=dict)

    def add(self, line: SourceLine, value: Data, reader: SourceReader) -> None:
        kind, data, new = value.get("type"), value.get("data"), reader.is_new(line.offset)
        time = to_utc_text(value.get("timestamp"))
        self.started_at = self.started_at or time
        if isinstance(kind, str) and kind in _ROLES and isinstance(data, dict):
            usage = self._usage.pop(str(data.get("apiCallId")), None) if kind == "assistant.message" else None
            agent, parent = self._link_message(value, data)
            self.messages.append(_EventMessage(line, reader.wants(line, time, new=new), usage, agent, parent))
            return
        if event := text_or_none(value.get("id")):
            parent = self.links[event] = text_or_none(value.get("parentId"))
            if parent in self._threads:
                self._threads[event] = self._threads[parent]
        if isinstance(data, dict):
            self._add_facts(kind, data)
            if kind == "subagent.started" and (agent := text_or_none(value.get("agentId"))):
                self._calls[agent] = text_or_none(data.get("toolCallId"))
        if new:
            known = isinstance(kind, str) and kind in _BOOKKEEPING
            no_data = isinstance(kind, str) and kind in _ROLES
            reason = "bookkeeping" if known else "no_data" if no_data else unknown_type_reason(kind, reader.skipped)
            reader.skipped[reason] += 1

    def _link_message(self, value: Data, data: Data) -> tuple[str | None, str | None]:
        """Return the subagent of a message, and the id at which the search for the message before it starts."""
        own, event = text_or_none(value.get("agentId")), text_or_none(value.get("id"))
        # The prompts of a subagent name only the subagent itself.
        agent = text_or_none(data.get("parentToolCallId")) or self._calls.get(own or "") or own
        parent = text_or_none(value.get("parentId"))
        if self._threads.get(parent or "", agent) != agent:
            # A subagent begins after the last message of the session's own thread, its call.
            parent = self._last.get(agent) or self._last.get(None)
        if event is not None:
            self._threads[event], self._last[agent] = agent, event
        return agent, parent

    def _add_facts(self, kind: Any, data: Data) -> None:
        if kind in _STARTS:
            self.start = self.start or data
            context = data.get("context")
            self.context = self.context or (context if isinstance(context, dict) else {})
        elif kind == _USAGE and isinstance(usage := data.get("usage"), dict):
            self._usage[str(usage.get("apiCallId"))] = _to_usage(usage)


def _build_exchange(name: str, session: _Session, reader: SourceReader) -> Exchange:
    context = session.context
    cwd = text_or_none(context.get("cwd"))
    repository = git.find_repository(cwd) if cwd else git.NO_REPOSITORY
    return Exchange(
        provider="github",
        session_id=name,
        client_name="copilot",
        client_version=text_or_none(session.start.get("copilotVersion")),
        started_at=session.start.get("startTime") or session.started_at,
        fallback_time=session_files.file_time(reader.source),
        columns={
            "conversation_source": "copilot",
            "cwd": cwd,
            "git_branch": context.get("branch"),
            "git_remote": repository.remote,
            "head_sha": context.get("headCommit"),
            "repo_root": text_or_none(context.get("gitRoot")) or repository.repo_root,
        },
        links=session.links,
        messages=map(_build_message, session.messages),
    )


def _build_message(found: _EventMessage) -> Message:
    value, call = found.line.value, found.agent
    kind, data = value["type"], value["data"]
    is_error = kind == "session.error"
    attachments = data.get("attachments")
    return Message(
        role=_ROLES[kind],
        content=_list_blocks(kind, data),
        created_at=value.get("timestamp"),
        message_id=text_or_none(value.get("id")),
        parent=found.parent,
        fresh=found.fresh,
        usage=found.usage,
        error_code=text_or_none(data.get("errorType")) if is_error else None,
        error_message=text_or_none(data.get("message")) if is_error else None,
        columns={
            "model": data.get("model"),
            "agent_id": call,
            "is_sidechain": None if call is None else True,
            "provider_uuid": value.get("id"),
            "parent_uuid": value.get("parentId"),
            "provider_type": kind,
            "request_id": text_or_none(data.get("apiCallId")),
        },
        attributes={"copilot": {"attachments": attachments}} if attachments else {},
    )


def _list_blocks(kind: str, data: Data) -> list[Any]:
    if kind == "tool.execution_complete":
        return [_to_result(data)]
    if kind == "session.error":
        return [{"type": "error", "message": data.get("message")}]
    blocks: list[Any] = []
    if text := text_or_none(data.get("reasoningText")):
        blocks.append({"type": "thinking", "thinking": text})
    content = data.get("content")
    if content:
        blocks.append({"type": "text", "text": content if isinstance(content, str) else canonical.dumps(content)})
    requests = data.get("toolRequests")
    for each in requests if isinstance(requests, list) else ():
        if isinstance(each, dict):
            call = {"type": "tool_use", "id": each.get("toolCallId"), "name": each.get("name")}
            blocks.append({**call, "input": each.get("arguments")})
    return blocks


def _to_result(data: Data) -> Data:
    failed = data.get("success") is False
    found = data.get("error") if failed and data.get("error") is not None else data.get("result")
    if isinstance(found, dict):
        found = next((found[name] for name in ("content", "message") if found.get(name) is not None), found)
    if found is not None and not isinstance(found, str):
        found = canonical.dumps(found)
    return {"type": "tool_result", "tool_use_id": data.get("toolCallId"), "content": found, "is_error": failed}


def _to_usage(usage: Data) -> dict[str, int] | None:
    """Return token counts. The client's input includes cached tokens, and its output reasoning."""
    counts = Counter({name: value for name, value in usage.items() if type(value) is int and 0 <= value < _MAX_COUNT})
    total, cached, written = counts["inputTokens"], counts["cacheReadTokens"], counts["cacheWriteTokens"]
    if not (total or counts["outputTokens"]):
        return None
    return {
        "input_tokens": max(0, total - cached - written),
        "output_tokens": counts["outputTokens"],
        "cache_read_tokens": cached,
        "cache_write_tokens": written,
        "reasoning_tokens": counts["reasoningTokens"],
        "total_tokens": total + counts["outputTokens"],
    }
