"""The first pass over a transcript: index how its lines relate to each other, without keeping their text.

An entry is a line that makes a row, or would make one if it were not recorded already. Everything that depends on the
order of lines (which of two equal uuids counts, occurrences, the last line of a response, the first line of a
session) uses the order in the file, which does not change when the file grows.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypaware.backfill.reading import Line, Reading
from hypaware.clients.claude.line import (
    SYNTHETIC,
    Value,
    content_of,
    is_api_error,
    message_of,
    role_of,
    text_of,
)
from hypaware.clients.claude.request_log import RequestLog
from hypaware.clients.claude.responses import Response, Responses, line_key
from hypaware.clients.claude.threads import Threads
from hypaware.model.expand import Occurrences, has_parts, scope_of, utc_text

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
class Entry:
    line: Line
    uuid: str | None
    time: str | None
    fresh: bool
    occurrence: int | None
    response: Response | None
    shape: Line | None
    """The line with the system prompt and tools, if this is the first response that used them."""


@dataclass(slots=True, eq=False)
class Session:
    id: str
    facts: dict[str, str] = field(default_factory=dict)
    """version, cwd and git_branch, each from the first line that has it."""
    entries: list[Entry] = field(default_factory=list)
    started_at: str | None = None
    uuids: set[str] = field(default_factory=set)
    """The uuids of its entries."""


class Index:
    """Reads all lines once and indexes the messages of each session."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._skipped: Counter[str] = reading.skipped
        self._threads = Threads()
        self._responses = Responses()
        self._requests = RequestLog()
        self._occurrences = Occurrences()
        self.sessions: dict[str, Session] = {}
        for line in reading.lines():
            self._add(line, line.value)
        if not reading.source.quiet:
            reading.held |= self._responses.hold_unfinished()
        if uncounted := self._responses.hold_uncounted():
            reading.held |= uncounted
            self._skipped["usage_without_message"] += len(uncounted)
        self.parents = self._threads.parents
        """uuid → parent uuid, for all lines."""
        self.links = self._threads.close(set().union(*(session.uuids for session in self.sessions.values())))
        """uuid → parent uuid, for lines that make no rows."""

    def _add(self, line: Line, value: Value) -> None:
        line_type = value.get("type")
        if isinstance(line_type, str) and line_type.startswith(_REQUEST_LOG):
            self._requests.add(line, value)
            self._skip(line, "bookkeeping")
            return
        root = self._threads.add(value)
        message = message_of(value)
        role = role_of(value, message)
        session_id = value.get("sessionId")
        if not isinstance(session_id, str) or not session_id:
            self._skip(line, self._skip_reason(line_type) if role is None else "no_session")
            return
        session = self.sessions.get(session_id)
        if session is None:
            session = self.sessions[session_id] = Session(session_id)
        if len(session.facts) < len(_SESSION_FACTS):
            _add_facts(session, value)
        if role is None:
            self._skip(line, self._skip_reason(line_type))
            return
        content = content_of(value, message)
        uuid = text_of(value.get("uuid"))
        makes_row = has_parts(content) and uuid not in session.uuids
        time = utc_text(value.get("timestamp"))
        response = self._response(value, message, session, root) if role == "assistant" else None
        is_new = self._is_new(line.offset, response)
        fresh = self._reading.wants(line, time, new=is_new) if makes_row else False
        # Lines outside the window do not count yet; a line inside it carries the token counts known so far.
        if response is not None and (fresh or not is_new or not makes_row):
            response.add(message, line.offset, is_new=is_new, makes_row=makes_row)
        if makes_row:
            self._add_entry(line, value, session, uuid, time, fresh, response)
        elif is_new:
            self._skipped["duplicate_message" if has_parts(content) else "empty_content"] += 1

    def _response(self, value: Value, message: Value, session: Session, root: str | None) -> Response | None:
        """Return the response that a line of the model belongs to, or None."""
        agent = value.get("agentId")
        thread = (root, agent if isinstance(agent, str) else None, value.get("isSidechain") is True)
        if message.get("model") == SYNTHETIC or is_api_error(value):
            self._responses.set_last(thread, None)
            return None
        api_id = text_of(message.get("id"))
        response = self._responses.get(session.id, api_id, value.get("requestId"))
        if api_id is not None:
            self._responses.set_last(thread, response)
        return response

    def _is_new(self, offset: int, response: Response | None) -> bool:
        key = response.key if response is not None else None
        if self._reading.is_new(offset, key):
            return True
        return key is not None and self._reading.is_new(offset, line_key(key, offset))

    def _add_entry(
        self,
        line: Line,
        value: Value,
        session: Session,
        uuid: str | None,
        time: str | None,
        fresh: bool,
        response: Response | None,
    ) -> None:
        if time is not None and (session.started_at is None or time < session.started_at):
            session.started_at = time
        occurrence = shape = None
        if uuid is None:
            occurrence = self._occurrence(session, value)
        else:
            session.uuids.add(uuid)
        if response is not None and (request := value.get("requestRef")) is not None:
            shape = self._requests.first_use(session.id, request)
        session.entries.append(Entry(line, uuid, time, fresh, occurrence, response, shape))

    def _occurrence(self, session: Session, value: Value) -> int:
        message = message_of(value)
        scope = scope_of(session.id, None, value.get("agentId"))
        return self._occurrences.add(scope, role_of(value, message) or "", content_of(value, message))

    def _skip_reason(self, line_type: Any) -> str:
        if not isinstance(line_type, str):
            return "no_type"
        if line_type in _BOOKKEEPING or line_type.startswith(_FILE_HISTORY):
            return "bookkeeping"
        reason = f"unknown_type:{_UNSAFE.sub('?', line_type[:40])}"
        known = sum(each.startswith("unknown_type:") for each in self._skipped) if reason not in self._skipped else 0
        return reason if known < _MAX_UNKNOWN_TYPES else "unknown_type:other"

    def _skip(self, line: Line, reason: str) -> None:
        """Count a line that makes no row, unless an earlier import counted it."""
        if self._reading.is_new(line.offset):
            self._skipped[reason] += 1


def _add_facts(session: Session, value: Value) -> None:
    for name, key in _SESSION_FACTS.items():
        if name not in session.facts and (text := text_of(value.get(key))):
            session.facts[name] = text
