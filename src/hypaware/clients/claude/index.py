"""The first pass over a transcript: index how its lines relate to each other, without keeping their text.

An entry is a line that makes a row, or would make one if it were not recorded already. Everything that depends on the
order of lines (which of two equal uuids counts, occurrences, the last line of a response, the first line of a
session) uses the order in the file, which does not change when the file grows.

A line belongs to its parent's thread (parentUuid, or logicalParentUuid across a compaction); a line without a parent
starts a thread. Lines that make no rows are links between a message and the previous one.

Newer transcripts have a request log: `api-request-shape` lines hold system prompt and tools once per shape
(`shapeHash`, `shape: {system, tools}`), `api-request` lines name the shape of each request (`id`, `shapeHash`), and
assistant lines name their request (`requestRef`). A shape has about ten thousand characters, so only the first
response of a session that used it carries it.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from hypaware.clients.claude.responses import TranscriptResponse, TranscriptResponses, held_line_key
from hypaware.clients.reader import SourceLine, SourceReader
from hypaware.model.blocks import has_parts
from hypaware.model.expand import Occurrences, fallback_scope
from hypaware.model.sanitize import to_utc_text

LineValue = dict[str, Any]
SYNTHETIC = "<synthetic>"
"""The model name of messages that the client writes in place of the model."""
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
_BOOKKEEPING = frozenset(
    [
        *("queue-operation", "attachment", "system", "summary", "last-prompt", "ai-title", "mode", "permission-mode"),
        *("tools-used", "cost-state", "atis-latch", "progress"),
    ]
)
_FILE_HISTORY = "file-history-"
_REQUEST_LOG = "api-request"
_SESSION_FACTS = {"version": "version", "cwd": "cwd", "git_branch": "gitBranch"}
_MAX_UNKNOWN_TYPES = 40
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(slots=True, eq=False)
class TranscriptEntry:
    line: SourceLine
    uuid: str | None
    time: str | None
    fresh: bool
    occurrence: int | None
    response: TranscriptResponse | None
    shape: SourceLine | None
    """The line with the system prompt and tools, if this is the first response that used them."""


@dataclass(slots=True, eq=False)
class TranscriptSession:
    id: str
    facts: dict[str, str] = field(default_factory=dict)
    """version, cwd and git_branch, each from the first line that has it."""
    entries: list[TranscriptEntry] = field(default_factory=list)
    started_at: str | None = None
    uuids: set[str] = field(default_factory=set)
    """The uuids of its entries."""


class TranscriptIndex:
    """Reads all lines once and indexes the messages of each session."""

    def __init__(self, reader: SourceReader) -> None:
        self._reader = reader
        self._skipped: Counter[str] = reader.skipped
        self._threads = TranscriptThreads()
        self._responses = TranscriptResponses()
        self._requests = RequestLog()
        self._occurrences = Occurrences()
        self.sessions: dict[str, TranscriptSession] = {}
        for line in reader.lines():
            self._add(line, line.value)
        if not reader.source.quiet:
            reader.held |= self._responses.hold_unfinished()
        if uncounted := self._responses.hold_uncounted():
            reader.held |= uncounted
            self._skipped["usage_without_message"] += len(uncounted)
        self.parents = self._threads.parents
        """uuid → parent uuid, for all lines."""
        self.links = self._threads.close(set().union(*(session.uuids for session in self.sessions.values())))
        """uuid → parent uuid, for lines that make no rows."""

    def _add(self, line: SourceLine, value: LineValue) -> None:
        line_type = value.get("type")
        if isinstance(line_type, str) and line_type.startswith(_REQUEST_LOG):
            self._requests.add(line, value)
            self._skip(line, "bookkeeping")
            return
        root = self._threads.add(value)
        message = get_message(value)
        role = get_role(value, message)
        session_id = value.get("sessionId")
        if not isinstance(session_id, str) or not session_id:
            self._skip(line, self._skip_reason(line_type) if role is None else "no_session")
            return
        session = self.sessions.get(session_id)
        if session is None:
            session = self.sessions[session_id] = TranscriptSession(session_id)
        if len(session.facts) < len(_SESSION_FACTS):
            for name, key in _SESSION_FACTS.items():
                if name not in session.facts and (text := text_or_none(value.get(key))):
                    session.facts[name] = text
        if role is None:
            self._skip(line, self._skip_reason(line_type))
            return
        content = get_content(value, message)
        uuid = text_or_none(value.get("uuid"))
        makes_row = has_parts(content) and uuid not in session.uuids
        time = to_utc_text(value.get("timestamp"))
        response = self._response(value, message, session, root) if role == "assistant" else None
        held_as = response.key if response is not None else None
        is_new = self._reader.is_new(line.offset, held_as)
        if not is_new and held_as is not None:
            is_new = self._reader.is_new(line.offset, held_line_key(held_as, line.offset))
        fresh = self._reader.wants(line, time, new=is_new) if makes_row else False
        # Lines outside the window do not count yet; a line inside it carries the token counts known so far.
        if response is not None and (fresh or not is_new or not makes_row):
            response.add(message, line.offset, is_new=is_new, makes_row=makes_row)
        if makes_row:
            self._add_entry(line, value, session, uuid, time, fresh, response)
        elif is_new:
            self._skipped["duplicate_message" if has_parts(content) else "empty_content"] += 1

    def _response(
        self, value: LineValue, message: LineValue, session: TranscriptSession, root: str | None
    ) -> TranscriptResponse | None:
        """Return the response that a line of the model belongs to, or None."""
        agent = value.get("agentId")
        thread = (root, agent if isinstance(agent, str) else None, value.get("isSidechain") is True)
        if message.get("model") == SYNTHETIC or is_api_error(value):
            self._responses.last[thread] = None
            return None
        api_id = text_or_none(message.get("id"))
        response = self._responses.get(session.id, api_id, value.get("requestId"))
        if api_id is not None:
            self._responses.last[thread] = response
        return response

    def _add_entry(
        self,
        line: SourceLine,
        value: LineValue,
        session: TranscriptSession,
        uuid: str | None,
        time: str | None,
        fresh: bool,
        response: TranscriptResponse | None,
    ) -> None:
        if time is not None and (session.started_at is None or time < session.started_at):
            session.started_at = time
        occurrence = shape = None
        if uuid is None:
            message, scope = get_message(value), fallback_scope(session.id, None, value.get("agentId"))
            occurrence = self._occurrences.add(scope, get_role(value, message) or "", get_content(value, message))
        else:
            session.uuids.add(uuid)
        if response is not None and (request := value.get("requestRef")) is not None:
            shape = self._requests.first_use(session.id, request)
        session.entries.append(TranscriptEntry(line, uuid, time, fresh, occurrence, response, shape))

    def _skip_reason(self, line_type: Any) -> str:
        if not isinstance(line_type, str):
            return "no_type"
        if line_type in _BOOKKEEPING or line_type.startswith(_FILE_HISTORY):
            return "bookkeeping"
        reason = f"unknown_type:{_UNSAFE.sub('?', line_type[:40])}"
        known = sum(each.startswith("unknown_type:") for each in self._skipped) if reason not in self._skipped else 0
        return reason if known < _MAX_UNKNOWN_TYPES else "unknown_type:other"

    def _skip(self, line: SourceLine, reason: str) -> None:
        """Count a line that makes no row, unless an earlier import counted it."""
        if self._reader.is_new(line.offset):
            self._skipped[reason] += 1


class TranscriptThreads:
    def __init__(self) -> None:
        self.parents: dict[str, str | None] = {}
        """uuid → parent uuid, for all lines; without cycles after `close`."""
        self._roots: dict[str, str] = {}
        self._unseen_parents: set[str] = set()
        """Parents that had not been read when a child named them."""

    def add(self, value: dict[str, Any]) -> str | None:
        """Add a line, and return the root of its thread."""
        uuid, parent = text_or_none(value.get("uuid")), get_parent(value)
        root = uuid
        if parent is not None:
            parent = sys.intern(parent)
            root = self._roots.get(parent)
            if root is None:
                root = parent
                self._unseen_parents.add(parent)
        if uuid is not None and uuid not in self.parents:
            uuid = sys.intern(uuid)
            self.parents[uuid] = parent
            self._roots[uuid] = root or uuid
        return root

    def close(self, messages: Container[str]) -> dict[str, str | None]:
        """Finish after the last line, and return the links from messages to previous messages."""
        missing = {parent for parent in self._unseen_parents if parent not in self.parents}
        if len(missing) < len(self._unseen_parents):
            self._break_cycles()
        self._roots.clear()
        links = {uuid: parent for uuid, parent in self.parents.items() if uuid not in messages}
        return links | dict.fromkeys(missing)

    def _break_cycles(self) -> None:
        """Remove the parent of one line per cycle. Only a parent that follows its child can form one."""
        walk_of: dict[str, int] = {}
        for number, start in enumerate(self.parents):
            current: str | None = start
            while current is not None and current not in walk_of:
                walk_of[current] = number
                current = self.parents.get(current)
            if current is not None and walk_of[current] == number:
                self.parents[current] = None


def get_parent(value: dict[str, Any]) -> str | None:
    return text_or_none(value.get("parentUuid")) or text_or_none(value.get("logicalParentUuid"))


class RequestLog:
    def __init__(self) -> None:
        self._shapes: dict[str, SourceLine] = {}
        self._shape_of: dict[str, str] = {}
        self._used: set[tuple[str, str]] = set()

    def add(self, line: SourceLine, value: dict[str, Any]) -> None:
        shape = value.get("shapeHash")
        if not isinstance(shape, str):
            return
        if value["type"] == "api-request-shape":
            self._shapes.setdefault(shape, line)
        elif isinstance(request := value.get("id"), str):
            self._shape_of[request] = shape

    def first_use(self, session: str, request: Any) -> SourceLine | None:
        """Return the line with the request's shape, if no earlier response of the session used it."""
        shape = self._shape_of.get(request) if isinstance(request, str) else None
        if shape is None or shape not in self._shapes or (session, shape) in self._used:
            return None
        self._used.add((session, shape))
        return self._shapes[shape]


