"""Conversations: which parts of an exchange are new, and which ids they get.

The cache holds the parts of each conversation that are already recorded, so that a request's history produces no rows
again. It is bounded and evicts the conversations that were idle longest. Eviction and restarts cost work only: the next
request gives the whole history the same ids again, and the key index drops the duplicates. A conversation is a session,
a thread of it or an agent of it: the scope of fallback identity.

`rollback` undoes the changes of a projection whose rows could not be stored; undo several in reverse order.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hypaware.gateway.projection.turn import ModelResponse, TurnPart, canonical_text, short_hash
from hypaware.model.json_values import Block
from hypaware.model.message_ids import compute_fallback_id

UNANSWERED, ANSWERED = "?", "!"
"""State of a user's part: whether the model has answered it. The state of a model's part is its response's id."""
_ABSENT: Any = object()
Undo = tuple[dict[str, Any], str, Any]
_EPHEMERAL_KEYS = ("cache_control", "caller")


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
class ConversationChanges:
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


class ConversationCache:
    def __init__(self, *, max_parts: int = 50_000, max_conversations: int = 512) -> None:
        self._conversations: OrderedDict[str, Conversation] = OrderedDict()
        self._max_parts, self._max_conversations = max_parts, max_conversations

    def open(self, scope: str, now: str) -> ConversationChanges:
        """Return a change list for the conversation; create the conversation if it is unknown."""
        conversation = self._conversations.get(scope)
        is_new = conversation is None
        if conversation is None:
            conversation = self._conversations[scope] = Conversation(started_at=now)
        self._conversations.move_to_end(scope)
        count = self.part_count
        while len(self._conversations) > 1 and (
            count > self._max_parts or len(self._conversations) > self._max_conversations
        ):
            _, evicted = self._conversations.popitem(last=False)
            count -= len(evicted.ids)
        return ConversationChanges(scope, conversation, is_new)

    def find(self, scope: str) -> Conversation | None:
        return self._conversations.get(scope)

    def find_origin(self, changes: ConversationChanges, keys: list[str]) -> Mapping[str, str]:
        """Return the keys of another conversation that contains all of `keys`: this one is a fork of it."""
        others = (each for each in reversed(self._conversations.values()) if each is not changes.conversation)
        return next((each.keys for each in others if all(key in each.keys for key in keys)), {})

    def rollback(self, changes: ConversationChanges | None) -> None:
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


@dataclass(slots=True, eq=False)
class SeenPart:
    part: TurnPart
    id: str
    parent_id: str | None
    """The id of the previous part of its thread."""
    position: int
    """The number of parts before it in its thread."""
    is_new: bool
    in_history: bool = False
    """Part of the history: it was sent at some time before this exchange."""


@dataclass(frozen=True)
class NewParts:
    history: list[SeenPart]
    response: list[SeenPart]
    last_id: str | None
    length: int


