"""Rollout files of Codex: the first pass over the lines of a file, and the conversion of items into messages.

A file has lines `{timestamp, type, payload}`. The first pass collects the values that all messages share
(session_meta, turn_context), which lines are messages, and which of them carry token counts. The messages are built
from the same lines later, so that a large file is never in memory as a whole. Lines count in file order.

In the old form a file is one JSON document `{session, items}`, without times or token counts. It does not grow; it is
rewritten. Every import therefore reads all items, and the key index drops the known ones.

A `message` item gives its text; a call gives a `tool_use` of the assistant; an output gives a `tool_result` with role
`tool`; `reasoning` gives its summary, or else its content, never the encrypted one. All other items make no row and
are counted, unknown ones under the name of their type.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import orjson

from hypaware.clients.codex.usage import MessageSlot, UsageCarriers, UsageCounter, held_key
from hypaware.clients.reader import SourceLine, SourceReader, text_or_none, unknown_type_reason
from hypaware.model import canonical
from hypaware.model.sanitize import to_utc_text

Payload = dict[str, Any]
_TEXTS = frozenset({"text", "input_text", "output_text"})
_CALLS = ("function_call", "custom_tool_call")
_REASONING_TEXTS = _TEXTS | {"summary_text", "reasoning_text"}
# Known items that are not part of the conversation.
_BOOKKEEPING_ITEMS = frozenset(
    [
        *("additional_tools", "agent_message", "compaction", "compaction_summary", "compaction_trigger"),
        *("context_compaction", "ghost_snapshot", "other"),
    ]
)
_NAME_EVENT = "thread_name_updated"
_HEAD_BYTES = 64 << 10
_READ_LINES = frozenset({"event_msg", "response_item", "session_meta", "token_usage_record", "turn_context"})
_BOOKKEEPING_LINES = frozenset(
    [
        *("compacted", "inter_agent_communication", "inter_agent_communication_metadata"),
        *("security_risk_score", "world_state"),
    ]
)
_ABSOLUTE = re.compile(r"/|[A-Za-z]:[\\/]|\\\\")


@dataclass
class RolloutThread:
    """The thread of a rollout file."""

    meta: Payload = field(default_factory=dict)
    turn: Payload = field(default_factory=dict)
    """The context of the first turn."""
    cwd: str | None = None
    """The session's working folder, or else that of the first turn that has one."""
    first_time: str | None = None
    name: str | None = None
    """The thread's name, from the last event that changed it."""
    carriers: UsageCarriers = field(default_factory=UsageCarriers)
    _tally: UsageCounter = field(default_factory=UsageCounter)
    _ids: set[str | None] = field(default_factory=set)
    _has_meta: bool = False
    _own_from: int = 0

    def read(self, reader: SourceReader) -> None:
        """Make the first pass over the lines of a file."""
        for line in reader.lines():
            value = line.value
            new = reader.is_new(line.offset, held_key(line.offset))
            if self.first_time is None:
                self.first_time = to_utc_text(value.get("timestamp"))
            reason = self._add(line, value, new, reader.skipped)
            if reason is not None and new:
                reader.skipped[reason] += 1
        # The columns that all rows share are unknown until the first turn has begun.
        self.carriers.close(reader, hold_all=not self.turn)

    def _add(self, line: SourceLine, value: dict[str, Any], new: bool, skipped: Counter[str]) -> str | None:
        """Add a line; return a reason to count it as skipped, or None."""
        kind, payload, ordinal = value.get("type"), value.get("payload"), value.get("ordinal")
        if not isinstance(kind, str) or kind not in _READ_LINES:
            known = isinstance(kind, str) and kind in _BOOKKEEPING_LINES
            return "bookkeeping" if known else unknown_type_reason(kind, skipped)
        if not isinstance(payload, dict):
            return "no_payload"
        if isinstance(ordinal, int) and ordinal < self._own_from:
            return "inherited"
        counted = None
        match kind:
            case "response_item":
                return self._add_item(line, payload, new, skipped)
            case "session_meta" if self._has_meta:
                return "bookkeeping"
            case "session_meta":
                self._has_meta = True
                self.meta = payload
                self.cwd = absolute_folder(payload.get("cwd")) or self.cwd
                own_from = payload.get("subagent_history_start_ordinal")
                self._own_from = own_from if isinstance(own_from, int) else 0
                bases = (payload.get("forked_from_id"), payload.get("history_base"))
                self._tally.is_fork = bases != (None, None)
            case "turn_context":
                self.turn = self.turn or payload
                self.cwd = self.cwd or absolute_folder(payload.get("cwd"))
            case "token_usage_record":
                counted = self._tally.add_record(payload)
            case _ if payload.get("type") == "token_count":
                counted = self._tally.add_snapshot(payload)
            case _ if payload.get("type") == _NAME_EVENT:
                self.name = text_or_none(payload.get("thread_name")) or self.name
                return "bookkeeping"
            case _:
                return "bookkeeping"
        if counted is not None:
            self.carriers.add_counts(line.offset, counted, new=new)
        return None

    def _add_item(self, line: SourceLine, payload: Payload, new: bool, skipped: Counter[str]) -> str | None:
        if not makes_message(payload):
            return item_skip_reason(payload) or unknown_type_reason(payload.get("type"), skipped)
        own_id = get_item_id(payload)
        repeated = own_id in self._ids
        if own_id is not None:
            self._ids.add(own_id)
        # `expand` skips a message that it has already seen, so counts on it would be lost.
        can_carry = not repeated and can_carry_usage(payload)
        if can_carry:
            self._tally.add_response()
        self.carriers.add_message(MessageSlot(line, new), role=get_item_role(payload), can_carry=can_carry)
        return None


