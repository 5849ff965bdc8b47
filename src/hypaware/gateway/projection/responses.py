"""The Responses dialect: `/v1/responses` and `/backend-api/codex/responses`, which Codex and other clients use.

Each item becomes one part, because a rollout has one line per item. The response is the `output` of the JSON body or is
rebuilt from the events: `response.output_item.done`, the content of `response.completed`, and the deltas of truncated
items. Items without a row in an import (`items.says`) have none here either; they are counted under the import's
reasons.

Newer versions of Codex send every item's id in every request; then it is the message id, in the rollout and here. Other
clients often send back the ids of responses but give their own messages none; then ids are not used in any of their
requests. Session and thread are what the client names (`RequestReader.find_session`), else the conversation of the
body, else a hash of how it begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hypaware.clients.client_requests import CallKind
from hypaware.clients.codex import rollout
from hypaware.clients.codex.usage import TokenFigure, parse_figure
from hypaware.clients.reader import unknown_type_reason
from hypaware.gateway.exchange import DecodedExchange, SseEvent
from hypaware.gateway.projection.turn import (
    ModelResponse,
    SkippedItem,
    Turn,
    TurnPart,
    build_error_response,
    canonical_text,
    opening_texts,
    short_hash,
)
from hypaware.gateway.senders import identify_sender
from hypaware.model.json_values import as_list, as_mapping, as_text, join_texts

# These refer to earlier items, or hold nothing readable.
_NOT_COUNTED = ("item_reference", "reasoning")
_VOLATILE_KEYS = ("id", "status")
DIALECT = "openai_responses"
_EPHEMERAL_PREFIXES = ("<environment_context>", "<user_instructions>", "# AGENTS.md instructions")
_DELTA_FIELDS = {
    "response.output_text.delta": "text",
    "response.reasoning_summary_text.delta": "summary",
    "response.reasoning_text.delta": "summary",
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
}
# The item that a delta continues if no event started it.
_IMPLICIT_ITEMS: dict[str, dict[str, Any]] = {
    "text": {"type": "message", "role": "assistant"},
    "summary": {"type": "reasoning"},
}
_END_STATUS = {"response.completed": "completed", "response.incomplete": "incomplete"}


def read_responses(decoded: DecodedExchange) -> Turn:
    body = as_mapping(decoded.request)
    sender = identify_sender(decoded, DIALECT, lambda: _find_conversation_id(body))
    facts, session, thread = sender.facts, sender.ids.session_id, sender.ids.thread_id
    input_items = _normalize_input(body.get("input"))
    # Whether ids identify items. Each request must decide alone, because earlier ones may be forgotten.
    has_ids = [rollout.get_item_id(item) is not None for item in input_items if rollout.makes_message(item)]
    uses_ids = any(has_ids) if facts.has_item_ids else bool(has_ids) and all(has_ids)
    skipped = SkippedItems()
    return Turn(
        dialect=DIALECT,
        kind=CallKind.COMPACTION if decoded.path.endswith("/responses/compact") else facts.kind,
        session_id=session or thread or "",
        conversation_id=(thread or session) if facts.main_thread_is_session else thread,
        history=[_item_part(item, uses_ids, None) for item in input_items if rollout.makes_message(item)],
        skipped=skipped.in_request(input_items),
        response=_read_response(decoded, uses_ids, skipped),
        agent_id=facts.agent_id,
        client_name=sender.client,
        client_version=sender.version,
        system_text=as_text(body.get("instructions")),
        tools=body.get("tools") or None,
        columns={"model": as_text(body.get("model")), **facts.columns},
        attributes=facts.attributes,
        facts=facts,
    )


def _find_conversation_id(body: dict[str, Any]) -> str:
    conversation = body.get("conversation")
    return (
        as_text(conversation)
        or as_text(as_mapping(conversation).get("id"))
        or as_text(as_mapping(body.get("metadata")).get("session_id"))
        or short_hash(DIALECT, *opening_texts(body.get("instructions"), _normalize_input(body.get("input"))))
    )


def _normalize_input(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    input_items = [item for item in as_list(value) if isinstance(item, dict)]
    # The short form of a message has no type.
    return [item if "type" in item else {"type": "message", **item} for item in input_items]


def _item_part(item: dict[str, Any], uses_ids: bool, index: int | None) -> TurnPart:
    dropped: Counter[str] = Counter()
    role, content = rollout.convert_item(item, dropped)
    own_id = rollout.get_item_id(item)
    kind, text_value = item["type"], join_texts(item.get("content")) or ""
    return TurnPart(
        role=role,
        content=content,
        native_id=own_id if uses_ids else None,
        assigned_id=None if uses_ids else own_id,
        unique_id=as_text(item.get("call_id")),
        ephemeral=role in ("system", "developer") or (kind == "message" and text_value.startswith(_EPHEMERAL_PREFIXES)),
        is_reasoning=kind == "reasoning",
        block_index=index,
        provider_type=kind,
        dropped=dropped,
    )


def _read_response(decoded: DecodedExchange, uses_ids: bool, skipped: SkippedItems) -> ModelResponse:
    if decoded.events is not None:
        rebuilt = _ResponseAssembler(decoded.events)
        response, output, error = rebuilt.response, rebuilt.output(), rebuilt.error
    else:
        response = as_mapping(decoded.response)
        output, error = as_list(response.get("output")), None
    status = response.get("status")
    ended = status in ("completed", "incomplete")
    if error is None and not ended and not (decoded.events is None and output):
        error = {"error": response.get("error") or response.get("detail")} if response.get("error") else {}
        if decoded.events is None:
            error = response
    output_items = [(item, index) for index, item in enumerate(output) if isinstance(item, dict)]
    # A message in a response is the assistant's if it has no role.
    roles = [
        ({"role": "assistant", **item} if item.get("type") == "message" else item, index)
        for item, index in output_items
    ]
    recorded = [(item, index) for item, index in roles if rollout.makes_message(item)]
    carriers = [number for number, (item, _) in enumerate(recorded) if rollout.can_carry_usage(item)]
    if error is None:
        reason = as_mapping(response.get("incomplete_details")).get("reason") if status == "incomplete" else None
        finish_reason = {"max_output_tokens": "length"}.get(str(reason), reason)
        outcome = ModelResponse(finish_reason=finish_reason, complete=status == "completed")
    else:
        outcome = build_error_response(decoded, error)
    return replace(
        outcome,
        parts=[_item_part(item, uses_ids, index) for item, index in recorded],
        skipped=skipped.in_response(item for item, _ in output_items),
        api_id=as_text(response.get("id")),
        model=response.get("model"),
        usage=openai_usage(response.get("usage")),
        usage_index=carriers[-1] if carriers else None,
    )


def openai_usage(usage: Any) -> dict[str, int] | None:
    """Return the token counts of both OpenAI dialects under the table's names."""
    reported = as_mapping(usage)
    if not reported:
        return None
    input_details = as_mapping(reported.get("input_tokens_details") or reported.get("prompt_tokens_details"))
    output_details = as_mapping(reported.get("output_tokens_details") or reported.get("completion_tokens_details"))
    figures: TokenFigure | None = parse_figure(
        {
            "input_tokens": reported.get("input_tokens", reported.get("prompt_tokens")),
            "cached_input_tokens": input_details.get("cached_tokens"),
            "output_tokens": reported.get("output_tokens", reported.get("completion_tokens")),
            "reasoning_output_tokens": output_details.get("reasoning_tokens"),
            "total_tokens": reported.get("total_tokens"),
        }
    )
    return None if figures is None else figures.as_usage()


