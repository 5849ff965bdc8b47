"""Values of JSON that others wrote: read as what they should be, and as nothing if they are something else."""

from __future__ import annotations

from typing import Any

from hypaware.model import canonical

Block = dict[str, Any]
"""One block of a message's content."""


def to_blocks(content: Any) -> list[Any]:
    """Return content as a list of blocks; strings become text blocks."""
    if isinstance(content, list):
        return [_text_block(item) if isinstance(item, str) else item for item in content]
    if isinstance(content, str):
        return [_text_block(content)] if content else []
    return [content] if isinstance(content, dict) else []


def _text_block(text: str) -> Block:
    return {"type": "text", "text": text}


def join_texts(value: Any) -> str | None:
    """Join a system prompt into one text, as the import does."""
    if isinstance(value, list):
        texts = [block.get("text") if isinstance(block, dict) else block for block in value]
        return "\n".join(each for each in texts if isinstance(each, str)) or None
    return as_text(value)


def as_mapping(value: Any) -> dict[str, Any]:
    """Return an untrusted JSON value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def as_text(value: Any) -> str | None:
    """Return the value if it is text that is not blank."""
    return value if isinstance(value, str) and value.strip() else None


def parse_json(value: Any) -> Any:
    """Parse text as JSON; return None if it is not JSON."""
    if not isinstance(value, str):
        return None
    try:
        return canonical.loads(value)
    except (ValueError, RecursionError):
        return None
