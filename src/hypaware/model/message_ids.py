"""Ids of messages whose client gave them none, and the message before each message.

A fallback id is `sha256(<scope>:<role>:<canonical JSON of the message's blocks>)`, first 16 hex digits. The scope is
the conversation, or else the session, followed by the agent. Repeated messages in one thread get different ids: from
the second on, the hash includes the number of earlier ones (`…:<n>`). Keys that clients add temporarily
(`cache_control`, `caller`) are not hashed.

The previous message is found along the client's links, or is simply the preceding one. Links lead through transcript
lines that make no rows to a message: one that was added before, or an id that the links do not contain. A cycle leads
to no message.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

from hypaware.model import canonical
from hypaware.model.json_values import to_blocks
from hypaware.model.sanitize import repair_json

_VOLATILE_KEYS = ("cache_control", "caller")


def fallback_scope(session_id: str, conversation_id: Any = None, agent_id: Any = None) -> str:
    scope = conversation_id if isinstance(conversation_id, str) and conversation_id else session_id
    return f"{scope}:{agent_id}" if isinstance(agent_id, str) and agent_id else scope


def compute_fallback_id(scope: str, role: str, content: Any, occurrence: int = 0) -> str:
    """Return the fallback id; `occurrence` is the number of equal messages before this one."""
    blocks = to_blocks(content)
    for index, block in enumerate(blocks):
        if isinstance(block, dict) and not block.keys().isdisjoint(_VOLATILE_KEYS):
            blocks[index] = {name: value for name, value in block.items() if name not in _VOLATILE_KEYS}
    try:
        content_text = canonical.dumps(blocks)
    except ValueError:
        content_text = canonical.dumps(repair_json(blocks))
    suffix = f":{occurrence}" if occurrence else ""
    return hashlib.sha256(f"{scope}:{role}:{content_text}{suffix}".encode("utf-8", "replace")).hexdigest()[:16]


class Occurrences:
    """Counts equal messages without an id, in the order in which they are added."""

    def __init__(self) -> None:
        self._count: Counter[str] = Counter()

    def add(self, scope: str, role: str, content: Any) -> int:
        """Count a message and return the number of equal ones before it."""
        key = compute_fallback_id(scope, role, content)
        self._count[key] += 1
        return self._count[key] - 1


class Lineage:
    def __init__(self, links: Mapping[str, str | None] | None) -> None:
        self._links = links
        self._messages: set[str] = set()
        self._cache: dict[str, str | None] = {}
        self._last: str | None = None

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._messages

    def add(self, message_id: str, parent: str | None) -> str | None:
        """Add a message whose link leads to `parent`, and return the id of the message before it."""
        links, current = self._links, parent
        if links is None:
            current = self._last
        elif parent is not None and parent not in self._messages:
            visited: dict[str, None] = {}
            while isinstance(current, str) and current in links and current not in self._messages:
                if current in visited:
                    current = None
                elif current in self._cache:
                    current = self._cache[current]
                    break
                else:
                    visited[current] = None
                    current = links[current]
            current = current if isinstance(current, str) else None
            self._cache.update(dict.fromkeys(visited, current))
        self._messages.add(message_id)
        self._last = message_id
        return current if current != message_id else None
