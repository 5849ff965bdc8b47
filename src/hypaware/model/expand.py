"""Expand an exchange into rows of `ai_gateway_messages`: one row per content part of each message.

Live capture and import share this expansion, so the same conversation gives the same rows. It accepts JSON values of
any shape in any field, never raises, and yields only rows that fit the dataset. Everything that makes no row or loses
a column is counted in `skipped` with a reason. It makes one pass, one message at a time. JSON columns are canonical
text; null columns and derived columns are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hypaware.model import canonical, storable
from hypaware.model.attributes import Attributes
from hypaware.model.blocks import Block, Part, bad_blocks, fill, has_parts, parts_of
from hypaware.model.columns import Type
from hypaware.model.datasets import Row
from hypaware.model.exchange import Exchange, Message
from hypaware.model.identity import Occurrences, fallback_id, scope_of
from hypaware.model.lineage import Lineage
from hypaware.model.messages import AI_GATEWAY_MESSAGES
from hypaware.model.storable import utc_text

# Also exported: functions with which transcript parsers count messages exactly as `expand` does.
__all__ = ["Occurrences", "expand", "fallback_id", "has_parts", "scope_of", "utc_text"]

_FINISH_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "pause_turn": "pause"}
# Columns that a parser may set, for the exchange or for one message; the others are computed.
_SETTABLE_NAMES = (
    *("user_id", "model", "system_text", "tools", "conversation_source"),
    *("cwd", "git_branch", "git_remote", "head_sha", "repo_root", "client_version", "entrypoint", "user_type"),
    *("permission_mode", "is_sidechain", "agent_id", "parent_thread_id"),
    *("provider_uuid", "parent_uuid", "logical_parent_uuid", "source_tool_assistant_uuid", "request_id", "prompt_id"),
    *("provider_type", "provider_subtype", "attachment_type", "hook_event"),
    *("is_compact_summary", "compact_metadata", "raw_frame"),
)
_SETTABLE = {name: AI_GATEWAY_MESSAGES.column(name).type for name in _SETTABLE_NAMES}
_SETTABLE_TEXT = frozenset(name for name, type_ in _SETTABLE.items() if type_ is Type.STRING)
_SETTABLE_FLAGS = frozenset(name for name, type_ in _SETTABLE.items() if type_ is Type.BOOLEAN)


def expand(exchange: Exchange, *, gateway: Mapping[str, Any], skipped: Counter[str]) -> Iterator[Row]:
    """Yield the rows of the exchange's fresh messages; `gateway` is merged into `attributes.gateway`."""
    expansion = _Expansion(exchange, gateway, skipped)
    for message in exchange.messages:
        yield from expansion.rows_of(message)


