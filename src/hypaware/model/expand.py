"""Exchanges, and their expansion into rows of `ai_gateway_messages`: one row per content part of each message.

Transcript parsers, the gateway and plugins share this expansion, so the same conversation gives the same rows. It
accepts JSON values of any shape in any field, never raises, and yields only rows that fit the dataset. Everything that
makes no row or loses a column is counted in `skipped` with a reason. It makes one pass, so `messages` may be a
generator. JSON columns are canonical text; null columns and derived columns are left out.

The `attributes` column holds groups (client, usage, gateway, …) of values that have no column of their own. Groups
merge one level deep, and later ones win: client, message, exchange, gateway. Token counts are added last, and only to
the one row of a response that carries them.

A part's index is the position of its block, so it does not depend on the other blocks. Whether a block makes a part
depends only on its type; its fields are checked afterwards. Plain text counts as one text block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hypaware.model import canonical, sanitize
from hypaware.model.columns import ColumnType
from hypaware.model.datasets import Row
from hypaware.model.json_values import Block, to_blocks
from hypaware.model.message_ids import Lineage, Occurrences, compute_fallback_id, fallback_scope
from hypaware.model.sanitize import to_utc_text
from hypaware.model.schemas import AI_GATEWAY_MESSAGES

Groups = dict[str, Any]
USAGE_KEYS = (
    *("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"),
    *("reasoning_tokens", "total_tokens", "cache_write_1h_tokens"),
)
_PART_TYPES = {
    "text": "text",
    "thinking": "reasoning",
    "redacted_thinking": "reasoning",
    "tool_use": "tool_call",
    "server_tool_use": "tool_call",
    "tool_result": "tool_result",
    "web_search_tool_result": "tool_result",
    "image": "image",
    "document": "file",
    "file": "file",
    "error": "error",
}
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
_SETTABLE_TEXT = frozenset(name for name, type_ in _SETTABLE.items() if type_ is ColumnType.STRING)
_SETTABLE_FLAGS = frozenset(name for name, type_ in _SETTABLE.items() if type_ is ColumnType.BOOLEAN)
_SANITIZERS: dict[ColumnType, Callable[[Any, str, Counter[str]], Any]] = {
    ColumnType.STRING: sanitize.sanitize_text,
    ColumnType.BOOLEAN: sanitize.sanitize_flag,
    ColumnType.JSON: sanitize.sanitize_json,
}


@dataclass(slots=True, kw_only=True, eq=False)
class Message:
    """One message of an exchange. `columns` holds further columns of its rows.

    Not frozen: an import creates hundreds of thousands of these, and freezing doubles the cost of creating one.
    """

    role: Any
    content: Any
    """Text, a list of blocks, or any other value that the client wrote."""
    created_at: Any = None
    """ISO 8601, as the client wrote it."""
    message_id: str | None = None
    """The client's own id; None requests the fallback id."""
    occurrence: int | None = None
    """How many earlier messages have the same fallback id, if the caller counts them: in file order, which stays the
    same when the file grows. None lets `expand` count in the order of `messages`."""
    parent: str | None = None
    """The id at which the search in `Exchange.links` for the previous message starts."""
    fresh: bool = True
    """False if it was recorded before or is outside the window: it makes no rows, but other messages refer to it."""
    usage: Mapping[str, Any] | None = None
    """Token counts for the last part of this message; only one message of a response has them."""
    finish_reason: Any = None
    error_code: Any = None
    error_message: Any = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    provider: str
    session_id: str
    client_name: str
    messages: Iterable[Message]
    conversation_id: str | None = None
    client_version: str | None = None
    started_at: Any = None
    """The earliest time of the conversation; ISO 8601."""
    fallback_time: tuple[str, str] | None = None
    """The time of messages without one, and its origin: `file_name` or `file_mtime`."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Further columns that all its rows share."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    links: Mapping[str, str | None] | None = None
    """id → previous id, for transcript lines that make no rows. An id that is not in it is the id of a message. Without
    links, each message follows the one before it."""


class Expansion:
    """The expansion of one exchange. `gateway` is merged into `attributes.gateway`."""

    def __init__(self, exchange: Exchange, *, gateway: Mapping[str, Any], skipped: Counter[str]) -> None:
        self._messages, self._skipped = exchange.messages, skipped
        self._shared = dict(_settable_columns(exchange.columns, skipped))
        for name in ("session_id", "conversation_id", "provider", "client_name", "client_version"):
            sanitize.put_text(self._shared, name, getattr(exchange, name) or None, skipped)
        self._shared.setdefault("provider", "unknown")
        self._started_at = to_utc_text(exchange.started_at)
        fallback, self._fallback_source = exchange.fallback_time or (None, "")
        self._fallback_time = to_utc_text(fallback)
        if started_at := self._started_at or self._fallback_time:
            self._shared["conversation_started_at"] = started_at
        self._scope = (self._shared.get("session_id", ""), self._shared.get("conversation_id"))
        self._attributes = _Attributes(exchange, gateway, skipped)
        self._lineage = Lineage(exchange.links)
        self._occurrences = Occurrences()
        self._tool_names: dict[tuple[Any, str], str] = {}
        self._index = 0

    def rows(self) -> Iterator[Row]:
        """Yield the rows of the fresh messages."""
        for message in self._messages:
            blocks = to_blocks(message.content)
            parts = [(index, block) for index, block in enumerate(blocks) if _makes_part(block)]
            own_id = message.message_id if isinstance(message.message_id, str) else None
            message_id = own_id or self._fallback_id(message, parts)
            created_at, time_source = self._time_of(message)
            if reason := self._skip_reason(message, message_id, parts, created_at):
                if message.fresh:
                    self._skipped[reason] += 1
                continue
            agent_id = message.columns.get("agent_id")
            thread = agent_id if isinstance(agent_id, str) else None
            for _, block in parts:
                if "name" in block:
                    call_id, name = block.get("id"), block["name"]
                    if isinstance(call_id, str) and isinstance(name, str):
                        self._tool_names[thread, call_id] = name
            parent = message.parent if isinstance(message.parent, str) else None
            previous = self._lineage.add(message_id, parent)
            index, self._index = self._index, self._index + 1
            self._shared.setdefault("conversation_started_at", created_at)
            if not message.fresh:
                continue
            if isinstance(message.content, list) and len(parts) < len(message.content):
                self._skipped["bad_block"] += len(message.content) - len(parts)
            columns = {
                **self._shared,
                **_settable_columns(message.columns, self._skipped),
                "message_id": message_id,
                "previous_message_id": "[]" if previous is None else canonical.dumps([previous]),
                "message_index": index,
                "message_created_at": created_at,
                "role": message.role,
            }
            origins = (None if own_id else "gateway_fallback", time_source)
            usage = None if message.usage is None else self._attributes.valid_usage(message.usage)
            last = len(parts) - 1
            if last or not usage:
                columns["attributes"] = self._attributes.as_text(message, *origins)
            rows = []
            for number, (part_index, block) in enumerate(parts):
                row = columns if number == last else columns.copy()
                block_type = block["type"]
                row["part_type"] = part_type = _PART_TYPES.get(block_type, block_type)
                row.setdefault("provider_subtype", block_type)
                _FILLERS.get(part_type, _fill_text)(row, block, self._skipped)
                row["part_index"] = part_index
                row["part_id"] = f"{message_id}#{part_index}"
                if call_id := row.get("tool_result_for"):
                    sanitize.put_text(row, "tool_name", self._tool_names.get((thread, call_id)), self._skipped)
                rows.append(row)
            if usage:
                rows[-1]["attributes"] = self._attributes.as_text(message, *origins, usage)
            self._write_status(rows, message)
            yield from rows

    def _skip_reason(
        self, message: Message, message_id: str, parts: list[tuple[int, Block]], created_at: str | None
    ) -> str | None:
        """Return why a message makes no row. Must not depend on `fresh`: later messages count this one either way."""
        if "session_id" not in self._shared:
            return "no_session"
        if not _is_storable_text(message.role):
            return "no_role"
        if not parts:
            return "empty_content"
        if not _is_storable_text(message_id):
            return "bad_message_id"
        if created_at is None:
            return "no_time"
        return "duplicate_message" if message_id in self._lineage else None

    def _fallback_id(self, message: Message, parts: list[tuple[int, Block]]) -> str:
        if not parts or not _is_storable_text(message.role):
            return ""
        scope = fallback_scope(*self._scope, message.columns.get("agent_id"))
        occurrence = message.occurrence
        if occurrence is None:
            occurrence = self._occurrences.add(scope, message.role, message.content)
        return compute_fallback_id(scope, message.role, message.content, occurrence)

    def _time_of(self, message: Message) -> tuple[str | None, str | None]:
        """Return the time of a message, and the origin of that time unless the message itself has one."""
        if own := to_utc_text(message.created_at):
            return own, None
        if message.created_at is not None and message.fresh:
            self._skipped["bad_created_at"] += 1
        if self._started_at:
            return self._started_at, "session_start"
        return self._fallback_time, self._fallback_source

    def _write_status(self, rows: list[Row], message: Message) -> None:
        """Write the status of each part; the status of the message goes to its last part."""
        own: Row = {}
        if message.finish_reason is not None and message.role == "assistant":
            reason = sanitize.sanitize_text(message.finish_reason, "status", self._skipped)
            if reason:
                own["finish_reason"] = _FINISH_REASONS.get(reason, reason)
        if message.error_code is not None or message.error_message is not None:
            sanitize.put_text(own, "error_code", message.error_code, self._skipped)
            sanitize.put_long_text(own, "error_message", message.error_message, self._skipped)
        if own:
            rows[-1]["status"] = {**rows[-1].get("status", {}), **own}
            if "error_code" in own or "error_message" in own:
                rows[-1]["is_error"] = True
        for row in rows:
            if (status := row.get("status")) is not None:
                row["status"] = canonical.dumps(status)


def _settable_columns(columns: Mapping[str, Any], skipped: Counter[str]) -> Mapping[str, Any]:
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
        elif (sanitized := _SANITIZERS[_SETTABLE[name]](value, name, skipped)) is not value:
            changed[name] = sanitized
    if not changed:
        return columns
    given = {**columns, **changed}
    return {name: value for name, value in given.items() if value is not None} if None in changed.values() else given


def _is_storable_text(value: Any) -> bool:
    return isinstance(value, str) and value != "" and (value.isascii() or sanitize.is_encodable(value))


class _Attributes:
    """Renders the attributes of one exchange's messages as canonical JSON text."""

    def __init__(self, exchange: Exchange, gateway: Mapping[str, Any], skipped: Counter[str]) -> None:
        self._skipped = skipped
        name = sanitize.sanitize_text(exchange.client_name, "attributes", Counter())
        version = sanitize.sanitize_text(exchange.client_version, "attributes", Counter())
        self._client: Groups = {"client": {"name": name, "version": version}}
        self._exchange = self._valid_groups(exchange.attributes)
        self._gateway = self._valid_groups({"gateway": dict(gateway)})
        self._plain = _merge_groups(_merge_groups(self._client, self._exchange), self._gateway)
        self._plain_text = sanitize.sanitize_json(self._plain, "attributes", skipped)

    def as_text(
        self, message: Message, identity_source: str | None, time_source: str | None, usage: Groups | None = None
    ) -> str:
        if not (message.attributes or identity_source or time_source):
            if not usage:
                return self._plain_text
            groups = self._plain
        else:
            own = self._valid_groups(message.attributes)
            if not (identity_source or time_source) and self._plain.keys().isdisjoint(own):
                groups = {**self._plain, **own}
            else:
                sources = {"identity_source": identity_source, "time_source": time_source}
                groups = _merge_groups(self._client, own)
                groups = _merge_groups(groups, self._exchange)
                groups = _merge_groups(groups, {"gateway": {name: value for name, value in sources.items() if value}})
                groups = _merge_groups(groups, self._gateway)
        if usage:
            groups = {**groups, "usage": usage}
        return sanitize.sanitize_json(groups, "attributes", self._skipped)

    def valid_usage(self, given: Any) -> Groups | None:
        """Return the token counts that are integers below 2^53 and count the others as skipped."""
        if not isinstance(given, Mapping):
            self._skipped["bad_usage"] += 1
            return None
        counts = {name: given[name] for name in USAGE_KEYS if given.get(name) is not None}
        good = {name: count for name, count in counts.items() if type(count) is int and abs(count) < 2**53}
        if len(good) < len(counts):
            self._skipped["bad_usage"] += len(counts) - len(good)
        return good

    def _valid_groups(self, groups: Mapping[str, Any]) -> Groups:
        """Return the groups whose names are allowed. Their values are checked when they are written."""
        valid: Groups = {}
        for name, value in groups.items():
            if not isinstance(name, str) or name == "usage" or (name == "client" and not isinstance(value, dict)):
                self._skipped["bad_attributes"] += 1
            elif value is not None:
                valid[name] = value
        return valid


