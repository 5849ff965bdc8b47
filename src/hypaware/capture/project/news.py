"""The parts that an exchange adds to its conversation: each part with its id, and whether it is already recorded.

A request contains the history, then what is new, in three ranges:

- up to the last recorded part of the model: repeated, even if earlier parts were cut off and its id would now differ;
  only parts that were never recorded (the gateway was down) are new. The range belongs to this conversation if a
  recorded id (of a tool call) occurs in it, or if all of its permanent parts are recorded;
- from there to the last part of the model: new, unless recorded under its id;
- the rest: new. A part that is recorded under its id is a retry of the request if no response to it is recorded, and
  the same text sent again otherwise.

A request without any part of the model, in a known conversation, has a compacted history: everything up to its last
unknown part (the summary or a part after it) that is already known is repeated.

A response is new unless the same response (by its API id) is recorded.

A conversation that begins with the history of another one is a fork: the repeated parts stay with the original. It is
recognized if all permanent parts of that history are recorded in one other conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hypaware.capture.project.names import Chain, key_of, key_of_id
from hypaware.capture.project.seen import ANSWERED, UNANSWERED, Changes, Seen
from hypaware.capture.project.turn import Answer, Piece


@dataclass(slots=True, eq=False)
class Shown:
    part: Piece
    id: str
    parent_id: str | None
    """The id of the previous part of its thread."""
    position: int
    """The number of parts before it in its thread."""
    is_new: bool
    in_history: bool = False
    """Part of the history: it was sent at some time before this exchange."""


@dataclass(frozen=True)
class News:
    history: list[Shown]
    response: list[Shown]
    last_id: str | None
    length: int


def news_of(history: list[Piece], response: Answer, changes: Changes, conversations: Seen) -> News:
    """Find the new parts of an exchange and record them in `changes`."""
    walk = _Walk(changes)
    seen = walk.classify_history(history, conversations, complete=response.complete)
    answered = [walk.classify_response(part, response.api_id) for part in response.parts]
    if walk.last_id is not None:
        changes.set(changes.conversation.last, "id", walk.last_id)
    return News(seen, answered, walk.last_id, walk.length)


class _Walk:
    def __init__(self, changes: Changes) -> None:
        self._ids = Chain(changes.scope)
        self._changes = changes
        self._conversation = changes.conversation
        self._origin: Mapping[str, str] = {}
        self.last_id: str | None = None
        self.length = 0

    def classify_history(self, history: list[Piece], conversations: Seen, *, complete: bool) -> list[Shown]:
        keys = [key_of(part) for part in history]
        model_parts = [index for index, part in enumerate(history) if part.role == "assistant"]
        permanent = [index for index, part in enumerate(history) if not (part.ephemeral or part.is_reasoning)]
        last = model_parts[-1] if model_parts else -1
        if model_parts and self._changes.is_new:
            self._origin = conversations.find_origin(
                self._changes, [keys[index] for index in permanent if index <= last]
            )
            self._changes.is_fork = bool(self._origin)
        recorded = next((index for index in reversed(model_parts) if keys[index] in self._conversation.keys), -1)
        if not self._is_repeated([index for index in permanent if index <= recorded], history, keys):
            recorded = -1
        if not model_parts and self._conversation.keys:
            recorded = next((index for index in reversed(permanent) if keys[index] not in self._conversation.keys), -1)
        return [
            self._classify(part, keys[index], index <= recorded, index <= last, complete)
            for index, part in enumerate(history)
        ]

    def _is_repeated(self, permanent: list[int], history: list[Piece], keys: list[str]) -> bool:
        """Return whether a history belongs to this conversation and does not just share some of its text."""
        recorded = self._conversation.keys
        return any(_has_an_id(history[index]) and keys[index] in recorded for index in permanent) or all(
            keys[index] in recorded for index in permanent
        )

    def _classify(self, part: Piece, key: str, is_repeated: bool, in_history: bool, complete: bool) -> Shown:
        recorded_as = self._conversation.keys.get(key) if is_repeated else None
        if recorded_as is not None and _has_an_id(part):
            return self._add(part, recorded_as, is_new=False, in_history=in_history)
        part_id = self._ids.assign(part, key)
        state = self._conversation.ids.get(part_id)
        if state is None and recorded_as is not None:
            return self._add(part, recorded_as, is_new=False, in_history=in_history)
        if state is None and in_history and (origin_id := self._origin.get(key)) is not None:
            self._record(part_id, key, ANSWERED)
            return self._add(part, part_id, is_new=False, in_history=True, row_id=origin_id)
        if state == ANSWERED and not in_history and not is_repeated and not _is_one_thing(part):
            while state is not None:
                part_id = self._ids.assign(part, key)
                state = self._conversation.ids.get(part_id)
        answered = in_history or complete
        if state is None or (answered and state == UNANSWERED):
            self._record(part_id, key, ANSWERED if answered else UNANSWERED)
        return self._add(part, part_id, is_new=state is None, in_history=in_history)

    def classify_response(self, part: Piece, api_id: str | None) -> Shown:
        key = key_of(part)
        part_id = self._ids.assign(part, key)
        state = self._conversation.ids.get(part_id)
        response_state = f"api:{api_id}"
        if not _is_one_thing(part):
            while state is not None and (api_id is None or state != response_state):
                part_id = self._ids.assign(part, key)
                state = self._conversation.ids.get(part_id)
        if state is None:
            self._record(part_id, key, response_state)
        if part.assigned_id is not None:
            # A client that starts to send ids will send this one for the same part.
            self._changes.set(self._conversation.keys, key_of_id(part.assigned_id), part_id)
        return self._add(part, part_id, is_new=state is None)

    def _record(self, part_id: str, key: str, state: str) -> None:
        self._changes.set(self._conversation.ids, part_id, state)
        self._changes.set(self._conversation.keys, key, part_id)

    def _add(
        self, part: Piece, part_id: str, *, is_new: bool, in_history: bool = False, row_id: str | None = None
    ) -> Shown:
        """`row_id` is the id of the existing row, if it differs."""
        parent_id = self.last_id
        if parent_id is None and part.columns.get("is_compact_summary"):
            parent_id = self._conversation.last.get("id")
        seen = Shown(part, part_id, parent_id, self.length, is_new, in_history)
        self._ids.advance(part, part_id)
        if not part.off_thread:
            self.last_id = row_id or part_id
            self.length += 1
        return seen


def _is_one_thing(part: Piece) -> bool:
    """Return whether a part can occur only once: it has an id of its own, or its repetitions do not matter."""
    return _has_an_id(part) or part.ephemeral


def _has_an_id(part: Piece) -> bool:
    return part.native_id is not None or part.unique_id is not None
