"""The projector: turns a live exchange into the rows that it adds to `ai_gateway_messages`.

The rows equal those that an import makes of the same conversation, as far as the same facts are available. In addition
`attributes.gateway` holds: `source: "live"`; `exchange_id`; `identity_source: "gateway_fallback"` if the client sends
no id; for the model's parts `api_message_id` and `block_index`; and `time_source: "request"` if a part was first seen
in a history, so its time is unknown.

Requests that are not part of the conversation (`CallKind`) produce no rows of their text. An error response produces
one row of type `error` for every attempt; the user's message is recorded with the first. Nothing here raises.

Rows that transcripts do not have are marked: their `provider_type` is `gateway`, and `provider_subtype` says what they
are. A settlement removes the mark, because the native row has its own type.

| subtype | row |
|---|---|
| `context` | what the client adds for the model: reminders, notes of the role system or developer, the environment; |
| | also messages that it repeats after a summary of the history |
| `history` | a part of Claude Code that only the history of an unknown session shows; the transcript tells whether it |
| | belongs to that session or to the one that it was forked from |
| `unfinished` | a block that a failure cut off; the client asks again |
| `failed_call` | the error of a call; the transcript has only the one that the client gave up on |
| `compaction` | the tokens of a call that summarized the history; `part_type` is usage |
| `no_output` | the tokens of a response that ended before its first block; `part_type` is usage |

A rollout of Codex counts the tokens of such calls on the next message, so they get no row here.

@ref capture#projection
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hypaware.clients.client_requests import CallKind
from hypaware.gateway.exchange import DecodedExchange
from hypaware.gateway.projection import anthropic, chat_completions, responses
from hypaware.gateway.projection.conversation import (
    ANSWERED,
    Conversation,
    ConversationCache,
    ConversationChanges,
    NewParts,
    SeenPart,
    find_new_parts,
)
from hypaware.gateway.projection.turn import ModelResponse, Turn, canonical_text, short_hash
from hypaware.model.columns import format_timestamp
from hypaware.model.datasets import Row
from hypaware.model.expand import Exchange, Expansion, Message
from hypaware.model.json_values import as_text
from hypaware.model.message_ids import fallback_scope
from hypaware.model.schemas import GATEWAY_TYPE

_READERS: tuple[tuple[re.Pattern[str], Callable[[DecodedExchange], Turn]], ...] = (
    (re.compile(r"/v1/messages(?:/count_tokens)?/?$"), anthropic.read_messages),
    (re.compile(r"/responses(?:/compact)?/?$"), responses.read_responses),
    (re.compile(r"/chat/completions/?$"), chat_completions.read_chat_completion),
)
_UNSAFE = re.compile(r"[^A-Za-z0-9_./-]")
_MAX_SEGMENTS, _MAX_LENGTH = 3, 60
_CONTEXT = {"provider_type": GATEWAY_TYPE, "provider_subtype": "context"}
_HISTORY = {"provider_type": GATEWAY_TYPE, "provider_subtype": "history"}
SessionFacts = Callable[[str], Mapping[str, Any]]
"""Session id → columns known from elsewhere: cwd, git_branch, git_remote, head_sha, repo_root."""


@dataclass(frozen=True)
class Projection:
    kind: CallKind | None = None
    dialect: str | None = None
    """None if the dialect is unknown: the exchange is counted in `skipped` by its path and stored raw."""
    session_id: str | None = None
    client_name: str | None = None
    rows: tuple[Row, ...] = ()
    """As stored, except for the columns that `complete_row` derives."""
    skipped: Counter[str] = field(default_factory=Counter)
    changes: ConversationChanges | None = None
    """For `ConversationCache.rollback`, if the rows could not be stored."""


def project_exchange(
    decoded: DecodedExchange, conversations: ConversationCache, *, facts: SessionFacts | None = None
) -> Projection:
    readers = (reader for ends, reader in _READERS if decoded.method == "POST" and ends.search(decoded.path))
    reader = next(readers, None)
    if reader is None or not isinstance(decoded.request, dict):
        return skip_exchange(decoded, "no_dialect" if reader is None else "unreadable_request")
    turn = reader(decoded)
    scope = fallback_scope(turn.session_id, turn.conversation_id, turn.agent_id)
    requested_at = format_timestamp(decoded.started_at)
    changes: ConversationChanges | None = None
    messages: Iterable[Message]
    if turn.kind is CallKind.TURN:
        changes = conversations.open(scope, requested_at)
        conversation, parts = changes.conversation, find_new_parts(turn.history, turn.response, changes, conversations)
        builder = _MessageBuilder(decoded, turn, changes)
        messages, positions, skipped = builder.messages(parts), builder.positions, builder.skipped
    else:
        skipped = Counter({f"side_call:{turn.kind}": 1})
        if turn.kind is not CallKind.COMPACTION or not _counts_apart(turn):
            return Projection(turn.kind, turn.dialect, turn.session_id, turn.client_name, skipped=skipped)
        conversation = conversations.find(scope) or Conversation(started_at=requested_at)
        usage = _usage_message(decoded, turn, scope, turn.kind.value, conversation.last.get("id"))
        messages, positions = [usage], {str(usage.message_id): sum(not part.off_thread for part in turn.history)}
    exchange = Exchange(
        provider=decoded.provider,
        session_id=turn.session_id,
        client_name=turn.client_name or "",
        messages=messages,
        conversation_id=turn.conversation_id,
        client_version=turn.client_version,
        started_at=conversation.started_at,
        columns={**turn.columns, **(facts(turn.session_id) if facts is not None else {})},
        attributes=turn.attributes,
        links={},
    )
    gateway = {"source": "live", "exchange_id": decoded.exchange_id}
    rows = tuple(Expansion(exchange, gateway=gateway, skipped=skipped).rows())
    for row in rows:
        # The position in the whole request, not among its new parts.
        row["message_index"] = positions.get(row["message_id"], row["message_index"])
    return Projection(turn.kind, turn.dialect, turn.session_id, turn.client_name, rows, skipped, changes)


def skip_exchange(decoded: DecodedExchange, reason: str) -> Projection:
    """Return the projection of an exchange in which no conversation can be read."""
    if decoded.error == "upstream_down":
        # The request was not read to its end.
        reason = "upstream_down"
    # Ids in deeper segments of the path do not create new names.
    name = _UNSAFE.sub("?", "/".join(decoded.path.split("/")[: _MAX_SEGMENTS + 1]))[:_MAX_LENGTH]
    return Projection(client_name=decoded.client_name, skipped=Counter({f"{reason}:{name}": 1}))


def _counts_apart(turn: Turn) -> bool:
    """Return whether the tokens of a call without a message get a row of their own."""
    return bool(turn.response.usage) and turn.dialect != responses.DIALECT


def _usage_message(decoded: DecodedExchange, turn: Turn, scope: str, subtype: str, parent: str | None) -> Message:
    """Build the row that holds only the tokens of a call; its id derives from the exchange."""
    response = turn.response
    columns = {"provider_type": GATEWAY_TYPE, "provider_subtype": subtype, "request_id": _find_request_id(decoded)}
    if response.model is not None and "model" not in turn.columns:
        columns["model"] = response.model
    gateway = {"identity_source": "gateway_fallback", "api_message_id": response.api_id}
    return Message(
        role="assistant",
        content=[{"type": "usage"}],
        created_at=format_timestamp(decoded.ended_at),
        message_id=short_hash(scope, "usage", decoded.exchange_id),
        parent=parent,
        usage=response.usage,
        columns=columns,
        attributes={"gateway": {name: value for name, value in gateway.items() if value is not None}},
    )


def _find_request_id(decoded: DecodedExchange) -> str | None:
    headers = decoded.response_headers
    return as_text(headers.get("request-id")) or as_text(headers.get("x-request-id"))


class _MessageBuilder:
    def __init__(self, decoded: DecodedExchange, turn: Turn, changes: ConversationChanges) -> None:
        self._decoded, self._turn, self._changes = decoded, turn, changes
        self.skipped: Counter[str] = Counter()
        self.positions: dict[str, int] = {}
        # Items without a row. Those of the history count only if no earlier exchange contained them.
        known = changes.conversation.ids
        new = [each for each in turn.skipped if known.keys().isdisjoint(each.ids)]
        self.skipped.update(each.reason for each in (*new, *turn.response.skipped))
        for each in (*turn.skipped, *turn.response.skipped):
            for item_id in each.ids:
                changes.set(known, item_id, ANSWERED)

    def messages(self, parts: NewParts) -> Iterator[Message]:
        # Expansion needs the calls that new results answer, for the tools' names.
        answered_calls = {
            seen.part.unique_id for seen in parts.history if seen.is_new and seen.part.role != "assistant"
        } - {None}
        requested_at = format_timestamp(self._decoded.started_at)
        is_compacted = False
        # A fork repeats another session, which this gateway may not know any more. If the client's transcript tells
        # the sessions apart, it decides; other clients send ids, or have no forks.
        may_be_fork = self._changes.is_new and self._turn.facts.forks_keep_session_ids
        for seen in parts.history:
            if may_be_fork and seen.in_history:
                seen.part.columns = {**seen.part.columns, **_HISTORY}
            if is_compacted and seen.in_history:
                # Repeated after the summary. The transcript has it before, where it may not have been recorded.
                seen.part.columns = {**seen.part.columns, **_CONTEXT}
            is_compacted = is_compacted or bool(seen.part.columns.get("is_compact_summary"))
            if seen.is_new or (seen.part.role == "assistant" and seen.part.unique_id in answered_calls):
                self.positions[seen.id] = seen.position
                gateway_attributes = {"time_source": "request"} if seen.in_history else {}
                yield self._message(seen, requested_at, gateway_attributes)
        yield from self._response_messages(parts, format_timestamp(self._decoded.ended_at))

    def _response_messages(self, parts: NewParts, responded_at: str) -> Iterator[Message]:
        response, last = self._turn.response, len(parts.response) - 1
        usage_index = last if response.usage_index is None else response.usage_index
        request_id = _find_request_id(self._decoded)
        prompt = self._new_prompt() if any(seen.is_new for seen in parts.response) else {}
        has_response_id = response.in_transcript and self._turn.facts.transcript_has_response_ids
        for index, seen in enumerate(parts.response):
            self.positions[seen.id] = seen.position
            columns = {"request_id": request_id, **prompt}
            if has_response_id and response.api_id is not None:
                # As in an imported row.
                columns["raw_frame"] = {"type": seen.part.provider_type, "message_id": response.api_id}
            if response.model is not None and "model" not in self._turn.columns:
                columns["model"] = response.model
            prompt = {}
            gateway_attributes = {"api_message_id": response.api_id, "block_index": seen.part.block_index}
            message = self._message(seen, responded_at, gateway_attributes, columns)
            message.usage = response.usage if index == usage_index else None
            message.finish_reason = response.finish_reason if index == last else None
            yield message
        if not parts.response and _counts_apart(self._turn):
            message = _usage_message(self._decoded, self._turn, self._changes.scope, "no_output", parts.last_id)
            self.positions[str(message.message_id)] = parts.length
            yield message
        elif response.usage and not any(seen.is_new for seen in parts.response):
            self.skipped["usage_without_message"] += 1
        if response.failed:
            yield self._failure(parts, response, request_id, responded_at)

    def _message(
        self, seen: SeenPart, at: str, gateway_attributes: Mapping[str, Any], columns: Mapping[str, Any] | None = None
    ) -> Message:
        part = seen.part
        if seen.is_new:
            self.skipped.update(part.dropped)
        native = part.native_id is not None
        own_type: Mapping[str, Any] = {"provider_type": part.provider_type}
        if part.ephemeral and (native or not self._turn.facts.transcript_has_context):
            own_type = _CONTEXT
        gateway = dict(gateway_attributes) if native else {"identity_source": "gateway_fallback", **gateway_attributes}
        attributes: dict[str, Any] = {"gateway": {name: value for name, value in gateway.items() if value is not None}}
        for group in self._turn.attributes:
            attributes[group] = {"identity_source": "native" if native else "gateway_fallback"}
        return Message(
            role=part.role,
            content=part.content,
            created_at=at,
            message_id=seen.id,
            parent=seen.parent_id,
            fresh=seen.is_new,
            columns={**own_type, **part.columns, **(columns or {})},
            attributes=attributes,
        )

    def _failure(self, parts: NewParts, response: ModelResponse, request_id: str | None, at: str) -> Message:
        """Build the error row, one per attempt: its id derives from the exchange."""
        failure_id = short_hash(self._changes.scope, "error", self._decoded.exchange_id)
        self.positions[failure_id] = parts.length
        return Message(
            role="assistant",
            content=[{"type": "error", "message": response.error_message}],
            created_at=at,
            message_id=failure_id,
            parent=parts.last_id,
            error_code=response.error_code,
            error_message=response.error_message,
            columns={"provider_type": GATEWAY_TYPE, "provider_subtype": "failed_call", "request_id": request_id},
            attributes={"gateway": {"identity_source": "gateway_fallback"}},
        )

    def _new_prompt(self) -> dict[str, Any]:
        """Return system prompt and tools for the first response of the conversation that was made with them."""
        turn = self._turn
        if turn.system_text is None and turn.tools is None:
            return {}
        prompt = short_hash(turn.system_text or "", canonical_text(turn.tools))
        if prompt in self._changes.conversation.prompts:
            return {}
        self._changes.set(self._changes.conversation.prompts, prompt, "")
        return {"system_text": turn.system_text, "tools": turn.tools}
