"""Properties of the expansion: it accepts any JSON in any field, and the order of keys does not matter."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypaware.model.datasets import coerce_row
from hypaware.model.expand import Exchange, Expansion, Message, has_parts
from hypaware.model.message_ids import compute_fallback_id
from hypaware.model.schemas import AI_GATEWAY_MESSAGES

SCALE = int(os.environ.get("HYP_SOAK", "1"))

# JSON as Python can represent it, with NaN, infinities and lone surrogates.
_text = st.text(st.characters(exclude_categories=()), max_size=8)
_anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=6,
)
_block_types = st.sampled_from(
    [
        *("text", "thinking", "redacted_thinking", "tool_use", "tool_result", "web_search_tool_result"),
        *("image", "error", "hologram"),
    ]
)
_fields = st.sampled_from(
    [
        *("text", "thinking", "data", "signature", "name", "id", "input", "tool_use_id", "content", "is_error"),
        *("caller", "message", "source", "cache_control"),
    ]
)
_blocks = st.builds(
    lambda fields, kind: {**fields, "type": kind}, st.dictionaries(_fields, _anything, max_size=5), _block_types
)
_content = _anything | st.text(max_size=5) | st.lists(_blocks | _anything, max_size=3)
_columns = st.dictionaries(
    st.sampled_from([column.name for column in AI_GATEWAY_MESSAGES.columns]), _anything, max_size=5
)
_groups = st.dictionaries(st.sampled_from(["client", "gateway", "usage", "claude"]) | _text, _anything, max_size=3)
_time = st.just("2026-11-15T08:00:00Z") | _anything
_id = st.sampled_from(["a", "b", "c"])

_messages = st.builds(
    Message,
    role=st.sampled_from(["user", "assistant"]) | _anything,
    content=_content,
    created_at=_time,
    message_id=_id | st.none() | _anything,
    parent=_id | _anything,
    fresh=st.booleans(),
    usage=st.none() | st.dictionaries(st.sampled_from(["input_tokens", "output_tokens"]), _anything) | _anything,
    finish_reason=_anything,
    error_code=_anything,
    error_message=_anything,
    columns=_columns,
    attributes=_groups,
)
_exchanges = st.builds(
    Exchange,
    provider=st.just("anthropic") | _anything,
    session_id=st.just("s") | _anything,
    client_name=st.just("claude") | _anything,
    messages=st.lists(_messages, max_size=4),
    conversation_id=_anything,
    client_version=_anything,
    started_at=_time,
    fallback_time=st.none() | st.just(("2026-01-01T00:00:00Z", "file_mtime")),
    columns=_columns,
    attributes=_groups,
    links=st.none() | st.dictionaries(_id, _id | st.none()),
)


def _shuffled(value: Any) -> Any:
    """Return the value with the keys of every object reversed."""
    if isinstance(value, dict):
        return {key: _shuffled(item) for key, item in reversed(value.items())}
    return [_shuffled(item) for item in value] if isinstance(value, list) else value


@pytest.mark.hazard(60)
@settings(max_examples=200 * SCALE)
@given(_exchanges)
def test_any_exchange_becomes_rows_that_can_be_stored(exchange: Exchange) -> None:
    skipped: Counter[str] = Counter()
    rows = [
        coerce_row(AI_GATEWAY_MESSAGES, row, "g")
        for row in Expansion(exchange, gateway={"source": "backfill"}, skipped=skipped).rows()
    ]
    assert len({row["part_id"] for row in rows}) == len(rows)
    assert all(count > 0 for count in skipped.values())
    assert all(reason.isascii() and reason.replace("_", "").isalnum() for reason in skipped)
    fresh = [message for message in exchange.messages if message.fresh]
    assert len({row["message_id"] for row in rows}) <= len(fresh)


@settings(max_examples=200 * SCALE)
@given(_content)
def test_a_message_makes_a_row_exactly_if_it_has_parts(content: Any) -> None:
    message = Message(role="user", content=content, created_at="2026-11-15T08:00:00Z", message_id="m")
    exchange = Exchange(provider="p", session_id="s", client_name="c", messages=[message])
    assert bool(list(Expansion(exchange, gateway={}, skipped=Counter()).rows())) == has_parts(content)


@settings(max_examples=200 * SCALE)
@given(_content, _text)
def test_a_fallback_id_does_not_depend_on_the_order_of_keys(content: Any, role: str) -> None:
    assert compute_fallback_id("s", role, content) == compute_fallback_id("s", role, _shuffled(content))


@settings(max_examples=200 * SCALE)
@given(st.lists(_blocks, min_size=1, max_size=3))
def test_rows_do_not_depend_on_the_order_of_keys(blocks: list[Any]) -> None:
    def stored(content: Any) -> list[Any]:
        message = Message(role="user", content=content, created_at="2026-11-15T08:00:00Z")
        exchange = Exchange(provider="p", session_id="s", client_name="c", messages=[message])
        rows = Expansion(exchange, gateway={}, skipped=Counter()).rows()
        return [coerce_row(AI_GATEWAY_MESSAGES, row, "g") for row in rows]

    assert stored(blocks) == stored(_shuffled(blocks))


@given(st.lists(st.sampled_from(["continue", "yes"]), max_size=8))
def test_repeated_messages_are_separate_messages(words: list[str]) -> None:
    messages = [Message(role="user", content=word, created_at="2026-11-15T08:00:00Z") for word in words]
    exchange = Exchange(provider="p", session_id="s", client_name="c", messages=messages)
    rows = list(Expansion(exchange, gateway={}, skipped=Counter()).rows())
    assert [row["content_text"] for row in rows] == words
    assert len({row["message_id"] for row in rows}) == len(words)
