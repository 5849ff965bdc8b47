"""Who a message is when its client gave it no id: a hash of where it stands, who says it and what it says.

`sha256(<scope>:<role>:<canonical JSON of its blocks>)`, the first 16 hex digits; the scope is the conversation, else
the session, then the agent. The same words said again in one thread are another message: from the second on, the
hash takes in how many came before (`…:<n>`). What a client adds for a moment only (`cache_control`, `caller`) is no
part of it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

from hypaware.model import canonical
from hypaware.model.blocks import as_blocks
from hypaware.model.storable import mended

_FLEETING = ("cache_control", "caller")


def scope_of(session_id: str, conversation_id: Any = None, agent_id: Any = None) -> str:
    scope = conversation_id if isinstance(conversation_id, str) and conversation_id else session_id
    return f"{scope}:{agent_id}" if isinstance(agent_id, str) and agent_id else scope


def fallback_id(scope: str, role: str, content: Any, occurrence: int = 0) -> str:
    """`occurrence`: how many of the same came before it."""
    blocks = [_lasting(block) for block in as_blocks(content)]
    try:
        said = canonical.text(blocks)
    except ValueError:
        said = canonical.text(mended(blocks))
    counted = f":{occurrence}" if occurrence else ""
    return hashlib.sha256(f"{scope}:{role}:{said}{counted}".encode("utf-8", "replace")).hexdigest()[:16]


class Occurrences:
    """Counts the messages without an id that are alike, in the order in which they are shown to it."""

    def __init__(self) -> None:
        self._count: Counter[str] = Counter()

    def before(self, scope: str, role: str, content: Any) -> int:
        """How many like this one came before it."""
        alike = fallback_id(scope, role, content)
        self._count[alike] += 1
        return self._count[alike] - 1


def _lasting(block: Any) -> Any:
    if isinstance(block, dict) and not block.keys().isdisjoint(_FLEETING):
        return {key: value for key, value in block.items() if key not in _FLEETING}
    return block