class _Expansion:
    def __init__(self, exchange: Exchange, gateway: Mapping[str, Any], skipped: Counter[str]) -> None:
        self._skipped = skipped
        self._shared = _shared_columns(exchange, skipped)
        self._scope = (self._shared.get("session_id", ""), self._shared.get("conversation_id"))
        self._attributes = Attributes(exchange, gateway, skipped)
        self._lineage = Lineage(exchange.links)
        self._occurrences = Occurrences()
        self._tool_names: dict[tuple[Any, str], str] = {}
        self._index = 0
        self._started_at = utc_text(exchange.started_at)
        fallback, self._fallback_source = exchange.fallback_time or (None, "")
        self._fallback_time = utc_text(fallback)

    def rows_of(self, message: Message) -> list[Row]:
        parts = parts_of(message.content)
        own_id = message.message_id if isinstance(message.message_id, str) else None
        message_id = own_id or self._fallback_id(message, parts)
        created_at, time_source = self._time_of(message)
        if reason := self._skip_reason(message, message_id, parts, created_at):
            if message.fresh:
                self._skipped[reason] += 1
            return []
        agent_id = message.columns.get("agent_id")
        thread = agent_id if isinstance(agent_id, str) else None
        self._add_tool_names(thread, parts)
        parent = message.parent if isinstance(message.parent, str) else None
        previous = self._lineage.add(message_id, parent)
        index, self._index = self._index, self._index + 1
        self._shared.setdefault("conversation_started_at", created_at)
        if not message.fresh:
            return []
        if bad := bad_blocks(message.content, parts):
            self._skipped["bad_block"] += bad
        columns = {
            **self._shared,
            **_given(message.columns, self._skipped),
            "message_id": message_id,
            "previous_message_id": "[]" if previous is None else canonical.text([previous]),
            "message_index": index,
            "message_created_at": created_at,
            "role": message.role,
        }
        origins = (None if own_id else "gateway_fallback", time_source)
        usage = None if message.usage is None else self._attributes.valid_usage(message.usage)
        last = len(parts) - 1
        if last or not usage:
            columns["attributes"] = self._attributes.as_text(message, *origins)
        rows = [
            self._row(columns if number == last else columns.copy(), index, block, thread)
            for number, (index, block) in enumerate(parts)
        ]
        if usage:
            rows[-1]["attributes"] = self._attributes.as_text(message, *origins, usage)
        self._write_status(rows, message)
        return rows

    def _skip_reason(self, message: Message, message_id: str, parts: list[Part], created_at: str | None) -> str | None:
        """Return why a message makes no row. Must not depend on `fresh`: later messages count this one either way."""
        if "session_id" not in self._shared:
            return "no_session"
        if not _is_text(message.role):
            return "no_role"
        if not parts:
            return "empty_content"
        if not _is_text(message_id):
            return "bad_message_id"
        if created_at is None:
            return "no_time"
        return "duplicate_message" if message_id in self._lineage else None

    def _fallback_id(self, message: Message, parts: list[Part]) -> str:
        if not parts or not _is_text(message.role):
            return ""
        scope = scope_of(*self._scope, message.columns.get("agent_id"))
        occurrence = message.occurrence
        if occurrence is None:
            occurrence = self._occurrences.add(scope, message.role, message.content)
        return fallback_id(scope, message.role, message.content, occurrence)

    def _time_of(self, message: Message) -> tuple[str | None, str | None]:
        """Return the time of a message, and the origin of that time unless the message itself has one."""
        if own := utc_text(message.created_at):
            return own, None
        if message.created_at is not None and message.fresh:
            self._skipped["bad_created_at"] += 1
        if self._started_at:
            return self._started_at, "session_start"
        return self._fallback_time, self._fallback_source

    def _add_tool_names(self, thread: str | None, parts: list[Part]) -> None:
        for _, block in parts:
            if "name" in block:
                call_id, name = block.get("id"), block["name"]
                if isinstance(call_id, str) and isinstance(name, str):
                    self._tool_names[thread, call_id] = name

    def _row(self, row: Row, index: int, block: Block, thread: str | None) -> Row:
        fill(row, block, self._skipped)
        row["part_index"] = index
        row["part_id"] = f"{row['message_id']}#{index}"
        if call_id := row.get("tool_result_for"):
            storable.put_text(row, "tool_name", self._tool_names.get((thread, call_id)), self._skipped)
        return row

    def _write_status(self, rows: list[Row], message: Message) -> None:
        """Write the status of each part; the status of the message goes to its last part."""
        if status_of_message := self._status_of(message):
            rows[-1]["status"] = {**rows[-1].get("status", {}), **status_of_message}
            if "error_code" in status_of_message or "error_message" in status_of_message:
                rows[-1]["is_error"] = True
        for row in rows:
            if (status := row.get("status")) is not None:
                row["status"] = canonical.text(status)

    def _status_of(self, message: Message) -> Row | None:
        if message.finish_reason is None and message.error_code is None and message.error_message is None:
            return None
        status: Row = {}
        if message.finish_reason is not None and message.role == "assistant":
            reason = storable.text(message.finish_reason, "status", self._skipped)
            if reason:
                status["finish_reason"] = _FINISH_REASONS.get(reason, reason)
        storable.put_text(status, "error_code", message.error_code, self._skipped)
        storable.put_long_text(status, "error_message", message.error_message, self._skipped)
        return status


def _shared_columns(exchange: Exchange, skipped: Counter[str]) -> Row:
    columns = dict(_given(exchange.columns, skipped))
    for name in ("session_id", "conversation_id", "provider", "client_name", "client_version"):
        storable.put_text(columns, name, getattr(exchange, name) or None, skipped)
    columns.setdefault("provider", "unknown")
    started_at = utc_text(exchange.started_at)
    if started_at is None and exchange.fallback_time is not None:
        started_at = utc_text(exchange.fallback_time[0])
    if started_at is not None:
        columns["conversation_started_at"] = started_at
    return columns


def _given(columns: Mapping[str, Any], skipped: Counter[str]) -> Mapping[str, Any]:
    """Return the columns that the parser set, without those of an unknown name or a wrong type."""
    changed: Row = {}
    for name, value in columns.items():
        if (type(value) is str and name in _SETTABLE_TEXT and value.isascii()) or (
            type(value) is bool and name in _SETTABLE_FLAGS
        ):
            continue
        if value is None or name not in _SETTABLE:
            changed[name] = None
            if value is not None:
                skipped["unknown_column"] += 1
        elif (sanitized := _JUDGES[_SETTABLE[name]](value, name, skipped)) is not value:
            changed[name] = sanitized
    if not changed:
        return columns
    given = {**columns, **changed}
    return {name: value for name, value in given.items() if value is not None} if None in changed.values() else given


_JUDGES: dict[Type, Callable[[Any, str, Counter[str]], Any]] = {
    Type.STRING: storable.text,
    Type.BOOLEAN: storable.flag,
    Type.JSON: storable.json_text,
}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != "" and (value.isascii() or storable.is_encodable(value))
