"""The first pass over a transcript: index how its lines relate to each other, without keeping their text.

An entry is a line that makes a row, or would make one if it were not recorded already. Everything that depends on the
order of lines (which of two equal uuids counts, occurrences, the last line of a response, the first line of a
session) uses the order in the file, which does not change when the file grows.

A prompt that was typed while the client worked is an `attachment` line of the type `queued_command`, and a message of
the user. Other attachments are no messages.

A line belongs to its parent's thread (parentUuid, or logicalParentUuid across a compaction); a line without a parent
starts a thread. Lines that make no rows are links between a message and the previous one.

A transcript has one line per content block, each with the token counts at that time. The counts of the last line
count once, on the last line of the response that makes a row; counts that a line lacks keep their earlier value. Counts
that no row can carry yet wait for a line that can. Input does not include cached tokens; output includes thinking. The
last response of a thread may still grow: while the file is not quiet, the whole response is held back for the next
import, unless the reader releases it. A partly imported response is not held back; its later lines carry differences.

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
from typing import Any, Literal

from hypaware.clients.reader import SourceLine, SourceReader
from hypaware.model.expand import has_parts
from hypaware.model.message_ids import Occurrences, fallback_scope
from hypaware.model.sanitize import to_utc_text
from hypaware.state.titles import MAX_RAW_LENGTH, SessionTitle

LineValue = dict[str, Any]
_COUNT_NAMES = (
    *("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"),
    *("reasoning_tokens", "cache_write_1h_tokens"),
)
Counts = tuple[Any, Any, Any, Any, Any, Any]
"""In the order of `_COUNT_NAMES`. A compact form, because the next line replaces most of them."""
ThreadKey = tuple[str | None, Any, bool]
"""(root of its lines, agent, sidechain): two agents that take turns writing to one file are two threads."""
SYNTHETIC = "<synthetic>"
"""The model name of messages that the client writes in place of the model."""
_BOOKKEEPING = frozenset(
    [
        *("queue-operation", "attachment", "system", "summary", "last-prompt", "ai-title", "mode", "permission-mode"),
        *("tools-used", "cost-state", "atis-latch", "progress", "custom-title"),
    ]
)
_TITLES: dict[str, tuple[Literal["user", "client"], str]] = {
    "custom-title": ("user", "customTitle"),
    "ai-title": ("client", "aiTitle"),
    "summary": ("client", "summary"),
}
"""Type of a line → (kind of its title, the key that holds it)."""
_MAX_TITLES = 1000
_MAX_LEAVES = 256
_QUEUED_COMMAND = "queued_command"
_HUMAN_ORIGINS = (None, "human", "person", "composer", "voice-call", "remote", "channel")
_FILE_HISTORY = "file-history-"
_REQUEST_LOG = "api-request"
_SESSION_FACTS = {"version": "version", "cwd": "cwd", "git_branch": "gitBranch"}
_MAX_UNKNOWN_TYPES = 40
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(slots=True, eq=False)
class TranscriptResponse:
    key: str | None
    """Its id if it, or a line of it, is held back; None if its lines cannot be grouped."""
    counts: Counts | None = None
    carried: Counts | None = None
    """The counts that earlier imports have recorded."""
    partly_imported: bool = False
    """An earlier import made rows from it."""
    has_new_lines: bool = False
    """This import reads new lines of it."""
    stop_reason: Any = None
    last_line: int | None = None
    """Offset of the last line that makes a row in this import; it carries token counts and stop reason."""
    held: bool = False
    rowless: list[int] = field(default_factory=list)
    """Offsets of new lines that make no row."""

    def add(self, message: dict[str, Any], offset: int, *, is_new: bool, makes_row: bool) -> None:
        counts = get_counts(message.get("usage"))
        if counts is not None:
            self.counts = merge_counts(self.counts, counts)
            if not is_new:
                self.carried = self.counts
        self.has_new_lines |= is_new
        if (reason := message.get("stop_reason")) is not None:
            self.stop_reason = reason
        if not makes_row:
            if is_new:
                self.rowless.append(offset)
        elif is_new:
            self.last_line = offset
        else:
            self.partly_imported = True

    def usage(self) -> dict[str, Any] | None:
        if self.counts is None:
            return None
        if self.partly_imported and self.carried is not None:
            more = (_to_int(now) - _to_int(before) for now, before in zip(self.counts, self.carried, strict=True))
            return {name: count for name, count in zip(_COUNT_NAMES, more, strict=True) if count} or None
        return to_usage(self.counts)


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
    queued: set[str] = field(default_factory=set)
    """The uuids under which queued prompts of its entries may be written once more."""


class TranscriptIndex:
    """Reads all lines once and indexes the messages of each session."""

    def __init__(self, reader: SourceReader) -> None:
        self._reader = reader
        self._skipped: Counter[str] = reader.skipped
        self._threads = TranscriptThreads()
        self._responses: dict[str, TranscriptResponse] = {}
        self._last_response: dict[ThreadKey, TranscriptResponse | None] = {}
        """The last response of each thread; None if another message ended the previous response."""
        self._requests = RequestLog()
        self._occurrences = Occurrences()
        self.sessions: dict[str, TranscriptSession] = {}
        self._last_time = ""
        self._titles: dict[tuple[str, str, str | None], SessionTitle] = {}
        for line in reader.lines():
            self._add(line, line.value)
        self._hold_back()
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
        if isinstance(line_type, str) and line_type in _TITLES:
            self._add_title(value, *_TITLES[line_type])
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
        source = get_queued_source(value)
        is_known = uuid in session.uuids or uuid in session.queued or source in session.uuids
        makes_row = has_parts(content) and not is_known
        time = to_utc_text(value.get("timestamp"))
        self._last_time = time or self._last_time
        response = self._response(value, message, session_id, root) if role == "assistant" else None
        held_as = response.key if response is not None else None
        is_new = self._reader.is_new(line.offset, held_as)
        if not is_new and held_as is not None:
            is_new = self._reader.is_new(line.offset, held_line_key(held_as, line.offset))
        fresh = self._reader.wants(line, time, new=is_new) if makes_row else False
        # Lines outside the window do not count yet; a line inside it carries the token counts known so far.
        if response is not None and (fresh or not is_new or not makes_row):
            response.add(message, line.offset, is_new=is_new, makes_row=makes_row)
        if not makes_row:
            if is_new:
                self._skipped["duplicate_message" if has_parts(content) else "empty_content"] += 1
            return
        if time is not None and (session.started_at is None or time < session.started_at):
            session.started_at = time
        occurrence = shape = None
        if uuid is None:
            scope = fallback_scope(session_id, None, value.get("agentId"))
            occurrence = self._occurrences.add(scope, role, content)
        else:
            session.uuids.add(uuid)
        if source is not None:
            session.queued.add(source)
        if response is not None and (request := value.get("requestRef")) is not None:
            shape = self._requests.first_use(session_id, request)
        session.entries.append(TranscriptEntry(line, uuid, time, fresh, occurrence, response, shape))

    def _add_title(self, value: LineValue, kind: Literal["user", "client"], key: str) -> None:
        if isinstance(title := value.get(key), str) and (title or kind == "user"):
            session, leaf = text_or_none(value.get("sessionId")) or "", text_or_none(value.get("leafUuid"))
            place = (kind, session, leaf)
            if place in self._titles or len(self._titles) < _MAX_TITLES:
                # The client repeats them; the last one counts.
                self._titles.pop(place, None)
                self._titles[place] = SessionTitle(kind, title[:MAX_RAW_LENGTH], session, self._last_time, leaf=leaf)

    def titles(self) -> list[SessionTitle]:
        """Return the titles of sessions. A summary names a message; its session may be in another source."""
        return [
            each._replace(session_id=session, cwd=self._folder_of(session))
            for each in self._titles.values()
            for session in (each.session_id or self._session_of(each.leaf) or "",)
        ]

    def leaves(self) -> dict[str, str]:
        """Return the messages that no other line follows, with their sessions."""
        inner = set(self.parents.values())
        last = [uuid for uuid in self.parents if uuid not in inner][-_MAX_LEAVES:]
        return {uuid: session for uuid in last if (session := self._session_of(uuid))}

    def _session_of(self, uuid: str | None) -> str | None:
        found = next((each.id for each in self.sessions.values() if uuid in each.uuids), None)
        if found is None and len(self.sessions) == 1 and uuid in self.parents:
            return next(iter(self.sessions))
        return found

    def _folder_of(self, session: str) -> str | None:
        return self.sessions[session].facts.get("cwd") if session in self.sessions else None

    def _response(
        self, value: LineValue, message: LineValue, session: str, root: str | None
    ) -> TranscriptResponse | None:
        """Return the response of a line of the model, by its API id or else its request; None if it is not one."""
        agent = value.get("agentId")
        thread = (root, agent if isinstance(agent, str) else None, value.get("isSidechain") is True)
        if message.get("model") == SYNTHETIC or is_api_error(value):
            self._last_response[thread] = None
            return None
        api_id, request = text_or_none(message.get("id")), value.get("requestId")
        by_request = f"{session}:{request}" if isinstance(request, str) else None
        key = f"{session}:{api_id}" if api_id is not None else by_request
        if key is None:
            return TranscriptResponse(None)
        response = self._responses.get(key)
        if response is None:
            response = self._responses[key] = TranscriptResponse(key)
        if by_request is not None:
            # A later line of it may lack the API id.
            self._responses.setdefault(by_request, response)
        if api_id is not None:
            self._last_response[thread] = response
        return response

    def _hold_back(self) -> None:
        """Hold back responses that may still grow, and lines whose counts no row can carry yet; a later line may."""
        responses = set(self._responses.values())
        source = self._reader.source
        if not source.quiet:
            for response in self._last_response.values():
                if response is not None and not response.partly_imported and response.key not in source.released:
                    response.held = True
            self._reader.held |= {str(each.key) for each in responses if each.held}
        waiting = (each for each in responses if each.has_new_lines and each.last_line is None and not each.held)
        uncounted = [each for each in waiting if any((each.usage() or {}).values())]
        lines = {held_line_key(str(each.key), offset) for each in uncounted for offset in each.rowless}
        if lines:
            self._reader.held |= lines
            self._skipped["usage_without_message"] += len(lines)

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
            # Only a parent that follows its child can form a cycle: remove the parent of one line per cycle.
            walk_of: dict[str, int] = {}
            for number, start in enumerate(self.parents):
                current: str | None = start
                while current is not None and current not in walk_of:
                    walk_of[current] = number
                    current = self.parents.get(current)
                if current is not None and walk_of[current] == number:
                    self.parents[current] = None
        self._roots.clear()
        links = {uuid: parent for uuid, parent in self.parents.items() if uuid not in messages}
        return links | dict.fromkeys(missing)


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


def get_message(value: LineValue) -> LineValue:
    message = value.get("message")
    return message if isinstance(message, dict) else {}


def get_role(value: LineValue, message: LineValue) -> str | None:
    """Return the role, or None if the line is not a message."""
    role = message.get("role")
    if isinstance(role, str) and role:
        return role
    line_type = value.get("type")
    if line_type in ("user", "assistant"):
        return str(line_type)
    return "user" if get_queued_prompt(value) is not None else None


def get_queued_prompt(value: LineValue) -> Any:
    """Return the prompt that a person typed while the client worked; None if the line holds none."""
    attachment = value.get("attachment")
    if value.get("type") != "attachment" or not isinstance(attachment, dict):
        return None
    origin = attachment.get("origin")
    is_typed = (
        attachment.get("type") == _QUEUED_COMMAND
        and attachment.get("commandMode") != "task-notification"
        and attachment.get("isMeta") is not True
        and attachment.get("carriedByCompaction") is not True
        and (origin.get("kind") if isinstance(origin, dict) else None) in _HUMAN_ORIGINS
    )
    return attachment.get("prompt") if is_typed else None


def get_queued_source(value: LineValue) -> str | None:
    return None if get_queued_prompt(value) is None else text_or_none(value["attachment"].get("source_uuid"))


def is_api_error(value: LineValue) -> bool:
    """Return whether the line reports a failed request in place of the model's response."""
    return value.get("isApiErrorMessage") is True


