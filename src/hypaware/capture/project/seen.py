"""The parts of each conversation that are already recorded, so that a request's history produces no rows again.

The cache is bounded and evicts the conversations that were idle longest. Eviction and restarts cost work only: the next
request gives the whole history the same ids again, and the key index drops the duplicates. A conversation is a session,
a thread of it or an agent of it: the scope of fallback identity.

`rollback` undoes the changes of a projection whose rows could not be stored; undo several in reverse order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_PARTS = 50_000
MAX_CONVERSATIONS = 512

UNANSWERED, ANSWERED = "?", "!"
"""State of a user's part: whether the model has answered it. The state of a model's part is its response's id."""

_ABSENT: Any = object()
Undo = tuple[dict[str, Any], str, Any]


@dataclass(eq=False)
class Conversation:
    ids: dict[str, str] = field(default_factory=dict)
    """Id of a recorded part → its state."""
    keys: dict[str, str] = field(default_factory=dict)
    """Content key (`content_key`) → the id under which it was recorded last."""
    prompts: dict[str, str] = field(default_factory=dict)
    """Hashes of system prompts and tools that a row already holds."""
    last: dict[str, str] = field(default_factory=dict)
    """`id`: the id of the thread's last part; a summary of the thread follows it."""
    started_at: str | None = None


@dataclass
class Changes:
    """The changes that one projection made to a conversation."""

    scope: str
    conversation: Conversation
    is_new: bool
    is_fork: bool = False
    """Whether the conversation begins with the history of another one."""
    undo: list[Undo] = field(default_factory=list)

    def set(self, target: dict[str, Any], key: str, value: Any) -> None:
        self.undo.append((target, key, target.get(key, _ABSENT)))
        target[key] = value


class Seen:
    def __init__(self, *, max_parts: int = MAX_PARTS, max_conversations: int = MAX_CONVERSATIONS) -> None:
        self._conversations: OrderedDict[str, Conversation] = OrderedDict()
        self._max_parts, self._max_conversations = max_parts, max_conversations

    def open(self, scope: str, now: str) -> Changes:
        """Return a change list for the conversation; create the conversation if it is unknown."""
        conversation = self._conversations.get(scope)
        is_new = conversation is None
        if conversation is None:
            conversation = self._conversations[scope] = Conversation(started_at=now)
        self._conversations.move_to_end(scope)
        self._evict()
        return Changes(scope, conversation, is_new)

    def find_origin(self, changes: Changes, keys: list[str]) -> Mapping[str, str]:
        """Return the keys of another conversation that contains all of `keys`: this one is a fork of it."""
        others = (each for each in reversed(self._conversations.values()) if each is not changes.conversation)
        return next((each.keys for each in others if all(key in each.keys for key in keys)), {})

    def rollback(self, changes: Changes | None) -> None:
        if changes is None:
            return
        for target, key, previous in reversed(changes.undo):
            if previous is _ABSENT:
                target.pop(key, None)
            else:
                target[key] = previous
        if changes.is_new and self._conversations.get(changes.scope) is changes.conversation:
            del self._conversations[changes.scope]

    def clear(self) -> None:
        """Forget everything, as a restart does."""
        self._conversations.clear()

    @property
    def part_count(self) -> int:
        return sum(len(each.ids) for each in self._conversations.values())

    def _evict(self) -> None:
        count = self.part_count
        while len(self._conversations) > 1 and (
            count > self._max_parts or len(self._conversations) > self._max_conversations
        ):
            _, evicted = self._conversations.popitem(last=False)
            count -= len(evicted.ids)
