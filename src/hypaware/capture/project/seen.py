"""What of each conversation is recorded already, so that a request's history makes no rows again.

Bounded: the conversations that were quiet the longest are forgotten first. What is forgotten, by that or by a restart,
costs work only: the next request then gives the whole history the ids that it had (see `names`), and the key index
drops them. A conversation is a session, or its thread, or its agent: the scope of fallback identity.

`rollback` takes back what a projection noted, where its rows could not be stored; several are taken back in the
opposite order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_PARTS = 50_000
MAX_CONVERSATIONS = 512

UNANSWERED, ANSWERED = "?", "!"
"""What is known of a user's piece: whether the model has answered it. The model's pieces have their answer's id."""

_ABSENT: Any = object()
Undo = tuple[dict[str, Any], str, Any]


@dataclass(eq=False)
class Conversation:
    ids: dict[str, str] = field(default_factory=dict)
    """id of a recorded piece → what is known of it."""
    keys: dict[str, str] = field(default_factory=dict)
    """What was said (`names.key_of`) → the id under which it was recorded last."""
    shapes: dict[str, str] = field(default_factory=dict)
    """System prompts and tools that stand on a row already."""
    last: dict[str, str] = field(default_factory=dict)
    """`id`: of the last piece of the thread, which a summary of it follows."""
    started_at: str | None = None


@dataclass
class Changes:
    """What one projection noted."""

    scope: str
    conversation: Conversation
    created: bool
    forked: bool = False
    """Whether the conversation was found to begin with another's history."""
    undo: list[Undo] = field(default_factory=list)

    def note(self, into: dict[str, Any], key: str, value: Any) -> None:
        self.undo.append((into, key, into.get(key, _ABSENT)))
        into[key] = value


class Seen:
    def __init__(self, *, max_parts: int = MAX_PARTS, max_conversations: int = MAX_CONVERSATIONS) -> None:
        self._known: OrderedDict[str, Conversation] = OrderedDict()
        self._max_parts, self._max_conversations = max_parts, max_conversations

    def open(self, scope: str, now: str) -> Changes:
        """The conversation, and a list for what is going to be noted of it."""
        found = self._known.get(scope)
        created = found is None
        if found is None:
            found = self._known[scope] = Conversation(started_at=now)
        self._known.move_to_end(scope)
        self._forget_some()
        return Changes(scope, found, created)

    def origin_of(self, changes: Changes, keys: list[str]) -> Mapping[str, str]:
        """What another conversation recorded, if all of these were said in it: this one is a fork of it."""
        others = (each for each in reversed(self._known.values()) if each is not changes.conversation)
        return next((each.keys for each in others if all(key in each.keys for key in keys)), {})

    def rollback(self, changes: Changes | None) -> None:
        if changes is None:
            return
        for into, key, before in reversed(changes.undo):
            if before is _ABSENT:
                into.pop(key, None)
            else:
                into[key] = before
        if changes.created and self._known.get(changes.scope) is changes.conversation:
            del self._known[changes.scope]

    def forget(self) -> None:
        """As after a restart."""
        self._known.clear()

    @property
    def parts(self) -> int:
        return sum(len(each.ids) for each in self._known.values())

    def _forget_some(self) -> None:
        parts = self.parts
        while len(self._known) > 1 and (parts > self._max_parts or len(self._known) > self._max_conversations):
            _, gone = self._known.popitem(last=False)
            parts -= len(gone.ids)