def find_new_parts(
    history: list[TurnPart], response: ModelResponse, changes: ConversationChanges, conversations: ConversationCache
) -> NewParts:
    """Find the parts that an exchange adds to its conversation, and record them in `changes`.

    A request contains the history, then the new parts, in three ranges:

    - up to the last recorded part of the model: repeated, even if earlier parts were cut off and its id would now
      differ; only parts that were never recorded (the gateway was down) are new. The range belongs to this conversation
      if a recorded id (of a tool call) occurs in it, or if all of its permanent parts are recorded;
    - from there to the last part of the model: new, unless recorded under its id;
    - the rest: new. A part that is recorded under its id is a retry of the request if no response to it is recorded,
      and the same text sent again otherwise.

    A request without any part of the model, in a known conversation, has a compacted history: everything up to its last
    unknown part (the summary or a part after it) that is already known is repeated.

    A response is new unless the same response (by its API id) is recorded.

    A conversation that begins with the history of another one is a fork: the repeated parts stay with the original. It
    is recognized if all permanent parts of that history are recorded in one other conversation.
    """
    recorded_keys = changes.conversation.keys
    keys = [content_key(part) for part in history]
    model_parts = [index for index, part in enumerate(history) if part.role == "assistant"]
    permanent = [index for index, part in enumerate(history) if not (part.ephemeral or part.is_reasoning)]
    last = model_parts[-1] if model_parts else -1
    origin: Mapping[str, str] = {}
    if model_parts and changes.is_new:
        origin = conversations.find_origin(changes, [keys[index] for index in permanent if index <= last])
        changes.is_fork = bool(origin)
    recorded = next((index for index in reversed(model_parts) if keys[index] in recorded_keys), -1)
    # The range belongs to this conversation, or it just shares some of its text. A summary of the history is new, even
    # if the client repeats the last messages after it.
    up_to_recorded = [
        index for index in permanent if index <= recorded and not history[index].columns.get("is_compact_summary")
    ]
    if not any(_has_id(history[index]) and keys[index] in recorded_keys for index in up_to_recorded) and not all(
        keys[index] in recorded_keys for index in up_to_recorded
    ):
        recorded = -1
    if not model_parts and recorded_keys:
        recorded = next((index for index in reversed(permanent) if keys[index] not in recorded_keys), -1)
    walk = _Classifier(changes, origin)
    seen = [
        walk.classify(part, keys[index], index <= recorded, index <= last, response.complete)
        for index, part in enumerate(history)
    ]
    answered = [walk.classify_response(part, response.api_id) for part in response.parts]
    if walk.last_id is not None:
        changes.set(changes.conversation.last, "id", walk.last_id)
    return NewParts(seen, answered, walk.last_id, walk.length)


