"""The projector: turns a live exchange into the rows that it adds to `ai_gateway_messages`.

The rows equal those that an import makes of the same conversation, as far as the same facts are available. In addition
`attributes.gateway` holds: `source: "live"`; `exchange_id`; `identity_source: "gateway_fallback"` if the client sends
no id; for the model's parts `api_message_id` and `block_index`; and `time_source: "request"` if a part was first seen
in a history, so its time is unknown.

Requests that are not part of the conversation (`CallKind`) produce no rows. An error response produces one row of type
`error` for every attempt; the user's message is recorded with the first. Nothing here raises.

@ref capture#projection
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from hypaware.capture.decoded import Decoded
from hypaware.capture.project import dialects
from hypaware.capture.project.news import News, Shown, news_of
from hypaware.capture.project.seen import ANSWERED, Changes, Seen
from hypaware.capture.project.turn import Answer, Kind, Turn
from hypaware.capture.project.values import digest, text, written
from hypaware.model.columns import timestamp_text
from hypaware.model.datasets import Row
from hypaware.model.exchange import Exchange, Message
from hypaware.model.expand import expand, scope_of

SessionFacts = Callable[[str], Mapping[str, Any]]
"""Session id → columns known from elsewhere: cwd, git_branch, git_remote, head_sha, repo_root."""

_ATTRIBUTES_CODEX = "codex"


@dataclass(frozen=True)
class Projection:
    kind: Kind | None = None
    dialect: str | None = None
    """None if the dialect is unknown: the exchange is counted in `skipped` by its path and stored raw."""
    session_id: str | None = None
    client_name: str | None = None
    rows: tuple[Row, ...] = ()
    """As stored, except for the columns that `complete_row` derives."""
    skipped: Counter[str] = field(default_factory=Counter)
    changes: Changes | None = None
    """For `ConversationCache.rollback`, if the rows could not be stored."""


def project(decoded: Decoded, conversations: Seen, *, facts: SessionFacts | None = None) -> Projection:
    turn = dialects.read(decoded)
    if isinstance(turn, str):
        return Projection(client_name=decoded.client_name, skipped=Counter({turn: 1}))
    projection = Projection(turn.kind, turn.dialect, turn.session_id, turn.client_name)
    if turn.kind is not Kind.TURN:
        return replace(projection, skipped=Counter({f"side_call:{turn.kind}": 1}))
    changes = conversations.open(
        scope_of(turn.session_id, turn.conversation_id, turn.agent_id), _moment(decoded.started_at)
    )
    builder = _Rows(decoded, turn, changes, conversations, facts)
    return replace(projection, rows=tuple(builder.rows()), skipped=builder.skipped, changes=changes)


class _Rows:
    def __init__(
        self, decoded: Decoded, turn: Turn, changes: Changes, conversations: Seen, facts: SessionFacts | None
    ) -> None:
        self._decoded, self._turn, self._changes, self._conversations = decoded, turn, changes, conversations
        self._facts = facts(turn.session_id) if facts is not None else {}
        self.skipped: Counter[str] = Counter()
        self._positions: dict[str, int] = {}

    def rows(self) -> Iterator[Row]:
        turn = self._turn
        news = news_of(turn.history, turn.response, self._changes, self._conversations)
        self._count_skipped()
        exchange = Exchange(
            provider=self._decoded.provider,
            session_id=turn.session_id,
            client_name=turn.client_name or "",
            messages=self._messages(news),
            conversation_id=turn.conversation_id,
            client_version=turn.client_version,
            started_at=self._changes.conversation.started_at,
            columns={**turn.columns, **self._facts},
            attributes=turn.attributes,
            links={},
        )
        gateway = {"source": "live", "exchange_id": self._decoded.exchange_id}
        for row in expand(exchange, gateway=gateway, skipped=self.skipped):
            # The position in the whole request, not among its new parts.
            row["message_index"] = self._positions.get(row["message_id"], row["message_index"])
            yield row

    def _count_skipped(self) -> None:
        """Count the items without a row; those of the history only if no earlier exchange contained them."""
        known = self._changes.conversation.ids
        for each in self._turn.skipped:
            if known.keys().isdisjoint(each.ids):
                self.skipped[each.reason] += 1
        for each in self._turn.response.skipped:
            self.skipped[each.reason] += 1
        for each in (*self._turn.skipped, *self._turn.response.skipped):
            for item_id in each.ids:
                self._changes.set(known, item_id, ANSWERED)

    def _messages(self, news: News) -> Iterator[Message]:
        answered_calls = _calls_of(news)
        requested_at, responded_at = _moment(self._decoded.started_at), _moment(self._decoded.ended_at)
        for seen in news.history:
            if seen.is_new or _call_id(seen) in answered_calls:
                self._positions[seen.id] = seen.position
                gateway_attributes = {"time_source": "request"} if seen.in_history else {}
                yield self._message(seen, requested_at, gateway_attributes)
        yield from self._answer(news, responded_at)

    def _answer(self, news: News, responded_at: str) -> Iterator[Message]:
        response, last = self._turn.response, len(news.response) - 1
        usage_index = last if response.usage_index is None else response.usage_index
        request_id = _request_id(self._decoded)
        prompt = self._new_prompt() if any(seen.is_new for seen in news.response) else {}
        for index, seen in enumerate(news.response):
            self._positions[seen.id] = seen.position
            columns = {"request_id": request_id, "raw_frame": _frame(seen, response), **prompt}
            if response.model is not None and "model" not in self._turn.columns:
                columns["model"] = response.model
            prompt = {}
            gateway_attributes = {"api_message_id": response.api_id, "block_index": seen.part.block_index}
            message = self._message(seen, responded_at, gateway_attributes, columns)
            message.usage = response.usage if index == usage_index else None
            message.finish_reason = response.finish_reason if index == last else None
            yield message
        if response.usage and not any(seen.is_new for seen in news.response):
            self.skipped["usage_without_message"] += 1
        if response.failed:
            yield self._failure(news, response, request_id, responded_at)

    def _message(
        self, seen: Shown, at: str, gateway_attributes: Mapping[str, Any], columns: Mapping[str, Any] | None = None
    ) -> Message:
        part = seen.part
        if seen.is_new:
            self.skipped.update(part.dropped)
        native = part.native_id is not None
        gateway = dict(gateway_attributes) if native else {"identity_source": "gateway_fallback", **gateway_attributes}
        attributes: dict[str, Any] = {"gateway": {name: value for name, value in gateway.items() if value is not None}}
        if _ATTRIBUTES_CODEX in self._turn.attributes:
            attributes[_ATTRIBUTES_CODEX] = {"identity_source": "native" if native else "gateway_fallback"}
        return Message(
            role=part.role,
            content=part.content,
            created_at=at,
            message_id=seen.id,
            parent=seen.parent_id,
            fresh=seen.is_new,
            columns={"provider_type": part.provider_type, **part.columns, **(columns or {})},
            attributes=attributes,
        )

    def _failure(self, news: News, response: Answer, request_id: str | None, at: str) -> Message:
        """Build the error row, one per attempt: its id derives from the exchange."""
        failure_id = digest(self._changes.scope, "error", self._decoded.exchange_id)
        self._positions[failure_id] = news.length
        return Message(
            role="assistant",
            content=[{"type": "error", "message": response.error_message}],
            created_at=at,
            message_id=failure_id,
            parent=news.last_id,
            error_code=response.error_code,
            error_message=response.error_message,
            columns={"provider_type": "assistant", "request_id": request_id},
            attributes={"gateway": {"identity_source": "gateway_fallback"}},
        )

    def _new_prompt(self) -> dict[str, Any]:
        """Return system prompt and tools for the first response of the conversation that was made with them."""
        turn = self._turn
        if turn.system_text is None and turn.tools is None:
            return {}
        prompt = digest(turn.system_text or "", written(turn.tools))
        if prompt in self._changes.conversation.prompts:
            return {}
        self._changes.set(self._changes.conversation.prompts, prompt, "")
        return {"system_text": turn.system_text, "tools": turn.tools}


def _frame(seen: Shown, response: Answer) -> dict[str, Any] | None:
    """Return the frame of an imported row; only if the transcript also has the API's id."""
    if not response.in_transcript or response.api_id is None:
        return None
    return {"type": seen.part.provider_type, "message_id": response.api_id}


def _calls_of(news: News) -> set[str]:
    """Return the ids of the calls that new results answer; expansion needs those calls for the tools' names."""
    return {
        seen.part.unique_id
        for seen in news.history
        if seen.is_new and seen.part.unique_id is not None and seen.part.role != "assistant"
    }


def _call_id(seen: Shown) -> str | None:
    return seen.part.unique_id if seen.part.role == "assistant" else None


def _request_id(decoded: Decoded) -> str | None:
    headers = decoded.response_headers
    return text(headers.get("request-id")) or text(headers.get("x-request-id"))


def _moment(moment: datetime) -> str:
    return timestamp_text(moment)