class _ResponseAssembler:
    """A response rebuilt from the events that arrived."""

    def __init__(self, events: tuple[SseEvent, ...]) -> None:
        self.response: dict[str, Any] = {}
        self.error: dict[str, Any] | None = None
        self._items: dict[int, dict[str, Any]] = {}
        self._done: set[int] = set()
        self._indexes: dict[str, int] = {}
        self._texts: dict[tuple[int, str], list[str]] = {}
        for event in events:
            data = as_mapping(event.data)
            kind = data.get("type") or event.type
            if isinstance(kind, str):
                self._apply(kind, data)

    def _apply(self, kind: str, data: dict[str, Any]) -> None:
        if kind in ("response.output_item.added", "response.output_item.done"):
            if isinstance(item := data.get("item"), dict):
                index = self._index(data, rollout.get_item_id(item) or as_text(item.get("call_id")))
                self._items[index] = item
                if kind.endswith("done"):
                    self._done.add(index)
        elif (name := _DELTA_FIELDS.get(kind)) is not None:
            if isinstance(more := data.get("delta"), str):
                self._texts.setdefault((self._index(data, name), name), []).append(more)
        elif kind == "error":
            self.error = data if "error" in data else {"error": data}
        elif isinstance(response := data.get("response"), dict):
            self.response = {"status": _END_STATUS[kind], **response} if kind in _END_STATUS else response
            if kind == "response.failed":
                self.error = {"error": response.get("error")}

    def _index(self, data: dict[str, Any], name: str | None) -> int:
        """Return the item's index in the output, or a number per distinguishable item if the provider sends none."""
        index = data.get("output_index")
        if isinstance(index, int):
            return index
        item_key = as_text(data.get("item_id")) or name or f"#{len(self._indexes)}"
        return self._indexes.setdefault(item_key, len(self._indexes))

    def output(self) -> list[Any]:
        if output := as_list(self.response.get("output")):
            return output
        for (index, name), more in self._texts.items():
            item = self._items.get(index) or (None if self._done else _IMPLICIT_ITEMS.get(name))
            if item is not None and index not in self._done:
                text = "".join(more)
                if name == "text":
                    added: dict[str, Any] = {"content": [{"type": "output_text", "text": text}]}
                else:
                    added = {name: [{"type": "summary_text", "text": text}] if name == "summary" else text}
                self._items[index] = {**item, **added}
        return [self._items[index] for index in sorted(self._items)]


