"""Write a recorded session as a transcript that `claude --resume` accepts.

A session of the client itself keeps its ids: each message is one line whose `uuid` is the id of the message, so an
import of the transcript gives rows with the ids that the lake has. Lines that make no rows (attachments, system lines)
are not recorded. A message whose parent was such a line gets the previous message as its parent; else the client would
see only what follows. The boundary of a compaction is written again, so that the client sends the summary and not what
it summarizes. Subagents have their own files.

A session of another client becomes a new session: `entrypoint` is `hyp-restore-session`, and its first line names the
session that it comes from, under `restoredFrom`.

Names of files are built only from ids that are checked first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import orjson

from hypaware.clients.claude.history import config_folder
from hypaware.clients.claude.index import SYNTHETIC
from hypaware.clients.client import Environment
from hypaware.clients.recorded_session import (
    IMAGE_NOTE,
    CarriedPart,
    Losses,
    RecordedMessage,
    RecordedSession,
    Transcript,
    TranscriptFile,
    is_uuid,
    list_carried_parts,
    parse_json,
)
from hypaware.model.datasets import Row

Line = dict[str, Any]
_MAX_FOLDER_NAME = 200
_AGENT_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")
_NOT_ALPHANUMERIC = re.compile(r"[^a-zA-Z0-9]")
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "pause": "pause_turn"}
_LINE_KEYS = {
    "requestId": "request_id",
    "promptId": "prompt_id",
    "sourceToolAssistantUUID": "source_tool_assistant_uuid",
    "agentId": "agent_id",
    "hookEvent": "hook_event",
    "permissionMode": "permission_mode",
    "entrypoint": "entrypoint",
    "version": "client_version",
    "cwd": "cwd",
    "gitBranch": "git_branch",
}
_QUEUED = "queued_command"
_CARRIED_ENTRYPOINT = "hyp-restore-session"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class ClaudeTranscript:
    def accepts(self, session_id: str) -> bool:
        return is_uuid(session_id)

    def find(self, session_id: str, environment: Environment) -> Path | None:
        projects = config_folder(environment) / "projects"
        return next(iter(sorted(projects.glob(f"*/{session_id}.jsonl"))), None) if is_uuid(session_id) else None

    def restore(self, session: RecordedSession, environment: Environment) -> Transcript:
        losses: Losses = Counter()
        lines = _RestoredLines(session, losses)
        main = _place(session, session.session_id, environment)
        files = []
        for agent, written in lines.by_agent.items():
            if agent is not None:
                path = main.with_suffix("") / "subagents" / f"agent-{agent}.jsonl"
                if call := lines.started_by.get(agent):
                    meta = {"agentType": "general-purpose", "toolUseId": call}
                    files.append(TranscriptFile(path.with_suffix(".meta.json"), orjson.dumps(meta)))
                files.append(TranscriptFile(path, _join(written)))
        own = lines.by_agent.get(None, [])
        if own and session.title is not None:
            own.append({"type": "ai-title", "aiTitle": session.title, "sessionId": session.session_id})
        files.append(TranscriptFile(main, _join(own)))
        return Transcript(session.session_id, tuple(files), lines.messages, losses)

    def carry_over(self, session: RecordedSession, session_id: str, environment: Environment) -> Transcript:
        losses: Losses = Counter()
        parts = list_carried_parts(session, losses)
        lines = list(_carry_lines(session, session_id, parts))
        if session.title is not None:
            lines.append({"type": "ai-title", "aiTitle": session.title, "sessionId": session_id})
        path = _place(session, session_id, environment)
        return Transcript(session_id, (TranscriptFile(path, _join(lines)),), len(parts), losses)


TRANSCRIPTS = ClaudeTranscript()


def name_project_folder(cwd: str) -> str:
    """Return the name of a project's folder, as the client computes it."""
    # JavaScript counts UTF-16 units: a character outside the basic plane becomes two dashes.
    units = [cwd.encode("utf-16-be", "surrogatepass")[at : at + 2] for at in range(0, 2 * _count_units(cwd), 2)]
    name = _NOT_ALPHANUMERIC.sub("-", "".join(unit.decode("utf-16-be", "replace") for unit in units))
    if len(name) <= _MAX_FOLDER_NAME:
        return name
    digest = 0
    for unit in units:
        digest = (digest * 31 + int.from_bytes(unit)) & 0xFFFFFFFF
    return f"{name[:_MAX_FOLDER_NAME]}-{_to_base36(abs(digest - (digest >> 31 << 32)))}"


def _count_units(text: str) -> int:
    return len(text.encode("utf-16-be", "surrogatepass")) // 2


def _to_base36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits or "0"


def _place(session: RecordedSession, session_id: str, environment: Environment) -> Path:
    folder = name_project_folder(session.cwd or str(Path.cwd()))
    return config_folder(environment) / "projects" / folder / f"{session_id}.jsonl"


def _join(lines: Sequence[Line]) -> bytes:
    return b"".join(orjson.dumps(line) + b"\n" for line in lines)