def _merge_groups(lower: Groups, upper: Groups) -> Groups:
    merged = {**lower}
    for name, value in upper.items():
        current = merged.get(name)
        merged[name] = {**current, **value} if isinstance(current, dict) and isinstance(value, dict) else value
    return merged


def has_parts(content: Any) -> bool:
    """Return whether a message with this content makes at least one row."""
    if isinstance(content, list):
        return any(_makes_part(item) or isinstance(item, str) for item in content)
    return content != "" if isinstance(content, str) else _makes_part(content)


def _fill_text(row: Row, block: Block, skipped: Counter[str]) -> None:
    sanitize.put_long_text(row, "content_text", block.get("text"), skipped)


def _fill_reasoning(row: Row, block: Block, skipped: Counter[str]) -> None:
    content = block.get("thinking") if block["type"] == "thinking" else block.get("data")
    sanitize.put_long_text(row, "content_text", content, skipped)
    sanitize.put_text(row, "thinking_signature", block.get("signature"), skipped)


def _fill_tool_call(row: Row, block: Block, skipped: Counter[str]) -> None:
    sanitize.put_text(row, "tool_name", block.get("name"), skipped)
    sanitize.put_text(row, "tool_call_id", block.get("id"), skipped)
    if (arguments := block.get("input")) is not None:
        row["tool_args"] = sanitize.sanitize_json(arguments, "tool_args", skipped)
    if (caller := block.get("caller")) is not None:
        sanitize.put_text(row, "caller_type", caller.get("type") if isinstance(caller, dict) else caller, skipped)


