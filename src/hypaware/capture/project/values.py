"""Accessors for untrusted JSON values: they return the value if it has the expected type, else an empty one."""

from __future__ import annotations

import hashlib
from typing import Any

from hypaware.model import canonical
from hypaware.model.storable import mended


def mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def text(value: Any) -> str | None:
    """Return the value if it is text that is not blank."""
    return value if isinstance(value, str) and value.strip() else None


def parsed(value: Any) -> Any:
    """Parse text as JSON; return None if it is not JSON."""
    if not isinstance(value, str):
        return None
    try:
        return canonical.parse(value)
    except (ValueError, RecursionError):
        return None


def written(value: Any) -> str:
    """Return the canonical text of any value."""
    try:
        return canonical.text(value)
    except (ValueError, RecursionError):
        return canonical.text(mended(value))


def digest(*parts: str) -> str:
    """Hash the parts to 16 hex digits."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:16]


def joined_texts(value: Any) -> str | None:
    """Join a system prompt into one text, as the import does."""
    if isinstance(value, list):
        texts = [block.get("text") if isinstance(block, dict) else block for block in value]
        return "\n".join(each for each in texts if isinstance(each, str)) or None
    return text(value)
