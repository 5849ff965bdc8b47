"""Who a piece is: an id that any request which shows the piece gives it, whatever else was forgotten.

Requests repeat the history, and transcripts' ids never travel. So an id is made of what the request itself shows:

- the client's own id, where it shows one in every request (`native_id`);
- the id of a tool call, for the call and for its result: their words may be cut or cleared later;
- else what is said, and *after what*: for the model's words the id of the user's last piece before them (or the tool
  call in the same message), for all others the id of the model's last piece before them. These ids are made the same
  way, so they chain back to the nearest tool call, or to where the history begins: the same words at another place are
  another message, also after a compaction, whose summary begins another chain. Reminders and reasoning are named like
  this too, but nothing is named after them, since clients move and drop them.

The first words of a conversation come after nothing: their id is the plain fallback identity of `model.identity`. The
same words twice after the same piece are counted (`…:1`). White space at the end does not count: clients add some when
they join texts.

What this cannot tell apart, once nobody remembers (`seen`): in a conversation without tool calls of which a client
shows only the end (a sliding window), the window's words have another beginning, hence other ids; and the same words
said at the same place once more (a conversation without a name that begins like an earlier one, a user who goes back
and says the same again) are the earlier ones.
"""

from __future__ import annotations

from collections import Counter

from hypaware.capture.project.turn import Block, Piece
from hypaware.capture.project.values import digest, written
from hypaware.model.identity import fallback_id

_FLEETING = ("cache_control", "caller")


def key_of(piece: Piece) -> str:
    """What is said, wherever it stands: equal for a piece and its repetition in a later request."""
    if piece.native_id is not None:
        return key_of_id(piece.native_id)
    if piece.strong_id is not None:
        return f"call:{piece.role}:{piece.content[0].get('type')}:{piece.strong_id}"
    first = piece.content[0] if len(piece.content) == 1 else {}
    if first.get("type") == "text" and isinstance(said := first.get("text"), str):
        return digest(piece.role, "text", said.rstrip())
    return digest(piece.role, written([_lasting(block) for block in piece.content]))


def key_of_id(native_id: str) -> str:
    return f"id:{native_id}"


class Chain:
    """Names pieces in the order of a request."""

    def __init__(self, scope: str) -> None:
        self._scope = scope
        self._model: str | None = None
        self._user: str | None = None
        self._count: Counter[tuple[str, str]] = Counter()

    def name(self, piece: Piece, key: str) -> str:
        """Asked again for the same words at the same place, it gives the next id."""
        if piece.native_id is not None:
            return piece.native_id
        if piece.strong_id is not None:
            return digest(self._scope, key)
        after = self._after(piece)
        alike = self._count[key, after]
        self._count[key, after] += 1
        return self._weak(piece, key, after, alike)

    def follow(self, piece: Piece, piece_id: str) -> None:
        """What comes next comes after this piece."""
        if piece.fleeting or piece.thought:
            return
        if piece.role == "assistant":
            self._model = piece_id
        else:
            self._user = piece_id

    def _after(self, piece: Piece) -> str:
        if piece.role == "assistant":
            return piece.group or self._user or ""
        # Before the model has said anything, one thing comes after the other: so a summary begins a chain of its own.
        return self._model or self._user or ""

    def _weak(self, piece: Piece, key: str, after: str, alike: int) -> str:
        if not after:
            return fallback_id(self._scope, piece.role, [_lasting(block) for block in piece.content], alike)
        return digest(self._scope, key, after, str(alike))


def _lasting(block: Block) -> Block:
    """A block as every request shows it."""
    if block.get("type") == "text" and isinstance(said := block.get("text"), str):
        return {"type": "text", "text": said.rstrip()}
    if block.get("type") == "thinking":
        return {"type": "thinking", "thinking": block.get("thinking")}
    if block.keys().isdisjoint(_FLEETING):
        return block
    return {name: value for name, value in block.items() if name not in _FLEETING}
