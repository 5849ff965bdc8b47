"""The Chat Completions dialect: plain, streamed, truncated and failed responses; conversations without an id."""

from __future__ import annotations

from typing import Any

import pytest

from hypaware.gateway.exchange import SseEvent
from hypaware.gateway.projection.conversation import ConversationCache
from hypaware.gateway.projection.projector import project_exchange
from hypaware.model import canonical
from hypaware.model.datasets import Row
from tests.support import exchange_samples

PATH = "/v1/chat/completions"
CALL = {"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": '{"path": "."}'}}
ASKED = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "List the files."}]
BODY = {"model": "model-1", "messages": ASKED, "tools": [{"type": "function"}], "user": "somebody"}
USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13, "prompt_tokens_details": {"cached_tokens": 5}}
ANSWER = {
    "id": "chatcmpl-1",
    "model": "model-1",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
            "finish_reason": "tool_calls",
        }
    ],
    "usage": USAGE,
}


def streamed() -> list[SseEvent]:
    def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        about = {"id": "chatcmpl-1", "model": "model-1"}
        return {**about, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

    chunks = [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "I "}),
        chunk({"content": "look."}),
        chunk({"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "ls", "arguments": ""}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"path":'}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": ' "."}'}}]}),
        chunk({}, "tool_calls"),
        {"id": "chatcmpl-1", "choices": [], "usage": USAGE},
    ]
    return [*(SseEvent("message", each) for each in chunks), SseEvent("message", "[DONE]")]


def rows_of(body: Any, answer: Any, seen: ConversationCache | None = None, **more: Any) -> list[Row]:
    return list(
        project_exchange(exchange_samples.build_exchange(PATH, body, answer, **more), seen or ConversationCache()).rows
    )


@pytest.mark.hazard(55)
def test_a_streamed_response_gives_the_same_rows_as_a_plain_one() -> None:
    whole = rows_of(BODY, ANSWER)

    assert rows_of(BODY, streamed()) == whole
    assert [(row["role"], row["part_type"]) for row in whole] == [
        ("user", "text"),
        ("assistant", "text"),
        ("assistant", "tool_call"),
    ]
    assert (whole[1]["system_text"], whole[2]["tool_args"]) == ("Be kind.", '{"path":"."}')
    assert canonical.loads(whole[2]["attributes"])["usage"] == {
        "input_tokens": 4,
        "output_tokens": 4,
        "cache_read_tokens": 5,
        "reasoning_tokens": 0,
        "total_tokens": 13,
    }
    assert canonical.loads(whole[2]["status"]) == {"finish_reason": "tool_calls"}


def test_a_stream_truncated_anywhere_keeps_what_arrived_and_reports_the_truncation() -> None:
    for length in range(6):
        rows = rows_of(BODY, streamed()[:length], error="upstream_cut")

        assert (rows[0]["content_text"], rows[-1]["part_type"]) == ("List the files.", "error")
        assert canonical.loads(rows[-1]["status"])["error_code"] == "upstream_cut"


def test_a_tool_result_has_the_name_of_its_tool() -> None:
    seen = ConversationCache()
    rows_of(BODY, ANSWER, seen)
    said = ANSWER["choices"][0]["message"]  # type: ignore[index]
    messages = [*ASKED, said, {"role": "tool", "tool_call_id": "call_1", "content": "a b"}]
    rows = rows_of({**BODY, "messages": messages}, {**ANSWER, "id": "chatcmpl-2"}, seen)

    assert [(row["role"], row["part_type"]) for row in rows[:1]] == [("tool", "tool_result")]
    assert (rows[0]["tool_name"], rows[0]["content_text"]) == ("ls", "a b")


@pytest.mark.hazard(55)
def test_an_error_response_becomes_a_row() -> None:
    refused = {"error": {"message": "Slow down", "type": "requests", "code": "rate_limit_exceeded"}}
    *_, row = rows_of(BODY, refused, status=429)

    assert (row["part_type"], row["content_text"], row["is_error"]) == ("error", "Slow down", True)


