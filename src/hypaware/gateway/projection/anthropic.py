"""The Anthropic dialect: `/v1/messages`, which Claude Code and other clients use.

Each content block becomes one part, in requests and in responses, because a Claude Code transcript has one line per
block. The response is the JSON body or is rebuilt from the events message_start, content_block_start/delta/stop,
message_delta and message_stop; the part of a truncated response that arrived counts. The session is what the client
names (`RequestReader.find_session`), else a hash of how the conversation begins.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypaware.clients.claude.index import Counts, get_counts, merge_counts, to_usage
from hypaware.clients.client_requests import CallKind
from hypaware.gateway.exchange import DecodedExchange, SseEvent
from hypaware.gateway.projection.turn import (
    ModelResponse,
    Turn,
    TurnPart,
    build_error_response,
    opening_texts,
    short_hash,
    without_cache_control,
)
from hypaware.gateway.senders import identify_sender
from hypaware.model.json_values import Block, as_list, as_mapping, as_text, join_texts, parse_json, to_blocks
from hypaware.model.schemas import GATEWAY_TYPE

_SUMMARY_PREFIX = "This session is being continued from a previous conversation"
"""How the first message begins after Claude Code has compacted its history."""
DIALECT = "anthropic_messages"
_UNFINISHED_REASONS = frozenset({"max_tokens", "pause_turn", "model_context_window_exceeded", "error"})
# The block that a delta continues if no event started it.
_IMPLICIT_BLOCKS = {"text_delta": {"type": "text", "text": ""}, "thinking_delta": {"type": "thinking", "thinking": ""}}


def read_messages(decoded: DecodedExchange) -> Turn:
    body = as_mapping(decoded.request)
    sender = identify_sender(
        decoded, DIALECT, lambda: short_hash(DIALECT, *opening_texts(body.get("system"), body.get("messages")))
    )
    messages = [as_mapping(message) for message in as_list(body.get("messages"))]
    return Turn(
        dialect=DIALECT,
        kind=CallKind.COUNT_TOKENS if decoded.path.endswith("/count_tokens") else sender.facts.kind,
        session_id=sender.ids.session_id or "",
        conversation_id=sender.ids.thread_id,
        history=[
            part
            for message in messages
            if (role := as_text(message.get("role"))) is not None
            for part in _build_parts(role, to_blocks(message.get("content")))
        ],
        response=_ResponseBuilder(decoded).build(),
        agent_id=sender.facts.agent_id,
        client_name=sender.client,
        client_version=sender.version,
        system_text=_system_text(body.get("system")),
        tools=body.get("tools") or None,
        columns=sender.facts.columns or {"user_id": as_text(as_mapping(body.get("metadata")).get("user_id"))},
        facts=sender.facts,
    )


def _system_text(system: Any) -> str | None:
    """Join the system prompt without the client's billing line, which differs by call and is no part of the prompt."""
    if isinstance(system, list):
        system = [
            block for block in system if not str(as_mapping(block).get("text")).startswith("x-anthropic-billing-header")
        ]
    return join_texts(system)


def _build_parts(role: str, blocks: list[Any], finished: int | None = None) -> list[TurnPart]:
    """Return a part for each block that is not empty.

    The client repeats only the first `finished` blocks in later requests, so only those may give the group its id.
    """
    parts = [
        _block_part(role, block, index)
        for index, block in enumerate(blocks)
        if isinstance(block, dict) and block.get("text") != ""
    ]
    if role == "assistant" and len(parts) > 1:
        group_id = next((part.unique_id for part in parts[:finished] if part.unique_id is not None), None)
        for part in parts:
            part.group_id = group_id
    return parts


def _block_part(role: str, block: Block, index: int) -> TurnPart:
    kind, text_value = block.get("type"), block.get("text")
    part = TurnPart(role, [without_cache_control(block)], block_index=index, provider_type=role)
    if kind in ("tool_use", "server_tool_use"):
        part.unique_id = as_text(block.get("id"))
    elif kind in ("tool_result", "web_search_tool_result"):
        part.unique_id = as_text(block.get("tool_use_id"))
    elif kind in ("thinking", "redacted_thinking"):
        part.is_reasoning = True
    elif role == "system":
        part.ephemeral = part.off_thread = True
    elif role == "user" and isinstance(text_value, str):
        if text_value.startswith("<system-reminder>") and text_value.rstrip().endswith("</system-reminder>"):
            part.ephemeral = part.off_thread = True
            part.columns = {"attachment_type": "system_reminder"}
        elif text_value.startswith(_SUMMARY_PREFIX):
            part.columns = {"is_compact_summary": True}
    return part