class _RestoredLines:
    """The lines of a session of the client itself."""

    def __init__(self, session: RecordedSession, losses: Losses) -> None:
        self._session = session
        self._losses = losses
        self.by_agent: dict[str | None, list[Line]] = {}
        self.started_by: dict[str, str] = {}
        """Agent → the tool call that started it."""
        self.messages = 0
        self._usage = _sum_usage(session.messages)
        self._blocks = {each.id: self._list_blocks(each) for each in session.messages}
        """The content of each message; a message without content has no line."""
        self._previous = {each.id: each.previous for each in session.messages}
        for message in session.messages:
            if self._blocks[message.id]:
                self._add(message)

    def _add(self, message: RecordedMessage) -> None:
        agent = message.get("agent_id")
        agent = agent if isinstance(agent, str) and _AGENT_ID.fullmatch(agent) else None
        lines = self.by_agent.setdefault(agent, [])
        previous = self._find_previous(message)
        parent = message.get("parent_uuid")
        parent = parent if self._blocks.get(parent) else previous
        if message.get("is_compact_summary"):
            boundary = self._build_boundary(message, previous)
            lines.append(boundary)
            parent = boundary["uuid"]
        lines.append(self._build_line(message, parent, self._blocks[message.id]))
        self.messages += 1
        claude = message.attributes.get("claude")
        if agent is not None and isinstance(claude, dict) and isinstance(claude.get("spawned_by_tool_use_id"), str):
            self.started_by[agent] = claude["spawned_by_tool_use_id"]

    def _find_previous(self, message: RecordedMessage) -> str | None:
        """Return the nearest message before this one that has a line."""
        seen = {message.id}
        found = message.previous
        while found is not None and found not in seen and not self._blocks.get(found):
            seen.add(found)
            found = self._previous.get(found)
        return found if found not in seen else None

    def _build_boundary(self, message: RecordedMessage, previous: str | None) -> Line:
        own = message.get("parent_uuid")
        uuid = own if own and own not in self._blocks else str(uuid5(UUID(self._session.session_id), message.id))
        return {
            **self._build_head(message, None, uuid),
            "logicalParentUuid": previous,
            "type": "system",
            "subtype": "compact_boundary",
            "content": "Conversation compacted",
            "isMeta": False,
            "level": "info",
            "compactMetadata": {"trigger": "auto", "preTokens": 0},
        }

    def _build_head(self, message: RecordedMessage, parent: str | None, uuid: str) -> Line:
        columns = {key: value for key, column in _LINE_KEYS.items() if (value := message.get(column)) is not None}
        return {
            "parentUuid": parent,
            "isSidechain": bool(message.get("is_sidechain")),
            "userType": message.get("user_type") or "external",
            **columns,
            "sessionId": self._session.session_id,
            "uuid": uuid,
            "timestamp": message.frame.get("timestamp") or message.at,
        }

    def _build_line(self, message: RecordedMessage, parent: str | None, blocks: list[Line]) -> Line:
        line = self._build_head(message, parent, message.id)
        if (logical := message.get("logical_parent_uuid")) is not None:
            line["logicalParentUuid"] = logical
        if (subtype := message.frame.get("subtype")) is not None:
            line["subtype"] = subtype
        if message.get("is_compact_summary"):
            line |= {"isCompactSummary": True, "isVisibleInTranscriptOnly": True}
        if (metadata := parse_json(message.get("compact_metadata"))) is not None:
            line["compactMetadata"] = metadata
        claude = message.attributes.get("claude")
        if isinstance(claude, dict) and "tool_use_result" in claude:
            line["toolUseResult"] = claude["tool_use_result"]
        is_text = len(blocks) == 1 and blocks[0]["type"] == "text"
        if message.role == "assistant":
            return {**line, "type": "assistant", **self._build_response(message, blocks)}
        content = blocks[0]["text"] if is_text else blocks
        if message.get("attachment_type") == _QUEUED:
            attachment = {"type": _QUEUED, "prompt": content, "commandMode": "prompt"}
            return {**line, "type": "attachment", "attachment": attachment}
        return {**line, "type": "user", "message": {"role": "user", "content": content}}

    def _build_response(self, message: RecordedMessage, blocks: list[Line]) -> Line:
        status = parse_json(message.rows[-1].get("status")) or {}
        is_error = any(row["part_type"] == "error" for row in message.rows)
        reason = status.get("finish_reason")
        response: Line = {
            "id": _find_response(message),
            "type": "message",
            "role": "assistant",
            "model": SYNTHETIC if is_error else message.get("model") or SYNTHETIC,
            "content": blocks,
            "stop_reason": _STOP_REASONS.get(str(reason), reason),
            "stop_sequence": None,
            "usage": _to_client_usage(self._usage.get(_find_response(message), {})),
        }
        if not is_error:
            return {"message": response}
        code = status.get("error_code")
        return {"message": response, "isApiErrorMessage": True, **({} if code is None else {"error": code})}

    def _list_blocks(self, message: RecordedMessage) -> list[Line]:
        if message.role not in ("user", "assistant"):
            self._losses["system"] += 1
            return []
        positions = {row["part_index"] for row in message.rows}
        blocks: list[Line] = []
        for row in message.rows:
            block = _to_block(row, self._losses)
            if block is not None and len(blocks) not in positions:
                # Before it was something that no row was made of. In its place, the block would get a new id.
                self._losses["other"] += 1
            elif block is not None:
                blocks.append(block)
        return blocks


