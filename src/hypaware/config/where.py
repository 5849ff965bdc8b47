"""Finds the line of a key in TOML text. It is used only for error messages, so it need not be fast.

A TOML file is a list of statements, and the text up to the end of any statement is valid TOML. So the key is defined
by the statement that follows the longest valid prefix without it.
"""

from __future__ import annotations

import json
import tomllib
from typing import Any

_MAX_LINES = 2000

KeyPath = tuple[str | int, ...]


def line_of(text: str, path: KeyPath) -> int | None:
    """Return the line, from 1, of the statement that defines the key, or None if it is unknown."""
    lines = text.splitlines(keepends=True)
    if len(lines) > _MAX_LINES:
        return None
    begin = 1
    for count in range(1, len(lines) + 1):
        try:
            table = tomllib.loads("".join(lines[:count]))
        except tomllib.TOMLDecodeError:
            continue
        if _has(table, path):
            return begin
        begin = count + 1
    return None


def _has(value: Any, path: KeyPath) -> bool:
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True


def dotted(path: KeyPath) -> str:
    """Format a key for display, such as `gateway.upstreams[0].name`, quoted where TOML requires it."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            bare = part.replace("-", "").replace("_", "").isalnum() and part.isascii()
            text += ("." if text else "") + (part if bare else json.dumps(part, ensure_ascii=False))
    return text