class _Classifier:
    def __init__(self, changes: ConversationChanges, origin: Mapping[str, str]) -> None:
        self._changes, self._conversation, self._origin = changes, changes.conversation, origin
        self._scope = changes.scope
        self._last_model_id: str | None = None
        self._last_user_id: str | None = None
        self._count: Counter[tuple[str, str]] = Counter()
        self.last_id: str | None = None
        self.length = 0

    def classify(self, part: TurnPart, key: str, is_repeated: bool, in_history: bool, complete: bool) -> SeenPart:
        recorded_as = self._conversation.keys.get(key) if is_repeated else None
        if recorded_as is not None and _has_id(part):
            return self._add(part, recorded_as, is_new=False, in_history=in_history)
        part_id = self._assign_id(part, key)
        state = self._conversation.ids.get(part_id)
        if state is None and recorded_as is not None:
            return self._add(part, recorded_as, is_new=False, in_history=in_history)
        if state is None and in_history and (origin_id := self._origin.get(key)) is not None:
            self._record(part_id, key, ANSWERED)
            return self._add(part, part_id, is_new=False, in_history=True, row_id=origin_id)
        if state == ANSWERED and not in_history and not is_repeated and not _is_unique(part):
            while state is not None:
                part_id = self._assign_id(part, key)
                state = self._conversation.ids.get(part_id)
        answered = in_history or complete
        if state is None or (answered and state == UNANSWERED):
            self._record(part_id, key, ANSWERED if answered else UNANSWERED)
        return self._add(part, part_id, is_new=state is None, in_history=in_history)

    def classify_response(self, part: TurnPart, api_id: str | None) -> SeenPart:
        key = content_key(part)
        part_id = self._assign_id(part, key)
        state = self._conversation.ids.get(part_id)
        response_state = f"api:{api_id}"
        if not _is_unique(part):
            while state is not None and (api_id is None or state != response_state):
                part_id = self._assign_id(part, key)
                state = self._conversation.ids.get(part_id)
        if state is None:
            self._record(part_id, key, response_state)
        if part.assigned_id is not None:
            # A client that starts to send ids will send this one for the same part.
            self._changes.set(self._conversation.keys, f"id:{part.assigned_id}", part_id)
        return self._add(part, part_id, is_new=state is None)

    def _assign_id(self, part: TurnPart, key: str) -> str:
        """Return the part's id; repeated calls for the same content at the same place return the next id.

        Every request that contains a part derives the same id for it, even if everything else was forgotten:

        - the client's own id, if it sends one in every request (`native_id`);
        - the id of a tool call, for the call and for its result: their text may be shortened or cleared later;
        - otherwise the content and *its predecessor*: for the model's text the id of the user's last part before it (or
          the tool call in the same message), for all other text the id of the model's last part before it. Predecessor
          ids are derived the same way, so they chain back to the nearest tool call or to the start of the history. The
          same text at another place is therefore another message, also after a compaction, whose summary starts a new
          chain. Reminders and reasoning are never predecessors, because clients move and drop them.

        The first part of a conversation has no predecessor: its id is the plain fallback id of `model.message_ids`.
        Equal text after the same predecessor is numbered. Trailing white space does not count: clients add some.

        Limits, once the cache has forgotten a conversation: if a client sends only the end of a conversation without
        tool calls (a sliding window), its parts get other ids; and the same text at the same place (a new unnamed
        conversation that begins like an earlier one, a user who goes back and repeats a message) gets the earlier id.
        """
        if part.native_id is not None:
            return part.native_id
        if part.unique_id is not None:
            return short_hash(self._scope, key)
        if part.role == "assistant":
            predecessor = part.group_id or self._last_user_id or ""
        else:
            # Before the model's first output, parts follow each other, so that a summary starts a chain of its own.
            predecessor = self._last_model_id or self._last_user_id or ""
        repetition = self._count[key, predecessor]
        self._count[key, predecessor] += 1
        if not predecessor:
            return compute_fallback_id(
                self._scope, part.role, [_permanent_form(block) for block in part.content], repetition
            )
        return short_hash(self._scope, key, predecessor, str(repetition))

    def _record(self, part_id: str, key: str, state: str) -> None:
        self._changes.set(self._conversation.ids, part_id, state)
        self._changes.set(self._conversation.keys, key, part_id)

    def _add(
        self, part: TurnPart, part_id: str, *, is_new: bool, in_history: bool = False, row_id: str | None = None
    ) -> SeenPart:
        """`row_id` is the id of the existing row, if it differs."""
        parent_id = self.last_id
        if parent_id is None and part.columns.get("is_compact_summary"):
            parent_id = self._conversation.last.get("id")
        seen = SeenPart(part, part_id, parent_id, self.length, is_new, in_history)
        if not (part.ephemeral or part.is_reasoning):
            if part.role == "assistant":
                self._last_model_id = part_id
            else:
                self._last_user_id = part_id
        if not part.off_thread:
            self.last_id = row_id or part_id
            self.length += 1
        return seen


def _is_unique(part: TurnPart) -> bool:
    """Return whether a part can occur only once: it has an id of its own, or its repetitions do not matter."""
    return _has_id(part) or part.ephemeral


def _has_id(part: TurnPart) -> bool:
    return part.native_id is not None or part.unique_id is not None


def content_key(part: TurnPart) -> str:
    """Return the key of a part's content, which is equal for the part and its repetition in a later request."""
    if part.native_id is not None:
        return f"id:{part.native_id}"
    if part.unique_id is not None:
        return f"call:{part.role}:{part.content[0].get('type')}:{part.unique_id}"
    first = part.content[0] if len(part.content) == 1 else {}
    if first.get("type") == "text" and isinstance(value := first.get("text"), str):
        return short_hash(part.role, "text", value.rstrip())
    return short_hash(part.role, canonical_text([_permanent_form(block) for block in part.content]))


def _permanent_form(block: Block) -> Block:
    """Return a block in the form that every request has."""
    if block.get("type") == "text" and isinstance(value := block.get("text"), str):
        return {"type": "text", "text": value.rstrip()}
    if block.get("type") == "thinking":
        return {"type": "thinking", "thinking": block.get("thinking")}
    if block.keys().isdisjoint(_EPHEMERAL_KEYS):
        return block
    return {name: value for name, value in block.items() if name not in _EPHEMERAL_KEYS}
