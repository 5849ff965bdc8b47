"""One turn of a conversation, in the same form for all dialects: the request's history and the model's response.

A `TurnPart` becomes one message of the table. If the client's transcript has one line per block (Claude Code), a part
is one block: it keeps its identity when the client merges, drops or reorders its neighbours. An item of the Responses
dialect is one part, because a rollout has one line per item.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hypaware.clients.client_requests import CallKind, RequestFacts
from hypaware.gateway.exchange import DecodedExchange
from hypaware.model import canonical
from hypaware.model.json_values import Block, as_list, as_mapping, as_text, join_texts, to_blocks
from hypaware.model.sanitize import repair_json

_MAX_MESSAGE = 2000


@dataclass(slots=True, eq=False)
class TurnPart:
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
class SkippedItem:
    """An item of a conversation that produces no row, as in an import; it is counted once."""

    reason: str
    ids: tuple[str, ...]
    """The ids under which `ConversationCache` recognizes it in a later request."""


@dataclass(frozen=True)
class ModelResponse:
    """The model's response, as far as it arrived."""

    parts: list[TurnPart] = field(default_factory=list)
    skipped: list[SkippedItem] = field(default_factory=list)
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
    kind: CallKind
    session_id: str
    history: list[TurnPart]
    response: ModelResponse
    skipped: list[SkippedItem] = field(default_factory=list)
    conversation_id: str | None = None
    agent_id: str | None = None
    client_name: str | None = None
    client_version: str | None = None
    system_text: str | None = None
    tools: Any = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    facts: RequestFacts = field(default_factory=RequestFacts)
    """What the sender states beyond the dialect."""


def build_error_response(decoded: DecodedExchange, body: dict[str, Any]) -> ModelResponse:
    """Return the response for an error body or a truncated response, in any dialect.

    Providers send `{"error": {"type" | "code", "message"}}`, some only text. If the connection failed, the gateway's
    own error name takes the place of the code.
    """
    error_value = body.get("error")
    error = as_mapping(error_value)
    code = as_text(error.get("type")) or as_text(error.get("code")) or decoded.error
    message = (
        as_text(error.get("message"))
        or as_text(error_value)
        or as_text(body.get("message"))
        or as_text(body.get("detail"))
    )
    if code is None and decoded.status is not None and decoded.status >= 400:
        code = f"http_{decoded.status}"
    if message is None and not body and decoded.events is None:
        message = as_text(decoded.response_text)
    if decoded.status is None:
        default = "no response was received"
    else:
        default = f"the response had status {decoded.status}" if decoded.status >= 400 else "the response ended early"
    return ModelResponse(
        error_code=code or "cut_short",
        error_message=(message or default)[:_MAX_MESSAGE],
        finish_reason="error",
        failed=True,
    )


def opening_texts(system: Any, messages: Any) -> list[str]:
    """Return the texts with which a conversation begins. They are the same in all of its requests."""
    first = as_mapping(next(iter(as_list(messages)), None))
    return [
        join_texts(system) or "",
        canonical_text([without_cache_control(block) for block in to_blocks(first.get("content"))]),
    ]


def without_cache_control(block: Any) -> Any:
    """Remove the keys that the client adds to a block for one request only."""
    if isinstance(block, dict) and "cache_control" in block:
        return {key: value for key, value in block.items() if key != "cache_control"}
    return block


def canonical_text(value: Any) -> str:
    try:
        return canonical.dumps(value)
    except (ValueError, RecursionError):
        return canonical.dumps(repair_json(value))


def short_hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:16]
