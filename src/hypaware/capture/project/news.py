"""What an exchange adds to its conversation: each piece that it shows, with its id, and whether it is recorded already.

A request shows the history, then what is new. In it there are three stretches:

- up to the last piece of the model that is recorded: repeated, even if what stands before it was cut away and its
  name would be another now; only what nobody recorded (the gateway was away) is new. That it is this conversation's
  history shows in an id (a tool call's) that is recorded, or in all that lasts of it being recorded;
- from there to the last piece of the model: new, unless it is recorded under its id;
- what follows: new. What is recorded under its id there is the same request again if no answer to it is recorded, and
  the same words said once more if there is one.

A request without a word of the model, in a conversation that is known, shows a history that was made short: up to the
last thing in it that nobody said before (the summary, or what comes after it), what was said before is repeated.

An answer is new, unless it is the very answer (by its API id) that is recorded.

A conversation that begins with another's history is a fork: what it repeats stays the other's. It is known by all that
lasts of that history being recorded in one other conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hypaware.capture.project.names import Chain, key_of, key_of_id
from hypaware.capture.project.seen import ANSWERED, UNANSWERED, Changes, Seen
from hypaware.capture.project.turn import Answer, Piece


@dataclass(slots=True, eq=False)
class Shown:
    piece: Piece
    id: str
    before: str | None
    """The id of the piece before it in its thread."""
    place: int
    """How many pieces of its thread are before it."""
    new: bool
    late: bool = False
    """Part of the history: it was said at some time before this exchange."""


@dataclass(frozen=True)
class News:
    history: list[Shown]
    answer: list[Shown]
    last_id: str | None
    places: int


def news_of(history: list[Piece], answer: Answer, changes: Changes, seen: Seen) -> News:
    """Notes what it finds to be new."""
    walk = _Walk(changes)
    shown = walk.through(history, seen, complete=answer.complete)
    answered = [walk.answered(piece, answer.api_id) for piece in answer.pieces]
    if walk.last_id is not None:
        changes.note(changes.conversation.last, "id", walk.last_id)
    return News(shown, answered, walk.last_id, walk.places)


class _Walk:
    def __init__(self, changes: Changes) -> None:
        self._chain = Chain(changes.scope)
        self._changes = changes
        self._known = changes.conversation
        self._origin: Mapping[str, str] = {}
        self.last_id: str | None = None
        self.places = 0

    def through(self, history: list[Piece], seen: Seen, *, complete: bool) -> list[Shown]:
        keys = [key_of(piece) for piece in history]
        models = [index for index, piece in enumerate(history) if piece.role == "assistant"]
        lasting = [index for index, piece in enumerate(history) if not (piece.fleeting or piece.thought)]
        last = models[-1] if models else -1
        if models and self._changes.created:
            self._origin = seen.origin_of(self._changes, [keys[index] for index in lasting if index <= last])
            self._changes.forked = bool(self._origin)
        recorded = next((index for index in reversed(models) if keys[index] in self._known.keys), -1)
        if not self._is_repeated([index for index in lasting if index <= recorded], history, keys):
            recorded = -1
        if not models and self._known.keys:
            recorded = next((index for index in reversed(lasting) if keys[index] not in self._known.keys), -1)
        return [
            self._piece(piece, keys[index], index <= recorded, index <= last, complete)
            for index, piece in enumerate(history)
        ]

    def _is_repeated(self, lasting: list[int], history: list[Piece], keys: list[str]) -> bool:
        """Whether a history is this conversation's, and not one that happens to hold a few of its words."""
        known = self._known.keys
        return any(_has_an_id(history[index]) and keys[index] in known for index in lasting) or all(
            keys[index] in known for index in lasting
        )

    def _piece(self, piece: Piece, key: str, repeated: bool, late: bool, complete: bool) -> Shown:
        recorded_as = self._known.keys.get(key) if repeated else None
        if recorded_as is not None and _has_an_id(piece):
            return self._shown(piece, recorded_as, new=False, late=late)
        piece_id = self._chain.name(piece, key)
        known = self._known.ids.get(piece_id)
        if known is None and recorded_as is not None:
            return self._shown(piece, recorded_as, new=False, late=late)
        if known is None and late and (found := self._origin.get(key)) is not None:
            self._note(piece_id, key, ANSWERED)
            return self._shown(piece, piece_id, new=False, late=True, row_id=found)
        if known == ANSWERED and not late and not repeated and not _is_one_thing(piece):
            while known is not None:
                piece_id = self._chain.name(piece, key)
                known = self._known.ids.get(piece_id)
        answered = late or complete
        if known is None or (answered and known == UNANSWERED):
            self._note(piece_id, key, ANSWERED if answered else UNANSWERED)
        return self._shown(piece, piece_id, new=known is None, late=late)

    def answered(self, piece: Piece, api_id: str | None) -> Shown:
        key = key_of(piece)
        piece_id = self._chain.name(piece, key)
        known = self._known.ids.get(piece_id)
        mark = f"api:{api_id}"
        if not _is_one_thing(piece):
            while known is not None and (api_id is None or known != mark):
                piece_id = self._chain.name(piece, key)
                known = self._known.ids.get(piece_id)
        if known is None:
            self._note(piece_id, key, mark)
        if piece.given_id is not None:
            # A client that begins to show ids shows this one: it is the same piece then.
            self._changes.note(self._known.keys, key_of_id(piece.given_id), piece_id)
        return self._shown(piece, piece_id, new=known is None)

    def _note(self, piece_id: str, key: str, known: str) -> None:
        self._changes.note(self._known.ids, piece_id, known)
        self._changes.note(self._known.keys, key, piece_id)

    def _shown(self, piece: Piece, piece_id: str, *, new: bool, late: bool = False, row_id: str | None = None) -> Shown:
        """`row_id`: the id of the row that there is, where it is another."""
        before = self.last_id
        if before is None and piece.columns.get("is_compact_summary"):
            before = self._known.last.get("id")
        shown = Shown(piece, piece_id, before, self.places, new, late)
        self._chain.follow(piece, piece_id)
        if not piece.aside:
            self.last_id = row_id or piece_id
            self.places += 1
        return shown


def _is_one_thing(piece: Piece) -> bool:
    """Whether it can be said only once: it has an id of its own; or it does not matter how often it is said."""
    return _has_an_id(piece) or piece.fleeting


def _has_an_id(piece: Piece) -> bool:
    return piece.native_id is not None or piece.strong_id is not None
