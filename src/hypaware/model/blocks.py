"""Turn the content blocks of a message into parts, and fill the columns of a part.

Plain text counts as one text block. A part's index is the position of its block, so it does not depend on the other
blocks. Whether a block makes a part depends only on its type; its fields are checked afterwards.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypaware.model import sanitize
from hypaware.model.datasets import Row

Block = dict[str, Any]
Part = tuple[int, Block]
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


def to_blocks(content: Any) -> list[Any]:
    """Return content as a list of blocks; strings become text blocks."""
    if isinstance(content, list):
        return [_text_block(item) if isinstance(item, str) else item for item in content]
    if isinstance(content, str):
        return [_text_block(content)] if content else []
    return [content] if isinstance(content, dict) else []


def list_parts(content: Any) -> list[Part]:
    """Return (index, block) of each block that makes a part."""
    return [(index, block) for index, block in enumerate(to_blocks(content)) if _makes_part(block)]


def has_parts(content: Any) -> bool:
    """Return whether a message with this content makes at least one row."""
    if isinstance(content, list):
        return any(_makes_part(item) or isinstance(item, str) for item in content)
    return content != "" if isinstance(content, str) else _makes_part(content)


def fill_columns(row: Row, block: Block, skipped: Counter[str]) -> None:
    """Set the columns that one block determines. The tool name of a result is set by the caller."""
    block_type: str = block["type"]
    part_type = _PART_TYPES.get(block_type, block_type)
    row["part_type"] = part_type
    row.setdefault("provider_subtype", block_type)
    _FILLERS.get(part_type, _fill_text)(row, block, skipped)


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


def _text_block(text: str) -> Block:
    return {"type": "text", "text": text}
