"""The Anthropic dialect: plain, streamed, truncated and failed responses; side calls, subagents and session ids."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from hypaware.clients.client_requests import CallKind
from hypaware.gateway.exchange import SseEvent
from hypaware.gateway.projection.conversation import ConversationCache
from hypaware.gateway.projection.projector import project_exchange
from hypaware.model import canonical
from hypaware.model.datasets import Row
from tests.support import exchange_samples

PATH = "/v1/messages"
CLAUDE = {"user-agent": "claude-cli/2.1.325 (external, cli)", "x-claude-code-session-id": "session-1"}
BODY = {
    "model": "claude-opus-5-5",
    "system": [{"type": "text", "text": "x-anthropic-billing-header: cc=1;"}, {"type": "text", "text": "Be kind."}],
    "tools": [{"name": "Bash"}],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "List the files."}]}],
}
BLOCKS: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "Look first.", "signature": "c2ln"},
    {"type": "text", "text": "I look."},
    {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}},
]
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-opus-5-5",
    "content": BLOCKS,
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 3, "output_tokens": 40, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 7},
}


def streamed(message: dict[str, Any]) -> list[SseEvent]:
    """The message as the API streams it: deltas of a few characters, final counts at the end."""
    begun = {**message, "content": [], "stop_reason": None, "usage": {**message["usage"], "output_tokens": 1}}
    said: list[dict[str, Any]] = [{"type": "message_start", "message": begun}]
    for index, block in enumerate(message["content"]):
        start, deltas = _deltas(block)
        said.append({"type": "content_block_start", "index": index, "content_block": start})
        said.append({"type": "ping"})
        said += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        said.append({"type": "content_block_stop", "index": index})
    said.append({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": message["usage"]})
    said.append({"type": "message_stop"})
    return [SseEvent(each["type"], each) for each in said]


def _deltas(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    match block["type"]:
        case "text":
            return {"type": "text", "text": ""}, [{"type": "text_delta", "text": part} for part in _cut(block["text"])]
        case "thinking":
            thought = [{"type": "thinking_delta", "thinking": part} for part in _cut(block["thinking"])]
            signed = {"type": "signature_delta", "signature": block["signature"]}
            return {"type": "thinking", "thinking": "", "signature": ""}, [*thought, signed]
        case _:
            given = _cut(json.dumps(block["input"]))
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": part} for part in given]


def _cut(text: str) -> list[str]:
    return [text[at : at + 4] for at in range(0, len(text), 4)]


def rows_of(body: Any, answer: Any, seen: ConversationCache | None = None, **more: Any) -> list[Row]:
    given = {"request_headers": CLAUDE, **more}
    return list(
        project_exchange(exchange_samples.build_exchange(PATH, body, answer, **given), seen or ConversationCache()).rows
    )


def attributes(row: Row) -> dict[str, Any]:
    found: dict[str, Any] = canonical.loads(row["attributes"])
    return found


def test_a_streamed_response_gives_the_same_rows_as_a_plain_one() -> None:
    whole, events = rows_of(BODY, MESSAGE), rows_of(BODY, streamed(MESSAGE))

    assert events == whole
    assert [row["part_type"] for row in whole] == ["text", "reasoning", "text", "tool_call"]
    assert attributes(whole[-1])["usage"] == {
        "input_tokens": 3,
        "output_tokens": 40,
        "cache_read_tokens": 5,
        "cache_write_tokens": 7,
    }
    assert [row.get("status") for row in whole] == [None, None, None, '{"finish_reason":"tool_use"}']


@pytest.mark.hazard(55)
def test_an_unknown_kind_of_block_becomes_a_row() -> None:
    """The text has the same key in its deltas as in the block."""
    block = {"type": "compaction", "content": "All that was said."}
    begun, deltas = (
        {**block, "content": None},
        [{"type": "compaction_delta", "content": part} for part in ("All ", "that was said.")],
    )
    events = streamed({**MESSAGE, "content": []})
    told: list[dict[str, Any]] = [{"type": "content_block_start", "index": 0, "content_block": begun}]
    told += [{"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas]
    events[1:1] = [SseEvent(each["type"], each) for each in (*told, {"type": "content_block_stop", "index": 0})]
    rows = rows_of(BODY, events)

    assert rows == rows_of(BODY, {**MESSAGE, "content": [block]})
    assert [row["part_type"] for row in rows] == ["text", "compaction"]


def test_text_deltas_count_even_if_no_event_started_their_block() -> None:
    events = [event for event in streamed(MESSAGE) if event.type != "content_block_start"]
    said = [row["content_text"] for row in rows_of(BODY, events) if row["part_type"] in ("text", "reasoning")]
    assert said == [row["content_text"] for row in rows_of(BODY, MESSAGE) if row["part_type"] in ("text", "reasoning")]


def test_rows_of_a_response_hold_the_facts_that_settlement_needs() -> None:
    answer = rows_of(BODY, MESSAGE, response_headers={"request-id": "req_1"})[1:]

    assert [row["request_id"] for row in answer] == ["req_1"] * 3
    assert [attributes(row)["gateway"]["api_message_id"] for row in answer] == ["msg_1"] * 3
    assert [attributes(row)["gateway"]["block_index"] for row in answer] == [0, 1, 2]
    assert {attributes(row)["gateway"]["source"] for row in answer} == {"live"}
    assert {canonical.loads(row["raw_frame"])["message_id"] for row in answer} == {"msg_1"}


def test_a_stream_truncated_anywhere_keeps_what_arrived_and_reports_the_truncation() -> None:
    events, whole = streamed(MESSAGE), rows_of(BODY, MESSAGE)
    for length in range(len(events) - 2):
        rows = rows_of(BODY, events[:length], error="upstream_cut")

        assert rows[0] == whole[0]
        assert (rows[-1]["part_type"], canonical.loads(rows[-1]["status"])["error_code"]) == ("error", "upstream_cut")
        begun = sum(event.type == "content_block_start" for event in events[:length])
        said = [row for row in rows[1:-1] if row["part_type"] != "usage"]
        assert len(said) <= begun
        for row, finished in zip(said, whole[1:], strict=False):
            assert finished.get("content_text", "").startswith(row.get("content_text", ""))
        ended = sum(event.type == "content_block_stop" for event in events[:length])
        assert [row["provider_type"] for row in said] == ["assistant"] * ended + ["gateway"] * (len(said) - ended)
        if said:
            assert canonical.loads(said[-1]["status"])["finish_reason"] == "error"
        assert sum("usage" in attributes(row) for row in rows) == (length > 0)


def test_text_before_a_truncation_has_the_id_that_a_later_history_derives() -> None:
    """A client keeps the finished blocks and continues from there."""
    seen, recorded = ConversationCache(), list[str]()
    stops = [number for number, event in enumerate(streamed(MESSAGE)) if event.type == "content_block_stop"]
    cut = streamed(MESSAGE)[: stops[1] + 3]
    recorded += [row["part_id"] for row in rows_of(BODY, cut, seen, error="upstream_cut")]
    history = [*BODY["messages"], {"role": "assistant", "content": BLOCKS[:2]}]
    body = {**BODY, "messages": [*history, {"role": "user", "content": "Go on."}]}

    assert rows_of(body, MESSAGE, seen)[0]["content_text"] == "Go on."
    replayed = {row["part_id"] for row in rows_of(body, MESSAGE)}
    assert set(recorded[:3]) <= replayed


@pytest.mark.hazard(55)
@pytest.mark.hazard(67)
def test_each_failed_attempt_is_a_row_and_the_question_is_recorded_once() -> None:
    seen, rows = ConversationCache(), list[Row]()
    refused = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    for number in range(3):
        rows += rows_of(
            BODY, refused, seen, exchange_id=f"e{number}", status=529, **exchange_samples.minutes_later(number)
        )
    rows += rows_of(BODY, MESSAGE, seen, exchange_id="e3", **exchange_samples.minutes_later(3))

    assert Counter(row["part_type"] for row in rows) == {"text": 2, "error": 3, "reasoning": 1, "tool_call": 1}
    assert len({row["part_id"] for row in rows}) == len(rows)
    assert sum("usage" in attributes(row) for row in rows) == 1
    assert rows[1]["content_text"] == "Overloaded"


@pytest.mark.hazard(67)
def test_the_cost_of_a_response_without_output_is_counted_once_on_a_row_of_its_own() -> None:
    seen = ConversationCache()
    broken = rows_of(BODY, streamed(MESSAGE)[:1], seen, error="upstream_cut", exchange_id="e0")
    again = rows_of(BODY, streamed(MESSAGE), seen, exchange_id="e1")
    empty = rows_of(BODY, {**MESSAGE, "content": []}, exchange_id="e2")

    assert [row["part_type"] for row in broken] == ["text", "usage", "error"]
    assert ["usage" in attributes(row) for row in broken + again] == [False, True, False, False, False, True]
    cost = broken[1]
    assert (cost["provider_type"], cost["provider_subtype"], cost["model"]) == (
        "gateway",
        "no_output",
        MESSAGE["model"],
    )
    assert attributes(cost)["usage"]["input_tokens"] == 3
    assert rows_of(BODY, streamed(MESSAGE)[:1], error="upstream_cut", exchange_id="e0")[1]["part_id"] == cost["part_id"]
    assert [row["part_type"] for row in empty] == ["text", "usage"]


@pytest.mark.parametrize(
    ("answer", "more", "code", "said"),
    [
        ("", {"status": None, "error": "upstream_down"}, "upstream_down", "no response was received"),
        ("<html>Bad gateway</html>", {"status": 502}, "http_502", "<html>Bad gateway</html>"),
        ({"error": "no such model"}, {"status": 404}, "http_404", "no such model"),
        ("", {"status": 200, "error": "client_abort"}, "client_abort", "the response ended early"),
    ],
)
@pytest.mark.hazard(55)
def test_a_missing_response_leaves_an_error_row(answer: Any, more: dict[str, Any], code: str, said: str) -> None:
    *_, row = rows_of(BODY, answer, **more)

    assert (row["part_type"], row["role"], row["is_error"]) == ("error", "assistant", True)
    assert canonical.loads(row["status"]) == {"error_code": code, "error_message": said}


def test_an_error_within_a_stream_follows_the_output_before_it() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    rows = rows_of(BODY, [*streamed(MESSAGE)[:9], SseEvent("error", error)])

    assert rows[-2]["part_type"] == "reasoning"
    assert canonical.loads(rows[-1]["status"])["error_code"] == "overloaded_error"


def test_system_prompt_and_tools_are_on_the_first_response_made_with_them() -> None:
    seen = ConversationCache()
    first = rows_of(BODY, MESSAGE, seen)
    more = [*BODY["messages"], {"role": "assistant", "content": BLOCKS}]
    more.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "a b"}]})
    second = rows_of({**BODY, "messages": more}, {**MESSAGE, "id": "msg_2", "content": [BLOCKS[1]]}, seen)

    assert [(row.get("system_text"), row.get("tools")) for row in first] == [
        (None, None),
        ("Be kind.", '[{"name":"Bash"}]'),
        *[(None, None)] * 2,
    ]
    assert [row.get("system_text") for row in second] == [None, None]
    assert second[0]["tool_name"] == "Bash"


def test_a_subagent_has_a_thread_of_its_own() -> None:
    seen = ConversationCache()
    agent = {**CLAUDE, "x-claude-code-agent-id": "a1"}
    mine, theirs = rows_of(BODY, MESSAGE, seen), rows_of(BODY, MESSAGE, seen, request_headers=agent)

    assert {(row.get("agent_id"), row["is_sidechain"]) for row in mine} == {(None, False)}
    assert {(row["agent_id"], row["is_sidechain"]) for row in theirs} == {("a1", True)}
    assert {row["part_id"] for row in mine}.isdisjoint(row["part_id"] for row in theirs)


@pytest.mark.parametrize(
    ("metadata", "headers", "session"),
    [
        ({"user_id": '{"device_id":"d","session_id":"s-1"}'}, CLAUDE, "s-1"),
        ({"user_id": "user_ab12_account__session_1f2e3d4c-aaaa"}, {}, "1f2e3d4c-aaaa"),
        ({"user_id": "somebody"}, CLAUDE, "session-1"),
        (None, CLAUDE, "session-1"),
    ],
)
def test_the_session_id_comes_from_the_client(metadata: Any, headers: dict[str, str], session: str) -> None:
    exchange = exchange_samples.build_exchange(PATH, {**BODY, "metadata": metadata}, MESSAGE, request_headers=headers)

    assert project_exchange(exchange, ConversationCache()).session_id == session


def test_a_session_without_an_id_keeps_its_hash_as_it_grows() -> None:
    more = [*BODY["messages"], {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And?"}]
    first = project_exchange(exchange_samples.build_exchange(PATH, BODY, MESSAGE), ConversationCache())
    second = project_exchange(
        exchange_samples.build_exchange(PATH, {**BODY, "messages": more}, MESSAGE), ConversationCache()
    )

    assert (
        first.session_id
        == second.session_id
        != project_exchange(exchange_samples.build_exchange(PATH, {}, MESSAGE), ConversationCache()).session_id
    )
    assert {row.get("client_name") for row in first.rows} == {None}


def test_side_calls_are_recognized_and_produce_no_rows() -> None:
    found: Counter[str | None] = Counter()
    for scenario in ("claude-1.0.128/basic", "claude-2.0.76/basic", "claude-2.1.325/interactive"):
        for exchange in exchange_samples.read_sample(exchange_samples.SAMPLES / f"{scenario}.ndjson.xz"):
            projection = project_exchange(exchange, ConversationCache())
            found[projection.kind] += 1
            assert bool(projection.rows) == (projection.kind is CallKind.TURN)
    counted = project_exchange(
        exchange_samples.build_exchange(f"{PATH}/count_tokens", BODY, {"input_tokens": 9}), ConversationCache()
    )

    assert found == {CallKind.TURN: 21, CallKind.SIDE: 8, CallKind.WARMUP: 4, CallKind.TITLE: 3, None: 1}
    assert (counted.kind, counted.rows) == (CallKind.COUNT_TOKENS, ())


@pytest.mark.hazard(105)
def test_messages_that_are_repeated_after_a_summary_are_not_recorded_again() -> None:
    question, answer = {"role": "user", "content": "What is left?"}, {"role": "assistant", "content": "Nothing."}
    summary = {"role": "user", "content": "This session is being continued from a previous conversation. All is done."}
    more = {"role": "user", "content": "And now?"}
    said = {**MESSAGE, "content": [{"type": "text", "text": "Nothing."}]}
    seen = ConversationCache()
    rows_of({**BODY, "messages": [question]}, said, seen)
    compacted = {**BODY, "messages": [summary, answer, more]}

    rows = rows_of(compacted, {**said, "id": "msg_2"}, seen, exchange_id="e2")
    after_restart = rows_of(compacted, {**said, "id": "msg_2"}, exchange_id="e2")

    assert [row["content_text"] for row in rows] == [summary["content"], "And now?", "Nothing."]
    assert [row["provider_type"] for row in rows] == ["user", "user", "assistant"]
    assert [row["provider_type"] for row in after_restart] == ["gateway", "gateway", "user", "assistant"]
    assert [row["provider_subtype"] for row in after_restart[:2]] == ["history", "context"]


@pytest.mark.hazard(67)
def test_a_compaction_request_produces_a_row_of_its_tokens_and_its_summary_follows() -> None:
    seen = ConversationCache()
    made = [
        project_exchange(each, seen)
        for each in exchange_samples.read_sample(exchange_samples.SAMPLES / "claude-2.1.325/compact.ndjson.xz")
    ]

    assert [each.kind for each in made] == [CallKind.TURN, CallKind.COMPACTION, CallKind.TURN]
    (cost,) = made[1].rows
    assert (cost["part_type"], cost["provider_type"], cost["provider_subtype"]) == ("usage", "gateway", "compaction")
    assert "content_text" not in cost
    assert attributes(cost)["usage"]["output_tokens"] > 0
    assert cost["conversation_started_at"] == made[0].rows[0]["conversation_started_at"]
    assert cost["previous_message_id"] == canonical.dumps([made[0].rows[-1]["message_id"]])
    assert [row.get("is_compact_summary") for row in made[2].rows].count(True) == 1


@pytest.mark.hazard(55)
@pytest.mark.parametrize(
    ("method", "path", "why"),
    [
        ("HEAD", "/api/hello", "no_dialect:/api/hello"),
        ("POST", "/v1/messages/batches", "no_dialect:/v1/messages/batches"),
        ("POST", "/v9/new/thing/1234\x1b[2J", "no_dialect:/v9/new/thing"),
        ("POST", "/v1/\x1b[2J", "no_dialect:/v1/??2J"),
        ("POST", PATH, "unreadable_request:/v1/messages"),
    ],
)
def test_an_unknown_dialect_is_counted_by_its_path(method: str, path: str, why: str) -> None:
    body = None if path == PATH else BODY
    projection = project_exchange(
        exchange_samples.build_exchange(path, body, MESSAGE, method=method), ConversationCache()
    )

    assert (projection.dialect, projection.rows, projection.skipped) == (None, (), {why: 1})


def test_a_request_that_reached_no_upstream_is_not_counted_as_unreadable() -> None:
    exchange = exchange_samples.build_exchange(PATH, None, "", status=None, error="upstream_down")
    assert project_exchange(exchange, ConversationCache()).skipped == {"upstream_down:/v1/messages": 1}


def test_rows_hold_what_hooks_noted_about_their_session() -> None:
    exchange = exchange_samples.build_exchange(PATH, BODY, MESSAGE, request_headers=CLAUDE)
    rows = project_exchange(exchange, ConversationCache(), facts=lambda session: {"cwd": f"/home/dev/{session}"}).rows

    assert {row["cwd"] for row in rows} == {"/home/dev/session-1"}