def read_document(reader: SourceReader) -> Payload | None:
    """Return the file as a document of the old form, or None if it has another form."""
    head = reader.bytes_at(0, min(_HEAD_BYTES, reader.size))
    first, newline, rest = head.partition(b"\n")
    # A complete object on the first line, followed by more lines, is the new form.
    if not head.lstrip().startswith(b"{") or (newline and rest.strip() and _parse_or_none(first) is not None):
        return None
    whole = reader.read_all()
    found = None if whole is None else _parse_or_none(whole)
    return found if isinstance(found, dict) and isinstance(found.get("items"), list) else None


def _parse_or_none(data: bytes) -> Any:
    try:
        return canonical.loads(data)
    except (ValueError, RecursionError):
        return None


def makes_message(payload: Payload) -> bool:
    """Return whether the item makes a message, without building it."""
    item_type = payload.get("type")
    if item_type == "message":
        return bool(_list_texts(payload.get("content"), _TEXTS))
    if item_type == "reasoning":
        return bool(_reasoning_text(payload))
    return item_type in _CALLS or _is_output(item_type)


def item_skip_reason(payload: Payload) -> str | None:
    """Return why an item makes no message; None if its type is unknown."""
    item_type = payload.get("type")
    if item_type in ("message", "reasoning"):
        return "empty_content" if payload.get("encrypted_content") is None else "encrypted_reasoning"
    return "bookkeeping" if isinstance(item_type, str) and item_type in _BOOKKEEPING_ITEMS else None


def get_item_id(payload: Payload) -> str | None:
    return text_or_none(payload.get("id"))


def get_item_role(payload: Payload) -> str:
    item_type = payload.get("type")
    if item_type == "message":
        return text_or_none(payload.get("role")) or "user"
    return "tool" if _is_output(item_type) else "assistant"


def can_carry_usage(payload: Payload) -> bool:
    """Return whether a message can carry token counts: text or a tool call of the model."""
    return payload.get("type") != "reasoning" and get_item_role(payload) == "assistant"


def convert_item(payload: Payload, skipped: Counter[str]) -> tuple[str, list[dict[str, Any]]]:
    """Return the role and blocks of an item's message, and count blocks without text as skipped."""
    item_type, role = payload.get("type"), get_item_role(payload)
    if item_type == "message":
        content = payload.get("content")
        texts = _list_texts(content, _TEXTS)
        if isinstance(content, list) and len(texts) < len(content):
            skipped["block_without_text"] += len(content) - len(texts)
        return role, [{"type": "text", "text": text} for text in texts]
    if item_type == "reasoning":
        return role, [{"type": "thinking", "thinking": _reasoning_text(payload)}]
    call_id = payload.get("call_id")
    if _is_output(item_type):
        named = (payload.get(name) for name in ("output", "content", "text"))
        output = next((each for each in named if each is not None), payload)
        text = output if isinstance(output, str) else _dumps_in_order(output)
        return role, [{"type": "tool_result", "tool_use_id": call_id, "content": text}]
    call = {"type": "tool_use", "id": call_id or payload.get("id"), "name": payload.get("name")}
    return role, [{**call, "input": _parse_arguments(payload)}]


def _is_output(item_type: Any) -> bool:
    return isinstance(item_type, str) and item_type.endswith("_output")


def _list_texts(content: Any, types: frozenset[str]) -> list[str]:
    if isinstance(content, str):
        return [content] if content else []
    if not isinstance(content, list):
        return []
    return [
        text
        for block in content
        if isinstance(block, dict)
        and isinstance(text := block.get("text"), str)
        and text
        and isinstance(kind := block.get("type"), str)
        and kind in types
    ]


def _reasoning_text(payload: Payload) -> str:
    summary = _list_texts(payload.get("summary"), _REASONING_TEXTS)
    return "\n".join(summary or _list_texts(payload.get("content"), _REASONING_TEXTS))


def _parse_arguments(payload: Payload) -> Any:
    given = payload.get("arguments")
    if given is None:
        given = payload.get("input")
    if not isinstance(given, str):
        return given
    try:
        return canonical.loads(given)
    except (ValueError, RecursionError):
        return given


def _dumps_in_order(value: Any) -> str:
    """Serialize with the key order of the file. orjson cannot write integers beyond 64 bits."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def absolute_folder(path: Any) -> str | None:
    """Return a working folder if it is an absolute path, or else None."""
    return path if isinstance(path, str) and _ABSOLUTE.match(path) else None