def get_content(value: LineValue, message: LineValue) -> Any:
    content = message.get("content") or get_queued_prompt(value)
    if not content or not is_api_error(value):
        return content
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    return [_to_error_block(block) for block in blocks]


def _to_error_block(block: Any) -> Any:
    if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
        return {"type": "error", "message": block["text"]}
    return block


def text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def held_line_key(response: str, offset: int) -> str:
    """Return the key under which a single line of a response is held back."""
    return f"{response}@{offset}"


def get_counts(usage_block: Any) -> Counts | None:
    """Return the counts of a line's usage, or None if it has none."""
    if not isinstance(usage_block, dict):
        return None
    details = usage_block.get("output_tokens_details")
    written = usage_block.get("cache_creation")
    return (
        usage_block.get("input_tokens"),
        usage_block.get("output_tokens"),
        usage_block.get("cache_read_input_tokens"),
        usage_block.get("cache_creation_input_tokens"),
        (details.get("thinking_tokens") or None) if isinstance(details, dict) else None,
        (written.get("ephemeral_1h_input_tokens") or None) if isinstance(written, dict) else None,
    )


def merge_counts(older: Counts | None, newer: Counts) -> Counts:
    """Return the newer counts, with the older value for each missing one."""
    if older is None or None not in newer:
        return newer
    return (
        older[0] if newer[0] is None else newer[0],
        older[1] if newer[1] is None else newer[1],
        older[2] if newer[2] is None else newer[2],
        older[3] if newer[3] is None else newer[3],
        older[4] if newer[4] is None else newer[4],
        older[5] if newer[5] is None else newer[5],
    )


def to_usage(counts: Counts) -> dict[str, Any]:
    return {name: count for name, count in zip(_COUNT_NAMES, counts, strict=True) if count is not None}


def _to_int(count: Any) -> int:
    return count if type(count) is int else 0
