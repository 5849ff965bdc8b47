"""Convert the items of a Codex conversation into messages with a role and content blocks.

A `message` gives its text; a call gives a `tool_use` of the assistant; an output gives a `tool_result` with role
`tool`; `reasoning` gives its summary, or else its content, never the encrypted one. All other items make no row and
are counted, unknown ones under the name of their type.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import orjson

from hypaware.model import canonical

Payload = dict[str, Any]
Said = tuple[str, list[dict[str, Any]]]
"""Role and blocks."""

_TEXTS = frozenset({"text", "input_text", "output_text"})
_CALLS = ("function_call", "custom_tool_call")
_REASONING_TEXTS = _TEXTS | {"summary_text", "reasoning_text"}
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_NAME_LENGTH = 40
_MAX_NAMES = 20

# Known items that are not part of the conversation.
_BOOKKEEPING = frozenset(
    {
        "additional_tools",
        "agent_message",
        "compaction",
        "compaction_summary",
        "compaction_trigger",
        "context_compaction",
        "ghost_snapshot",
        "other",
    }
)


def says(payload: Payload) -> bool:
    """Return whether the item makes a message, without building it."""
    item_type = payload.get("type")
    if item_type == "message":
        return bool(_texts(payload.get("content"), _TEXTS))
    if item_type == "reasoning":
        return bool(_reasoning(payload))
    return item_type in _CALLS or _is_output(item_type)


def why_unsaid(payload: Payload) -> str | None:
    """Return why an item makes no message; None if its type is unknown."""
    item_type = payload.get("type")
    if item_type in ("message", "reasoning"):
        return "empty_content" if payload.get("encrypted_content") is None else "encrypted_reasoning"
    return "bookkeeping" if isinstance(item_type, str) and item_type in _BOOKKEEPING else None


def unknown_type(kind: Any, skipped: Counter[str]) -> str:
    """Return the skip reason for an unknown type: printable, short, and limited in number."""
    name = _UNSAFE.sub("?", kind[:_NAME_LENGTH]) if isinstance(kind, str) and kind else "none"
    reason = f"unknown_type:{name}"
    if reason not in skipped and sum(known.startswith("unknown_type:") for known in skipped) >= _MAX_NAMES:
        return "unknown_type:others"
    return reason


def own_id(payload: Payload) -> str | None:
    given = payload.get("id")
    return given if isinstance(given, str) and given.strip() else None


def role_of(payload: Payload) -> str:
    item_type = payload.get("type")
    if item_type == "message":
        role = payload.get("role")
        return role if isinstance(role, str) and role.strip() else "user"
    return "tool" if _is_output(item_type) else "assistant"


def carries_usage(payload: Payload) -> bool:
    """Return whether a message can carry token counts: text or a tool call of the model."""
    return payload.get("type") != "reasoning" and role_of(payload) == "assistant"


def said(payload: Payload, skipped: Counter[str]) -> Said:
    """Return the role and blocks of an item's message, and count blocks without text as skipped."""
    item_type, role = payload.get("type"), role_of(payload)
    if item_type == "message":
        content = payload.get("content")
        texts = _texts(content, _TEXTS)
        if isinstance(content, list) and len(texts) < len(content):
            skipped["block_without_text"] += len(content) - len(texts)
        return role, [{"type": "text", "text": text} for text in texts]
    if item_type == "reasoning":
        return role, [{"type": "thinking", "thinking": _reasoning(payload)}]
    call_id = payload.get("call_id")
    if _is_output(item_type):
        return role, [{"type": "tool_result", "tool_use_id": call_id, "content": _output(payload)}]
    call = {"type": "tool_use", "id": call_id or payload.get("id"), "name": payload.get("name")}
    return role, [{**call, "input": _arguments(payload)}]


def _is_output(item_type: Any) -> bool:
    return isinstance(item_type, str) and item_type.endswith("_output")


def _texts(content: Any, types: frozenset[str]) -> list[str]:
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


def _reasoning(payload: Payload) -> str:
    texts = _texts(payload.get("summary"), _REASONING_TEXTS) or _texts(payload.get("content"), _REASONING_TEXTS)
    return "\n".join(texts)


def _arguments(payload: Payload) -> Any:
    given = payload.get("arguments")
    if given is None:
        given = payload.get("input")
    if not isinstance(given, str):
        return given
    try:
        return canonical.parse(given)
    except (ValueError, RecursionError):
        return given


def _output(payload: Payload) -> str:
    given = next((found for name in ("output", "content", "text") if (found := payload.get(name)) is not None), payload)
    return given if isinstance(given, str) else _json(given)


def _json(value: Any) -> str:
    """Serialize with the key order of the file. orjson cannot write integers beyond 64 bits."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
