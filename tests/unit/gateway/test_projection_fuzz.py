"""Whatever a client or a provider sends, nothing raises, and each resulting row fits its table."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypaware.gateway.exchange import SseEvent
from hypaware.gateway.projection.conversation import ConversationCache
from hypaware.gateway.projection.projector import project_exchange
from hypaware.gateway.raw_exchanges import StoredParts, build_raw_row
from hypaware.model.datasets import coerce_row, complete_row
from hypaware.model.match_keys import list_match_keys
from hypaware.model.schemas import AI_GATEWAY_EXCHANGES, AI_GATEWAY_MESSAGES
from tests.support import exchange_samples
from tests.support.strategies import json_values

PATHS = ["/v1/messages", "/v1/messages/count_tokens", "/v1/responses", "/v1/chat/completions"]
_TYPES = st.sampled_from(
    [
        *("text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image", "server_tool_use"),
        *("message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "output_text"),
        *("message_start", "content_block_start", "content_block_delta", "message_delta", "error", "text_delta"),
        *("input_json_delta", "response.completed", "response.output_item.added", "response.output_item.done"),
        *("response.output_text.delta", "response.failed", "citations_delta", "message_stop"),
    ]
)
_KEYS = st.sampled_from(
    [
        *("type", "role", "content", "text", "id", "tool_use_id", "call_id", "name", "input", "arguments", "output"),
        *("messages", "system", "tools", "metadata", "user_id", "message", "delta", "index", "content_block", "usage"),
        *("item", "output_index", "response", "choices", "finish_reason", "tool_calls", "function", "error", "status"),
        *("thinking", "signature", "partial_json", "summary", "client_metadata", "instructions", "conversation"),
    ]
)
_LIKELY = st.recursive(
    json_values | _TYPES | st.sampled_from(["user", "assistant", "tool", "system"]) | st.integers(0, 3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=6),
    max_leaves=25,
)
_BODIES = st.dictionaries(_KEYS, _LIKELY, max_size=6)
_EVENTS = st.lists(st.builds(SseEvent, _TYPES, _LIKELY), max_size=8)


@pytest.mark.hazard(60)
@settings(max_examples=120, deadline=None)
@given(st.sampled_from(PATHS), _BODIES, _BODIES | _EVENTS, st.sampled_from([200, 400, None]), st.text(max_size=20))
def test_any_exchange_produces_rows_that_fit_or_none(
    path: str, body: Any, answer: Any, status: int | None, agent: str
) -> None:
    headers = {"user-agent": agent, "x-codex-turn-metadata": agent, "x-claude-code-session-id": "s"}
    exchange = exchange_samples.build_exchange(path, body, answer, status=status, request_headers=headers)
    seen = ConversationCache()
    projection = project_exchange(exchange, seen)
    for row in projection.rows:
        assert complete_row(AI_GATEWAY_MESSAGES, dict(row), "g") == coerce_row(AI_GATEWAY_MESSAGES, dict(row), "g")
        assert all(isinstance(key, str) for key in list_match_keys(row))
    assert len({row["part_id"] for row in projection.rows}) == len(projection.rows)
    coerce_row(AI_GATEWAY_EXCHANGES, build_raw_row(exchange, projection, StoredParts()).row, "g")
    project_exchange(exchange, seen)


@pytest.mark.hazard(60)
@pytest.mark.parametrize("path", PATHS)
def test_deeply_nested_content_is_stored_as_far_as_possible(path: str) -> None:
    bomb: Any = "x"
    for _ in range(900):
        bomb = [bomb]
    deep: Any = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": bomb}
    message = {"role": "assistant", "content": [deep], "type": "message"}
    body = {"messages": [message], "input": [message], "system": bomb, "tools": bomb, "metadata": bomb}
    answer = {"content": [deep], "choices": [{"message": message, "finish_reason": "stop"}], "output": [message]}
    events = [SseEvent("message_start", {"message": message}), SseEvent("content_block_start", {"content_block": deep})]
    texts = {"request_text": "{}", "response_text": ""}

    for said in (events, [SseEvent("message", answer)], [SseEvent("response.completed", {"response": answer})]):
        each = exchange_samples.build_exchange(path, body, said, **texts)
        projection = project_exchange(each, ConversationCache())
        for row in projection.rows:
            coerce_row(AI_GATEWAY_MESSAGES, row, "g")
        raw = coerce_row(AI_GATEWAY_EXCHANGES, build_raw_row(each, projection, StoredParts()).row, "g")
        assert raw["exchange_id"] == each.exchange_id