def get_shape_columns(line: SourceLine) -> dict[str, Any]:
    shape = line.value.get("shape")
    if not isinstance(shape, dict):
        return {}
    return {"system_text": _system_text(shape.get("system")), "tools": shape.get("tools") or None}


def _system_text(system: Any) -> Any:
    if isinstance(system, list):
        texts = [block.get("text") if isinstance(block, dict) else block for block in system]
        return "\n".join(text for text in texts if isinstance(text, str)) or None
    return system or None


def get_message(value: LineValue) -> LineValue:
    message = value.get("message")
    return message if isinstance(message, dict) else {}


def get_role(value: LineValue, message: LineValue) -> str | None:
    """Return the role, or None if the line is not a message."""
    role = message.get("role")
    if isinstance(role, str) and role:
        return role
    line_type = value.get("type")
    return line_type if line_type in ("user", "assistant") else None


def is_api_error(value: LineValue) -> bool:
    """Return whether the line reports a failed request in place of the model's response."""
    return value.get("isApiErrorMessage") is True


def get_content(value: LineValue, message: LineValue) -> Any:
    content = message.get("content")
    if not content or not is_api_error(value):
        return content
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    return [_to_error_block(block) for block in blocks]


def _to_error_block(block: Any) -> Any:
    if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
        return {"type": "error", "message": block["text"]}
    return block


def get_error(value: LineValue, content: Any) -> tuple[Any, Any]:
    """Return (code, message) of an API error."""
    codes = (value.get("apiErrorType"), value.get("error"), value.get("apiErrorStatus"))
    code = next((code for code in codes if code not in (None, "", "unknown")), None)
    errors = (block for block in content or () if isinstance(block, dict) and block.get("type") == "error")
    message = next(errors, {}).get("message")
    return code if code is None or isinstance(code, str) else str(code)[:100], message


def get_columns(value: LineValue, message: LineValue) -> LineValue:
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


def text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
