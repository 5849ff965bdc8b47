"""One turn of a conversation, in the same form for all dialects: the request's history and the model's response.

A `TurnPart` becomes one message of the table. If the client's transcript has one line per block (Claude Code), a part
is one block: it keeps its identity when the client merges, drops or reorders its neighbours. An item of the Responses
dialect is one part, as it is one line of a rollout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Block = dict[str, Any]


class Kind(StrEnum):
    """The purpose of a request. Only turns produce message rows; every request is stored raw, with its kind."""

    TURN = "turn"
    TITLE = "title"
    COUNT_TOKENS = "count_tokens"
    COMPACTION = "compaction"
    WARMUP = "warmup"
    SIDE = "side"


@dataclass(slots=True, eq=False)
class Piece:
    """One part of a turn. Not frozen: a request has hundreds, and freezing triples the time to create one."""

    role: str
    content: list[Block]
    native_id: str | None = None
    """The client's own id, if the client sends it in every request."""
    assigned_id: str | None = None
    """The id that the response assigned, while it is unknown whether the client will send it back."""
    unique_id: str | None = None
    """An id that is unique in the conversation: that of a tool call, on the call and on its result."""
    group_id: str | None = None
    """The unique id of a part of the same message, if there is one; it identifies the whole message."""
    ephemeral: bool = False
    """Inserted by the client for one request (reminders, the environment): it may vanish, move and return."""
    off_thread: bool = False
    """Not linked into the thread, as in the client's own transcript: the next part follows the previous one."""
    is_reasoning: bool = False
    """Clients leave reasoning out of later requests."""
    block_index: int | None = None
    provider_type: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Content that produces no row, counted by reason."""


@dataclass(frozen=True)
class Unsaid:
    """An item of a conversation that produces no row, as in an import; it is counted once."""

    reason: str
    ids: tuple[str, ...]
    """The ids under which `ConversationCache` recognizes it in a later request."""


@dataclass(frozen=True)
class Answer:
    """The model's response, as far as it arrived."""

    parts: list[Piece] = field(default_factory=list)
    skipped: list[Unsaid] = field(default_factory=list)
    api_id: str | None = None
    model: Any = None
    usage: Mapping[str, Any] | None = None
    finish_reason: Any = None
    complete: bool = False
    """The response ended and the model had no more to say: a client that sends the same again asks something new."""
    in_transcript: bool = False
    """Whether the client's transcript also holds `api_id`."""
    usage_index: int | None = None
    """Index of the part that carries the usage; None means the last one."""
    error_code: str | None = None
    error_message: str | None = None
    failed: bool = False
    """The response is an error, or an error ended it."""


@dataclass(frozen=True)
class Turn:
    dialect: str
    kind: Kind
    session_id: str
    history: list[Piece]
    response: Answer
    skipped: list[Unsaid] = field(default_factory=list)
    """Skipped items of the history."""
    conversation_id: str | None = None
    agent_id: str | None = None
    client_name: str | None = None
    client_version: str | None = None
    system_text: str | None = None
    tools: Any = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
