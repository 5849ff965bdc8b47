"""The dialect of an exchange, chosen by its path. An unknown dialect is counted by its path and stored raw."""

from __future__ import annotations

import re
from collections.abc import Callable

from hypaware.capture.decoded import Decoded
from hypaware.capture.project import anthropic, chat, responses
from hypaware.capture.project.turn import Turn

_READERS: tuple[tuple[re.Pattern[str], Callable[[Decoded], Turn]], ...] = (
    (re.compile(r"/v1/messages(?:/count_tokens)?/?$"), anthropic.read),
    (re.compile(r"/responses(?:/compact)?/?$"), responses.read),
    (re.compile(r"/chat/completions/?$"), chat.read),
)
_UNSAFE = re.compile(r"[^A-Za-z0-9_./-]")
_SEGMENTS, _LENGTH = 3, 60


def read(decoded: Decoded) -> Turn | str:
    """Read an exchange as a turn, or return the reason why it cannot be read, under which it is counted."""
    reader = next((reader for ends, reader in _READERS if ends.search(decoded.path)), None)
    if decoded.method != "POST" or reader is None:
        return f"no_dialect:{_shown(decoded.path)}"
    if not isinstance(decoded.request, dict):
        return f"unreadable_request:{_shown(decoded.path)}"
    return reader(decoded)


def _shown(path: str) -> str:
    """Shorten a path to a safe counter name; ids in deeper segments do not create new names."""
    return _UNSAFE.sub("?", "/".join(path.split("/")[: _SEGMENTS + 1]))[:_LENGTH]