def _fill_tool_result(row: Row, block: Block, skipped: Counter[str]) -> None:
    content = block.get("content")
    sanitize.put_text(row, "tool_result_for", block.get("tool_use_id"), skipped)
    if "tool_result_for" in row:
        row["tool_call_id"] = row["tool_result_for"]
    sanitize.put_long_text(row, "content_text", _result_text(content), skipped)
    if sanitize.sanitize_flag(block.get("is_error"), "is_error", skipped):
        row["is_error"] = True
    # A failed server-side tool has an error type in its content: web_search_tool_result_error.
    code = None
    if isinstance(content, dict) and str(content.get("type")).endswith("_error"):
        row["is_error"] = True
        code = sanitize.sanitize_text(content.get("error_code"), "status", skipped)
    status = {"tool_status": "error" if "is_error" in row else "success"}
    row["status"] = status if code is None else {**status, "error_code": code}


def _fill_error(row: Row, block: Block, skipped: Counter[str]) -> None:
    row["is_error"] = True
    for name in ("message", "text", "error"):
        found = block.get(name)
        if isinstance(found, dict):
            found = found.get("message")
        if isinstance(found, str):
            sanitize.put_long_text(row, "content_text", found, skipped)
            return


_FILLERS = {
    "text": _fill_text,
    "reasoning": _fill_reasoning,
    "tool_call": _fill_tool_call,
    "tool_result": _fill_tool_result,
    "error": _fill_error,
}


def _result_text(content: Any) -> Any:
    if isinstance(content, list):
        texts = [item.get("text") if isinstance(item, dict) else item for item in content]
        found = [item for item in texts if isinstance(item, str)]
        return "\n".join(found) if found else None
    return content.get("text") if isinstance(content, dict) else content


def _makes_part(block: Any) -> bool:
    """An unknown block type makes a part if it can be stored unchanged as a part type."""
    block_type = block.get("type") if isinstance(block, dict) else None
    if not isinstance(block_type, str) or block_type in _PART_TYPES:
        return isinstance(block_type, str)
    return block_type.isascii() and block_type.isprintable() and 0 < len(block_type) <= 200
