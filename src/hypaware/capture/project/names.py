"""Ids of parts. Every request that contains a part derives the same id for it, even if everything else was forgotten.

Requests repeat the history, and the ids of transcripts are never sent. So an id derives from the request itself:

- the client's own id, if it sends one in every request (`native_id`);
- the id of a tool call, for the call and for its result: their text may be shortened or cleared later;
- otherwise the content and *its predecessor*: for the model's text the id of the user's last part before it (or the
  tool call in the same message), for all other text the id of the model's last part before it. Predecessor ids are
  derived the same way, so they chain back to the nearest tool call or to the start of the history. The same text at
  another place is therefore another message, also after a compaction, whose summary starts a new chain. Reminders and
  reasoning get ids like this too, but are never predecessors, because clients move and drop them.

The first part of a conversation has no predecessor: its id is the plain fallback identity of `model.identity`. Equal
text after the same predecessor is numbered (`…:1`). Trailing white space does not count, because clients add some when
they join texts.

Limits, once the cache has forgotten a conversation: if a client sends only the end of a conversation without tool calls
(a sliding window), the window begins differently and its parts get other ids; and the same text at the same place (a
new unnamed conversation that begins like an earlier one, a user who goes back and repeats a message) gets the earlier
id.
"""

from __future__ import annotations

from collections import Counter

from hypaware.capture.project.turn import Block, Piece
from hypaware.capture.project.values import digest, written
from hypaware.model.identity import fallback_id

_FLEETING = ("cache_control", "caller")


def key_of(part: Piece) -> str:
    """Return the key of a part's content, which is equal for the part and its repetition in a later request."""
    if part.native_id is not None:
        return key_of_id(part.native_id)
    if part.unique_id is not None:
        return f"call:{part.role}:{part.content[0].get('type')}:{part.unique_id}"
    first = part.content[0] if len(part.content) == 1 else {}
    if first.get("type") == "text" and isinstance(value := first.get("text"), str):
        return digest(part.role, "text", value.rstrip())
    return digest(part.role, written([_lasting(block) for block in part.content]))


def key_of_id(native_id: str) -> str:
    return f"id:{native_id}"


class Chain:
    """Assigns ids to the parts of a request, in order."""

    def __init__(self, scope: str) -> None:
        self._scope = scope
        self._last_model_id: str | None = None
        self._last_user_id: str | None = None
        self._count: Counter[tuple[str, str]] = Counter()

    def assign(self, part: Piece, key: str) -> str:
        """Return the part's id; repeated calls for the same content at the same place return the next id."""
        if part.native_id is not None:
            return part.native_id
        if part.unique_id is not None:
            return digest(self._scope, key)
        predecessor = self._predecessor(part)
        repetition = self._count[key, predecessor]
        self._count[key, predecessor] += 1
        return self._content_id(part, key, predecessor, repetition)

    def advance(self, part: Piece, part_id: str) -> None:
        """Make this part the predecessor of the following ones."""
        if part.ephemeral or part.is_reasoning:
            return
        if part.role == "assistant":
            self._last_model_id = part_id
        else:
            self._last_user_id = part_id

    def _predecessor(self, part: Piece) -> str:
        if part.role == "assistant":
            return part.group_id or self._last_user_id or ""
        # Before the model's first output, parts follow each other, so that a summary starts a chain of its own.
        return self._last_model_id or self._last_user_id or ""

    def _content_id(self, part: Piece, key: str, predecessor: str, repetition: int) -> str:
        if not predecessor:
            return fallback_id(self._scope, part.role, [_lasting(block) for block in part.content], repetition)
        return digest(self._scope, key, predecessor, str(repetition))


def _lasting(block: Block) -> Block:
    """Return a block in the form that every request has."""
    if block.get("type") == "text" and isinstance(value := block.get("text"), str):
        return {"type": "text", "text": value.rstrip()}
    if block.get("type") == "thinking":
        return {"type": "thinking", "thinking": block.get("thinking")}
    if block.keys().isdisjoint(_FLEETING):
        return block
    return {name: value for name, value in block.items() if name not in _FLEETING}