def _to_block(row: Row, losses: Losses) -> Line | None:
    """Return the block of a part, or None if the provider would not accept it."""
    kind, text = row["part_type"], row.get("content_text")
    match kind:
        case "text" | "error":
            return {"type": "text", "text": text or ""}
        case "reasoning" if row.get("provider_subtype") == "redacted_thinking" and text:
            return {"type": "redacted_thinking", "data": text}
        case "reasoning" if row.get("thinking_signature"):
            return {"type": "thinking", "thinking": text or "", "signature": row["thinking_signature"]}
        case "reasoning":
            # The provider accepts thinking only with its signature.
            losses["thinking"] += 1
            return None
        case "tool_call":
            own = row.get("provider_subtype")
            call: Line = {
                "type": own if own == "server_tool_use" else "tool_use",
                "id": row.get("tool_call_id") or "",
                "name": row.get("tool_name") or "",
                "input": parse_json(row.get("tool_args")),
            }
            caller = row.get("caller_type")
            return call if caller is None else {**call, "caller": {"type": caller}}
        case "tool_result" if row.get("provider_subtype") in (None, "tool_result") or text is not None:
            if text is None:
                losses["image"] += 1
            result: Line = {
                "type": "tool_result",
                "tool_use_id": row.get("tool_result_for") or "",
                "content": IMAGE_NOTE if text is None else text,
            }
            return {**result, "is_error": True} if row.get("is_error") else result
        case "image" | "file":
            losses["image"] += 1
            return {"type": "text", "text": IMAGE_NOTE}
    losses["other"] += 1
    return None


def _find_response(message: RecordedMessage) -> str:
    """Return the provider's id of the response, which its lines share."""
    own = message.frame.get("message_id")
    return own if isinstance(own, str) and own else f"msg_{message.id}"


def _sum_usage(messages: Sequence[RecordedMessage]) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for message in messages:
        if message.role == "assistant":
            found.setdefault(_find_response(message), Counter()).update(message.usage)
    return found


def _to_client_usage(usage: Mapping[str, int]) -> Line:
    counts: Line = {
        "input_tokens": usage.get("input_tokens", 0),
        "cache_creation_input_tokens": usage.get("cache_write_tokens", 0),
        "cache_read_input_tokens": usage.get("cache_read_tokens", 0),
        "output_tokens": usage.get("output_tokens", 0),
    }
    if thinking := usage.get("reasoning_tokens"):
        counts["output_tokens_details"] = {"thinking_tokens": thinking}
    if long := usage.get("cache_write_1h_tokens"):
        counts["cache_creation"] = {"ephemeral_1h_input_tokens": long}
    return counts


def _carry_lines(session: RecordedSession, session_id: str, parts: Sequence[CarriedPart]) -> Iterator[Line]:
    """Yield the lines of a new session. Parts of one response share its id, as the client writes them."""
    parent: str | None = None
    response = ""
    branch = next((found for each in reversed(session.messages) if (found := each.get("git_branch"))), "")
    for number, part in enumerate(parts):
        uuid = str(uuid5(UUID(session_id), str(number)))
        line: Line = {
            "parentUuid": parent,
            "isSidechain": False,
            "userType": "external",
            "entrypoint": _CARRIED_ENTRYPOINT,
            "cwd": session.cwd or str(Path.cwd()),
            "sessionId": session_id,
            "gitBranch": branch,
            "uuid": uuid,
            "timestamp": part.at,
        }
        if parent is None:
            line["restoredFrom"] = {"client": session.client, "sessionId": session.session_id}
        parent = uuid
        if part.kind in ("assistant", "call"):
            response = response or f"msg_{uuid.replace('-', '')}"
            block: Line = {"type": "text", "text": part.text}
            if part.kind == "call":
                given = part.arguments if isinstance(part.arguments, dict) else {"input": part.arguments}
                block = {"type": "tool_use", "id": part.call_id, "name": part.tool, "input": given}
            message = {
                "id": response,
                "type": "message",
                "role": "assistant",
                "model": SYNTHETIC,
                "content": [block],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": _to_client_usage({}),
            }
            yield {**line, "type": "assistant", "message": message}
            continue
        response = ""
        content: Any = part.text
        if part.kind == "result":
            result = {"type": "tool_result", "tool_use_id": part.call_id, "content": part.text}
            content = [{**result, "is_error": True} if part.is_error else result]
        yield {**line, "type": "user", "message": {"role": "user", "content": content}}