class SkippedItems:
    """The items of one exchange that produce no row, as in an import: first those of its request, then of its response.

    They are counted once each, under the import's reasons, although later requests repeat them. An item is recognized
    by its id, or else by its content and the number of equal items before it in the conversation.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()

    def in_request(self, payloads: Iterable[rollout.Payload]) -> list[SkippedItem]:
        reasons = ((item, self._reason(item)) for item in payloads)
        return [SkippedItem(reason, (_item_id(item) or self._content_id(item),)) for item, reason in reasons if reason]

    def in_response(self, payloads: Iterable[rollout.Payload]) -> list[SkippedItem]:
        """Return the skipped items under both names, because not every client sends back the ids that it was given."""
        reasons = ((item, self._reason(item)) for item in payloads)
        names = ((reason, self._content_id(item), _item_id(item)) for item, reason in reasons if reason)
        return [SkippedItem(reason, (content, *([own_id] if own_id else ()))) for reason, content, own_id in names]

    def _reason(self, item: rollout.Payload) -> str | None:
        """Return why an item is skipped; None if it produces a row or holds nothing worth counting."""
        kind: Any = item.get("type")
        if rollout.makes_message(item) or kind in _NOT_COUNTED or (kind == "message" and not item.get("content")):
            return None
        reason = rollout.item_skip_reason(item) or unknown_type_reason(kind, self._reasons)
        if reason == "bookkeeping":
            return None
        self._reasons[reason] += 1
        return reason

    def _content_id(self, item: rollout.Payload) -> str:
        content = short_hash(
            canonical_text({name: value for name, value in item.items() if name not in _VOLATILE_KEYS})
        )
        self._counts[content] += 1
        return f"skipped:{content}:{self._counts[content]}"


def _item_id(item: rollout.Payload) -> str | None:
    own_id = rollout.get_item_id(item)
    return None if own_id is None else f"skipped:{own_id}"