@pytest.mark.hazard(53)
def test_two_conversations_that_begin_alike_are_both_recorded() -> None:
    seen = ConversationCache()
    hello = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    answer = {"id": "c1", "choices": [{"message": {"content": "Hello."}, "finish_reason": "stop"}]}
    rows = rows_of(hello, answer, seen) + rows_of(hello, {**answer, "id": "c2"}, seen, exchange_id="e2")

    assert [row["content_text"] for row in rows] == ["hi", "Hello."] * 2
    assert len({row["part_id"] for row in rows}) == 4


@pytest.mark.parametrize(
    ("pieces", "whole", "rows"),
    [
        (
            [
                {"tool_calls": [{"index": 0, "id": "c1", "type": "custom", "custom": {"name": "patch", "input": ""}}]},
                {"tool_calls": [{"index": 0, "custom": {"input": "*** Begin"}}]},
                {"tool_calls": [{"index": 0, "custom": {"input": " Patch"}}]},
            ],
            {"tool_calls": [{"id": "c1", "type": "custom", "custom": {"name": "patch", "input": "*** Begin Patch"}}]},
            [("tool_call", "patch", '"*** Begin Patch"', None)],
        ),
        (
            [
                {"function_call": {"name": "ls", "arguments": ""}},
                {"function_call": {"arguments": '{"a":'}},
                {"function_call": {"arguments": "1}"}},
            ],
            {"function_call": {"name": "ls", "arguments": '{"a":1}'}},
            [("tool_call", "ls", '{"a":1}', None)],
        ),
        (
            [
                {"audio": {"id": "a1", "transcript": "Good "}},
                {"audio": {"data": "UklG"}},
                {"audio": {"transcript": "day."}},
                {"audio": {"expires_at": 1}},
            ],
            {"audio": {"id": "a1", "transcript": "Good day.", "data": "UklG", "expires_at": 1}},
            [("audio", None, None, "Good day.")],
        ),
        ([{"refusal": "I "}, {"refusal": "won't."}], {"refusal": "I won't."}, [("text", None, None, "I won't.")]),
    ],
    ids=["custom", "function_call", "audio", "refusal"],
)
@pytest.mark.hazard(55)
def test_refusals_audio_and_legacy_calls_become_rows_in_every_form(
    pieces: list[dict[str, Any]], whole: dict[str, Any], rows: list[tuple[Any, ...]]
) -> None:
    chunks = [{"id": "chatcmpl-1", "choices": [{"index": 0, "delta": delta}]} for delta in pieces]
    chunks.append({"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    choice = {"index": 0, "message": {"role": "assistant", **whole}, "finish_reason": "stop"}
    answer = {"id": "chatcmpl-1", "choices": [choice]}
    seen = ConversationCache()
    found = rows_of(BODY, answer, seen)[1:]

    assert rows_of(BODY, [SseEvent("message", each) for each in chunks])[1:] == found
    shown = ("part_type", "tool_name", "tool_args", "content_text")
    assert [tuple(row.get(name) for name in shown) for row in found] == rows
    known = whole if "audio" not in whole else {"audio": {"id": "a1"}}
    later = [*ASKED, {"role": "assistant", **known}, {"role": "user", "content": "Go on."}]
    again = rows_of({**BODY, "messages": later}, {**answer, "id": "chatcmpl-2"}, seen)
    assert [row.get("content_text") for row in again if row["role"] == "user"] == ["Go on."]
    assert [row["role"] for row in again].count("assistant") <= 1, "only the new response"


def test_images_and_reasoning_have_part_types_of_their_own() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    asked = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, picture]}]
    said = {"content": "A dot.", "reasoning_content": "I look."}
    rows = rows_of({"messages": asked}, {"choices": [{"message": said, "finish_reason": "stop"}]})

    assert [row["part_type"] for row in rows] == ["text", "image", "reasoning", "text"]
    assert "AAAA" not in str(rows)
