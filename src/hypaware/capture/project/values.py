"""Values of any JSON shape, looked at without trust: the wanted kind, or nothing."""

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
    """Text that says something."""
    return value if isinstance(value, str) and value.strip() else None


def parsed(value: Any) -> Any:
    """Text that holds JSON as that JSON; None for all else."""
    if not isinstance(value, str):
        return None
    try:
        return canonical.parse(value)
    except (ValueError, RecursionError):
        return None


def written(value: Any) -> str:
    """Canonical text of any value at all."""
    try:
        return canonical.text(value)
    except (ValueError, RecursionError):
        return canonical.text(mended(value))


def digest(*parts: str) -> str:
    """16 hex digits that stand for the parts."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:16]


def joined_texts(value: Any) -> str | None:
    """A system prompt as one text, as the import writes it."""
    if isinstance(value, list):
        texts = [block.get("text") if isinstance(block, dict) else block for block in value]
        return "\n".join(each for each in texts if isinstance(each, str)) or None
    return text(value)
