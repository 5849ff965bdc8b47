"""Text that is safe to show on a terminal, whatever was stored.

Recorded sessions hold any bytes a program ever printed. Escape sequences could move the cursor, rewrite the
title or answer on the user's behalf; direction overrides make text read other than it is. Both are shown as
the escapes that JSON and Python use for them, so that nothing is lost and nothing acts.
"""

from __future__ import annotations

import re

# C0 without tab and newline, DEL and C1, direction marks, line and paragraph separators, lone surrogates.
_UNSAFE = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
_IN_BLOCK = re.compile(f"[{_UNSAFE}]")
_IN_CELL = re.compile(f"[{_UNSAFE}\t\n]")
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def harmless(text: str) -> str:
    """For text on lines of its own: newlines and tabs stay."""
    return _IN_BLOCK.sub(_escape, text)


def harmless_cell(text: str) -> str:
    """For a cell of a table or a value within a line: one line, always."""
    return _IN_CELL.sub(_escape, text)


def harmless_json(document: str) -> str:
    """For JSON text without raw newlines in its strings: what it escapes stays the same JSON value."""
    return _IN_BLOCK.sub(lambda found: f"\\u{ord(found.group()):04x}", document)


def _escape(found: re.Match[str]) -> str:
    char = found.group()
    if char in _SHORT:
        return _SHORT[char]
    return f"\\x{ord(char):02x}" if ord(char) < 0x100 else f"\\u{ord(char):04x}"
