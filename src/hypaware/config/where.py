"""Finds the line of a key in TOML text. Needed for error messages only, so it may take its time.

A TOML file is a list of statements, and the text up to the end of any statement is a TOML file too. So the
key appears in the statement that begins right after the longest such prefix without it.
"""

from __future__ import annotations

import json
import tomllib
from typing import Any

_MOST_LINES = 2000

KeyPath = tuple[str | int, ...]


def line_of(text: str, path: KeyPath) -> int | None:
    """The line (from 1) of the statement that first brings in the key; None where that cannot be said."""
    lines = text.splitlines(keepends=True)
    if len(lines) > _MOST_LINES:
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
    """The key as one would write it: `gateway.upstreams[0].name`, quoted where TOML needs it."""
    shown = ""
    for part in path:
        if isinstance(part, int):
            shown += f"[{part}]"
        else:
            bare = part.replace("-", "").replace("_", "").isalnum() and part.isascii()
            shown += ("." if shown else "") + (part if bare else json.dumps(part, ensure_ascii=False))
    return shown
