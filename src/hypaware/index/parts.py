"""What the index holds of a row of `ai_gateway_messages`, computed from the row alone.

Turns. A user's message begins a turn if a person typed it: it is in the main thread, is not the summary of a compacted
history, and has text (or a file or an image) that the client did not write itself. Clients also put their own notes
into user messages: the folder and the date (Codex), the output of local commands, reminders. They begin with one of
`_CLIENT_NOTES`. A slash command or a shell command that the user typed is a turn.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from hypaware.index.blocks import encode_keys, encode_text
from hypaware.index.filters import month_of
from hypaware.index.prompts import is_client_note
from hypaware.index.schema import (
    COMPACT_SUMMARY,
    IS_ERROR,
    IS_LIVE,
    IS_TYPED,
    OFF_CONVERSATION,
    SIDECHAIN,
    TOKENS,
)
from hypaware.index.tokens import prepare_text
from hypaware.model.match_keys import MESSAGE_MATCH_RULES, PROMPT_HISTORY
from hypaware.model.schemas import GATEWAY_TYPE

COLUMNS = (
    *("gateway_id", "session_id", "client_name", "conversation_id", "agent_id", "parent_thread_id", "is_sidechain"),
    *("message_id", "previous_message_id", "request_id", "message_index", "message_created_at", "role"),
    *("part_index", "part_type", "provider_type", "provider_subtype", "content_text", "tool_name", "tool_call_id"),
    *("tool_args", "tool_result_for", "attachment_type", "is_error", "is_compact_summary", "status", "attributes"),
    *("raw_frame", "model", "cwd", "git_branch"),
)
"""The columns of a row that are indexed, in the order of the arguments of `make_part`."""
ATTRIBUTE_MARKS = ('"usage":', '"spawned_by_tool_use_id":', '"source":"live"', f'"source":"{PROMPT_HISTORY}"')
"""Attributes without any of these hold nothing that is indexed."""
_TYPED_PARTS = frozenset({"text", "image", "file"})
_USAGE_KEYS = (*tuple(f"{name}_tokens" for name in TOKENS), "cache_write_1h_tokens")
_RESPONSE_ID = re.compile(r'"message_id":"([^"\\]{1,200})"')
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MAX_COUNT = 1 << 53


@dataclass(slots=True, init=False, repr=False, eq=False)
class Part:
    """A row of `parts` with the names of its text columns, its tokens and its entry. Not frozen, for speed."""

    at: int
    branch: str | None
    client: str | None
    cwd: str | None
    flags: int
    hash: int
    keys: bytes
    machine: str
    message: int
    message_index: int
    model: str | None
    month: str
    part_index: int
    role: str
    seq: int
    session_id: str
    size: int
    text: str | None
    text_entry: bytes
    thread: str | None
    tool: str | None
    type: str
    usage: tuple[int, ...] | None


def make_part(
    with_text: bool,
    seq: int,
    gateway_id: str,
    session_id: str,
    client_name: str | None,
    conversation_id: str | None,
    agent_id: str | None,
    parent_thread_id: str | None,
    is_sidechain: bool | None,
    message_id: str,
    previous_message_id: str | None,
    request_id: str | None,
    message_index: int,
    at: int,
    role: str,
    part_index: int,
    part_type: str,
    provider_type: str | None,
    provider_subtype: str | None,
    content_text: str | None,
    tool_name: str | None,
    tool_call_id: str | None,
    tool_args: str | None,
    tool_result_for: str | None,
    attachment_type: str | None,
    is_error: bool | None,
    is_compact_summary: bool | None,
    status: str | None,
    attributes: str | None,
    raw_frame: str | None,
    model: str | None,
    cwd: str | None,
    git_branch: str | None,
) -> Part:
    flags = 0
    more: dict[str, Any] = {}
    usage = None
    if is_error:
        flags |= IS_ERROR
    if is_sidechain:
        flags |= SIDECHAIN
    if is_compact_summary:
        flags |= COMPACT_SUMMARY
    if provider_type == GATEWAY_TYPE:
        flags |= OFF_CONVERSATION
        more["subtype"] = provider_subtype
    if role == "user" and not flags and _is_typed(part_type, content_text):
        flags |= IS_TYPED
    if attributes is not None:
        groups = _parse_object(attributes)
        usage = _read_usage(groups.get("usage"))
        claude = groups.get("claude")
        if isinstance(claude, dict) and isinstance(spawned_by := claude.get("spawned_by_tool_use_id"), str):
            more["spawned_by"] = spawned_by
        if MESSAGE_MATCH_RULES.may_be_live({"attributes": attributes}):
            flags |= IS_LIVE
            gateway = groups.get("gateway")
            more["identity"] = gateway.get("identity_source") if isinstance(gateway, dict) else None
    if agent_id is not None:
        more["agent"] = agent_id
    if parent_thread_id is not None:
        more["parent_thread"] = parent_thread_id
    if attachment_type is not None:
        more["attachment"] = attachment_type
    if status is not None and status != '{"tool_status":"success"}':
        more["status"] = _parse_object(status)
    if role == "assistant" and part_type != "tool_call":
        if part_type == "error" and request_id is not None:
            more["request"] = request_id
        if response_id := find_response_id(raw_frame):
            more["response"] = hash_response_id(response_id)
    parent = None
    if previous_message_id is not None and previous_message_id != "[]":
        parent = _first_text(previous_message_id)
    if not with_text:
        content_text = tool_args = None
    part = Part()
    part.keys = encode_keys([seq, message_id, part_index, tool_call_id, tool_result_for, parent, more or None])
    part.text_entry = encode_text(content_text, tool_args)
    part.seq = seq
    part.machine = gateway_id
    part.session_id = session_id
    part.message = hash_message_id(message_id)
    part.message_index = message_index
    part.part_index = part_index
    part.at = at
    part.role = role
    part.type = part_type
    part.tool = tool_name
    part.model = model
    part.cwd = cwd
    part.branch = git_branch
    part.thread = agent_id or conversation_id
    part.client = client_name
    part.flags = flags
    part.usage = usage
    part.text = prepare_text(content_text, tool_args)
    part.size = len(part.keys) + len(part.text_entry)
    part.month = month_of(at)
    part.hash = 0
    return part


def hash_part(part: Part) -> int:
    """Return a 48-bit hash of everything that is indexed of a row."""
    columns = (
        *(part.machine, part.session_id, part.message_index, part.at, part.role, part.type, part.tool, part.model),
        *(part.cwd, part.branch, part.thread, part.client, part.flags, part.usage),
    )
    digest = hashlib.blake2b(part.keys, digest_size=6)
    digest.update(part.text_entry)
    digest.update(orjson.dumps(columns))
    return int.from_bytes(digest.digest())


def hash_message_id(message_id: str) -> int:
    """Return the 64-bit hash under which `parts` holds a message id."""
    digest = hashlib.blake2b(message_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def find_response_id(raw_frame: str | None) -> str | None:
    found = _RESPONSE_ID.search(raw_frame) if raw_frame is not None else None
    return found[1] if found else None


def hash_response_id(response_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(response_id.encode("utf-8", "surrogatepass"), digest_size=5).digest())


def to_microseconds(timestamp: str) -> int:
    """Return the microseconds since 1970 of a canonical timestamp."""
    return (datetime.fromisoformat(timestamp) - _EPOCH) // _MICROSECOND


def _is_typed(part_type: str, text: str | None) -> bool:
    if part_type not in _TYPED_PARTS:
        return False
    return part_type != "text" or (text is not None and text != "" and not is_client_note(text))


def _read_usage(usage: Any) -> tuple[int, ...] | None:
    if not isinstance(usage, Mapping):
        return None
    counts = tuple([_count_or_zero(usage.get(name)) for name in _USAGE_KEYS])
    return counts if any(counts) else None


def _count_or_zero(value: Any) -> int:
    return value if type(value) is int and abs(value) < _MAX_COUNT else 0


def _first_text(array: str) -> str | None:
    # Usually an array of one id, which needs no parser.
    if array.startswith('["') and array.endswith('"]') and array.count('"') == 2 and "\\" not in array:
        return array[2:-2]
    value = _parse(array)
    return value[0] if isinstance(value, list) and value and isinstance(value[0], str) else None


def _parse_object(text: str) -> dict[str, Any]:
    value = _parse(text)
    return value if isinstance(value, dict) else {}


def _parse(text: str) -> Any:
    try:
        return orjson.loads(text)
    except ValueError:
        return None
