"""Escapes text for display on a terminal.

Recorded sessions can contain any bytes that a program printed. Escape sequences could move the cursor, change the
window title or simulate input; direction overrides can make text read differently from its content. Both are printed
as the escapes of JSON and Python, so that nothing is lost and nothing takes effect.
"""

from __future__ import annotations

import re

# C0 without tab and newline, DEL and C1, direction marks, line and paragraph separators, lone surrogates.
_UNSAFE = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
_IN_BLOCK = re.compile(f"[{_UNSAFE}]")
_IN_CELL = re.compile(f"[{_UNSAFE}\t\n]")
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def harmless(text: str) -> str:
    """Escape a block of text. Newlines and tabs are kept."""
    return _IN_BLOCK.sub(_escape, text)


def harmless_cell(text: str) -> str:
    """Escape a table cell or a value within a line. The result is always one line."""
    return _IN_CELL.sub(_escape, text)


def harmless_json(document: str) -> str:
    """Escape JSON text that has no raw newlines in its strings. The JSON value stays the same."""
    return _IN_BLOCK.sub(lambda match: f"\\u{ord(match.group()):04x}", document)


def _escape(match: re.Match[str]) -> str:
    char = match.group()
    if char in _SHORT:
        return _SHORT[char]
    return f"\\x{ord(char):02x}" if ord(char) < 0x100 else f"\\u{ord(char):04x}"
