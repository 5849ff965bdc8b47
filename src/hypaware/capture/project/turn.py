"""An exchange taken apart: what the client showed the model and what came back, in one shape for all dialects.

A `Piece` is what becomes one message of the table. Where the client's transcript has a line per block (Claude Code), so
do we: a block keeps its identity when the client merges, drops or reorders its neighbours. An item of the Responses
dialect is one piece, as it is one line of a rollout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Block = dict[str, Any]


class Kind(StrEnum):
    """What a call was for. Only turns make rows of the conversation; all calls are kept raw, with their kind."""

    TURN = "turn"
    TITLE = "title"
    COUNT_TOKENS = "count_tokens"
    COMPACTION = "compaction"
    WARMUP = "warmup"
    SIDE = "side"


@dataclass(slots=True, eq=False)
class Piece:
    """Not frozen: a request shows hundreds, and freezing triples what it takes to make one."""

    role: str
    content: list[Block]
    native_id: str | None = None
    """The client's own id of it, where the client shows it in every request."""
    given_id: str | None = None
    """The id that the answer gave it, where nobody knows yet whether the client is going to show it."""
    strong_id: str | None = None
    """What nothing else in the conversation has: the id of a tool call, on the call and on its result."""
    group: str | None = None
    """The strong id that stands for all of its message, where one of its neighbours there has one."""
    fleeting: bool = False
    """Put in by the client for the moment (reminders, the environment): it may vanish, move, and come back."""
    aside: bool = False
    """No link of the thread, as the client's own transcript tells it: what follows it follows the piece before it."""
    thought: bool = False
    """Reasoning: clients leave it out of later requests."""
    block_index: int | None = None
    provider_type: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    """What of it makes no part, by reason."""


@dataclass(frozen=True)
class Unsaid:
    """Something of a conversation that makes no row, as an import makes none of it: it is counted, once."""

    reason: str
    names: tuple[str, ...]
    """Under which `Seen` knows it when a later request shows it again."""


@dataclass(frozen=True)
class Answer:
    """What came back, as far as it came."""

    pieces: list[Piece] = field(default_factory=list)
    unsaid: list[Unsaid] = field(default_factory=list)
    api_id: str | None = None
    model: Any = None
    usage: Mapping[str, Any] | None = None
    finish_reason: Any = None
    complete: bool = False
    """It came to its end, and the model had no more to say: a client that asks the same again asks something new."""
    is_native: bool = False
    """`api_id` stands in the client's transcript too."""
    carrier: int | None = None
    """Which piece carries the usage; None: the last."""
    error_code: str | None = None
    error_message: str | None = None
    failed: bool = False
    """An error stands in the answer's place, or after what came of it."""


@dataclass(frozen=True)
class Turn:
    dialect: str
    kind: Kind
    session_id: str
    history: list[Piece]
    answer: Answer
    unsaid: list[Unsaid] = field(default_factory=list)
    """In the history."""
    conversation_id: str | None = None
    agent_id: str | None = None
    client_name: str | None = None
    client_version: str | None = None
    system_text: str | None = None
    tools: Any = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
