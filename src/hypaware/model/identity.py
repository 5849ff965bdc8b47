"""The fallback id of a message whose client gave it none: a hash of its scope, role and content.

`sha256(<scope>:<role>:<canonical JSON of its blocks>)`, first 16 hex digits. The scope is the conversation, or else
the session, followed by the agent. Repeated messages in one thread get different ids: from the second on, the hash
includes the number of earlier ones (`…:<n>`). Keys that clients add temporarily (`cache_control`, `caller`) are not
hashed.
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
    """Return the fallback id; `occurrence` is the number of equal messages before this one."""
    blocks = [_lasting(block) for block in as_blocks(content)]
    try:
        content_text = canonical.text(blocks)
    except ValueError:
        content_text = canonical.text(mended(blocks))
    suffix = f":{occurrence}" if occurrence else ""
    return hashlib.sha256(f"{scope}:{role}:{content_text}{suffix}".encode("utf-8", "replace")).hexdigest()[:16]


class Occurrences:
    """Counts equal messages without an id, in the order in which they are added."""

    def __init__(self) -> None:
        self._count: Counter[str] = Counter()

    def add(self, scope: str, role: str, content: Any) -> int:
        """Count a message and return the number of equal ones before it."""
        key = fallback_id(scope, role, content)
        self._count[key] += 1
        return self._count[key] - 1


def _lasting(block: Any) -> Any:
    if isinstance(block, dict) and not block.keys().isdisjoint(_FLEETING):
        return {name: value for name, value in block.items() if name not in _FLEETING}
    return block
