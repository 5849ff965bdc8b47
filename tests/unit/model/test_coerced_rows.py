"""Rows of the expansion skip coercion, which is only correct if coercion would not change them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hypaware.model.datasets import coerce_row, complete_row
from hypaware.model.expand import Exchange, Expansion, Message
from hypaware.model.schemas import AI_GATEWAY_MESSAGES
from tests.support.strategies import json_values

_COLUMNS = st.dictionaries(st.sampled_from([column.name for column in AI_GATEWAY_MESSAGES.columns]), json_values)
_BLOCKS = st.lists(
    st.dictionaries(
        st.sampled_from(["type", "text", "id", "name", "input", "tool_use_id", "content", "thinking", "is_error"]),
        st.one_of(st.sampled_from(["text", "tool_use", "tool_result", "thinking", "error", "image"]), json_values),
    )
)
_TIMES = st.one_of(st.none(), json_values, st.datetimes().map(lambda moment: moment.isoformat() + "Z"))


@st.composite
def exchanges(draw: st.DrawFn) -> Exchange:
    messages = draw(
        st.lists(
            st.builds(
                Message,
                role=st.one_of(st.sampled_from(["user", "assistant", "tool"]), json_values),
                content=st.one_of(st.text(), _BLOCKS, json_values),
                created_at=_TIMES,
                message_id=st.one_of(st.none(), st.text()),
                usage=st.one_of(st.none(), st.dictionaries(st.sampled_from(["input_tokens", "x"]), json_values)),
                finish_reason=json_values,
                error_message=json_values,
                columns=_COLUMNS,
                attributes=st.dictionaries(st.text(), json_values),
            ),
            max_size=5,
        )
    )
    return Exchange(
        provider="anthropic",
        session_id="session",
        client_name="claude",
        messages=messages,
        started_at=draw(_TIMES),
        fallback_time=("2026-11-15T07:00:00Z", "file_mtime"),
        columns=draw(_COLUMNS),
    )


@given(exchanges())
def test_coercing_a_row_of_the_expansion_changes_nothing(exchange: Exchange) -> None:
    gateway: dict[str, Any] = {"source": "backfill"}
    for row in Expansion(exchange, gateway=gateway, skipped=Counter()).rows():
        coerced = coerce_row(AI_GATEWAY_MESSAGES, dict(row), "gw-1")
        assert complete_row(AI_GATEWAY_MESSAGES, dict(row), "gw-1") == coerced