class _ResponseBuilder:
    """Builds the response from its JSON body, or from the events that arrived."""

    def __init__(self, decoded: DecodedExchange) -> None:
        self._decoded = decoded
        self._blocks: dict[int, Block] = {}
        self._inputs: dict[int, list[str]] = {}
        self._texts: dict[tuple[int, str], list[str]] = {}
        self._message: dict[str, Any] = {}
        self._counts: Counts | None = None
        self._reason: Any = None
        self._finished = 0
        self._stopped = False
        self._error: dict[str, Any] | None = None
        if decoded.events is None:
            self._set_message(as_mapping(decoded.response))
        for event in decoded.events or ():
            self._apply(event)

    def _set_message(self, message: dict[str, Any]) -> None:
        if message.get("type") == "error" or "error" in message or "content" not in message:
            self._error = message
            return
        self._message, self._reason, self._stopped = message, message.get("stop_reason"), True
        self._blocks = dict(enumerate(to_blocks(message["content"])))
        self._finished = len(self._blocks)
        self._add_usage(message.get("usage"))

    def _apply(self, event: SseEvent) -> None:
        data = as_mapping(event.data)
        match data.get("type") or event.type:
            case "message_start":
                self._message = as_mapping(data.get("message"))
                self._add_usage(self._message.get("usage"))
            case "content_block_start":
                index, block = data.get("index"), data.get("content_block")
                if isinstance(index, int) and isinstance(block, dict):
                    self._blocks[index] = dict(block)
            case "content_block_delta":
                self._apply_delta(data.get("index"), as_mapping(data.get("delta")))
            case "content_block_stop":
                self._finished += 1
            case "message_delta":
                self._reason = as_mapping(data.get("delta")).get("stop_reason") or self._reason
                self._add_usage(data.get("usage"))
            case "message_stop":
                self._stopped = True
            case "error":
                self._error = data

    def _apply_delta(self, index: Any, delta: dict[str, Any]) -> None:
        kind = delta.get("type")
        if isinstance(index, int) and isinstance(kind, str) and kind in _IMPLICIT_BLOCKS:
            self._blocks.setdefault(index, {**_IMPLICIT_BLOCKS[kind]})
        if not isinstance(index, int) or index not in self._blocks:
            return
        if kind == "input_json_delta":
            if isinstance(more := delta.get("partial_json"), str):
                self._inputs.setdefault(index, []).append(more)
        elif kind == "citations_delta":
            block = self._blocks[index]
            block["citations"] = [*as_list(block.get("citations")), delta.get("citation")]
        else:
            # Every kind of delta, including unknown ones, stores its text under the same key as the block.
            for name, more in delta.items():
                if name != "type" and isinstance(more, str):
                    self._texts.setdefault((index, name), []).append(more)

    def _add_usage(self, reported: Any) -> None:
        if (counts := get_counts(reported)) is not None:
            self._counts = merge_counts(self._counts, counts)

    def build(self) -> ModelResponse:
        ended = self._stopped or self._reason is not None
        if self._error is not None or not ended or not self._message:
            outcome = build_error_response(self._decoded, self._error or {})
        else:
            is_complete = not isinstance(self._reason, str) or self._reason not in _UNFINISHED_REASONS
            outcome = ModelResponse(finish_reason=self._reason, complete=is_complete)
        for (index, name), more in self._texts.items():
            start = self._blocks[index].get(name)
            self._blocks[index][name] = (start if isinstance(start, str) else "") + "".join(more)
        for index, fragments in self._inputs.items():
            if joined := "".join(fragments):
                value = parse_json(joined)
                self._blocks[index]["input"] = joined if value is None else value
        blocks = [self._blocks[index] for index in sorted(self._blocks)]
        parts = _build_parts("assistant", blocks, self._finished)
        usage_index = None
        if outcome.failed:
            # The client discards a block that did not end, unless the user interrupted it. It keeps the others; the
            # last of them has the usage.
            for index, part in enumerate(parts):
                if part.block_index is not None and part.block_index >= self._finished:
                    part.columns = {"provider_type": GATEWAY_TYPE, "provider_subtype": "unfinished"}
                else:
                    usage_index = index
        counts = None if self._counts is None else to_usage(self._counts)
        return replace(
            outcome,
            parts=parts,
            api_id=as_text(self._message.get("id")),
            in_transcript=True,
            model=self._message.get("model"),
            usage=counts,
            usage_index=usage_index,
        )
