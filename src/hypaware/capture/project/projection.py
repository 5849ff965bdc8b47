"""From a live exchange to the rows that it adds to `ai_gateway_messages`.

The rows are those that the import makes of the same conversation, as far as the same facts travel. Beside them stand
in `attributes.gateway`: `source: "live"`, `exchange_id`, `identity_source: "gateway_fallback"` where the client shows
no id, for the model's pieces `api_message_id` and `block_index`, and `time_source: "request"` where a piece was first
seen in a history, so that nobody knows when it was said.

Calls that are no part of the conversation (`Kind`) make no rows. An answer that is an error makes one row of type
`error`, for every attempt; what the user said is recorded with the first. Nothing here raises.

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
"""Session id → columns that somebody else knows of it: cwd, git_branch, git_remote, head_sha, repo_root."""

_ATTRIBUTES_CODEX = "codex"


@dataclass(frozen=True)
class Projection:
    kind: Kind | None = None
    dialect: str | None = None
    """None: nobody can read it; it is counted in `skipped` by its path and kept raw."""
    session_id: str | None = None
    client_name: str | None = None
    rows: tuple[Row, ...] = ()
    """As they are stored, but for what `complete_row` derives."""
    skipped: Counter[str] = field(default_factory=Counter)
    changes: Changes | None = None
    """For `Seen.rollback`, if the rows could not be stored."""


def project(decoded: Decoded, seen: Seen, *, facts: SessionFacts | None = None) -> Projection:
    turn = dialects.read(decoded)
    if isinstance(turn, str):
        return Projection(client_name=decoded.client_name, skipped=Counter({turn: 1}))
    read = Projection(turn.kind, turn.dialect, turn.session_id, turn.client_name)
    if turn.kind is not Kind.TURN:
        return replace(read, skipped=Counter({f"side_call:{turn.kind}": 1}))
    changes = seen.open(scope_of(turn.session_id, turn.conversation_id, turn.agent_id), _moment(decoded.started_at))
    made = _Rows(decoded, turn, changes, seen, facts)
    return replace(read, rows=tuple(made.rows()), skipped=made.skipped, changes=changes)


class _Rows:
    def __init__(self, decoded: Decoded, turn: Turn, changes: Changes, seen: Seen, facts: SessionFacts | None) -> None:
        self._decoded, self._turn, self._changes, self._seen = decoded, turn, changes, seen
        self._facts = facts(turn.session_id) if facts is not None else {}
        self.skipped: Counter[str] = Counter()
        self._places: dict[str, int] = {}

    def rows(self) -> Iterator[Row]:
        turn = self._turn
        news = news_of(turn.history, turn.answer, self._changes, self._seen)
        self._count_unsaid()
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
            # The place in what the request showed, not among what is new in it.
            row["message_index"] = self._places.get(row["message_id"], row["message_index"])
            yield row

    def _count_unsaid(self) -> None:
        """What makes no row; of the history only what no earlier exchange has shown."""
        known = self._changes.conversation.ids
        for each in self._turn.unsaid:
            if known.keys().isdisjoint(each.names):
                self.skipped[each.reason] += 1
        for each in self._turn.answer.unsaid:
            self.skipped[each.reason] += 1
        for each in (*self._turn.unsaid, *self._turn.answer.unsaid):
            for name in each.names:
                self._changes.note(known, name, ANSWERED)

    def _messages(self, news: News) -> Iterator[Message]:
        answered = _calls_of(news)
        asked_at, answered_at = _moment(self._decoded.started_at), _moment(self._decoded.ended_at)
        for shown in news.history:
            if shown.new or _call_id(shown) in answered:
                self._places[shown.id] = shown.place
                noted = {"time_source": "request"} if shown.late else {}
                yield self._message(shown, asked_at, noted)
        yield from self._answer(news, answered_at)

    def _answer(self, news: News, answered_at: str) -> Iterator[Message]:
        answer, last = self._turn.answer, len(news.answer) - 1
        carrier = last if answer.carrier is None else answer.carrier
        request_id = _request_id(self._decoded)
        shape = self._new_shape() if any(shown.new for shown in news.answer) else {}
        for index, shown in enumerate(news.answer):
            self._places[shown.id] = shown.place
            columns = {"request_id": request_id, "raw_frame": _frame(shown, answer), **shape}
            if answer.model is not None and "model" not in self._turn.columns:
                columns["model"] = answer.model
            shape = {}
            noted = {"api_message_id": answer.api_id, "block_index": shown.piece.block_index}
            message = self._message(shown, answered_at, noted, columns)
            message.usage = answer.usage if index == carrier else None
            message.finish_reason = answer.finish_reason if index == last else None
            yield message
        if answer.usage and not any(shown.new for shown in news.answer):
            self.skipped["usage_without_message"] += 1
        if answer.failed:
            yield self._failure(news, answer, request_id, answered_at)

    def _message(
        self, shown: Shown, at: str, noted: Mapping[str, Any], columns: Mapping[str, Any] | None = None
    ) -> Message:
        piece = shown.piece
        if shown.new:
            self.skipped.update(piece.lost)
        native = piece.native_id is not None
        gateway = dict(noted) if native else {"identity_source": "gateway_fallback", **noted}
        attributes: dict[str, Any] = {"gateway": {name: value for name, value in gateway.items() if value is not None}}
        if _ATTRIBUTES_CODEX in self._turn.attributes:
            attributes[_ATTRIBUTES_CODEX] = {"identity_source": "native" if native else "gateway_fallback"}
        return Message(
            role=piece.role,
            content=piece.content,
            created_at=at,
            message_id=shown.id,
            parent=shown.before,
            fresh=shown.new,
            columns={"provider_type": piece.provider_type, **piece.columns, **(columns or {})},
            attributes=attributes,
        )

    def _failure(self, news: News, answer: Answer, request_id: str | None, at: str) -> Message:
        """One for each attempt: it is named by its exchange."""
        failure_id = digest(self._changes.scope, "error", self._decoded.exchange_id)
        self._places[failure_id] = news.places
        return Message(
            role="assistant",
            content=[{"type": "error", "message": answer.error_message}],
            created_at=at,
            message_id=failure_id,
            parent=news.last_id,
            error_code=answer.error_code,
            error_message=answer.error_message,
            columns={"provider_type": "assistant", "request_id": request_id},
            attributes={"gateway": {"identity_source": "gateway_fallback"}},
        )

    def _new_shape(self) -> dict[str, Any]:
        """System prompt and tools, on the first answer of the conversation that was made with them."""
        turn = self._turn
        if turn.system_text is None and turn.tools is None:
            return {}
        shape = digest(turn.system_text or "", written(turn.tools))
        if shape in self._changes.conversation.shapes:
            return {}
        self._changes.note(self._changes.conversation.shapes, shape, "")
        return {"system_text": turn.system_text, "tools": turn.tools}


def _frame(shown: Shown, answer: Answer) -> dict[str, Any] | None:
    """As an imported row has it; only where a transcript has the API's id, too."""
    if not answer.is_native or answer.api_id is None:
        return None
    return {"type": shown.piece.provider_type, "message_id": answer.api_id}


def _calls_of(news: News) -> set[str]:
    """Ids of the calls that new results answer: such a call is shown to the expansion for its tool's name."""
    return {
        shown.piece.strong_id
        for shown in news.history
        if shown.new and shown.piece.strong_id is not None and shown.piece.role != "assistant"
    }


def _call_id(shown: Shown) -> str | None:
    return shown.piece.strong_id if shown.piece.role == "assistant" else None


def _request_id(decoded: Decoded) -> str | None:
    headers = decoded.response_headers
    return text(headers.get("request-id")) or text(headers.get("x-request-id"))


def _moment(moment: datetime) -> str:
    return timestamp_text(moment)
