"""Requests add each part of a conversation once: growing, retried, compacted, forked, and after a restart."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypaware.gateway.exchange import DecodedExchange
from hypaware.gateway.projection.conversation import ConversationCache
from hypaware.gateway.projection.projector import Projection, project_exchange
from hypaware.model.datasets import Row
from tests.support import exchange_samples

SESSION = "11111111-1111-4111-8111-111111111111"
SUMMARY = "This session is being continued from a previous conversation that ran out of context. Summary"

Message = dict[str, Any]


class Client:
    """A client that repeats its whole history in every request, like Claude Code."""

    def __init__(self, session: str = SESSION) -> None:
        self.session = session
        self.history: list[Message] = []
        self.calls = 0
        self.reminder: str | None = None
        """Content that the client adds to the next request only."""

    def exchange(self, answer: list[Message] | None, **more: Any) -> DecodedExchange:
        """None if the response is an error."""
        self.calls += 1
        body = {
            "model": "model-1",
            "messages": self._history(),
            "metadata": {"user_id": json.dumps({"session_id": self.session})},
        }
        given: dict[str, Any] = {
            "exchange_id": f"{self.session}-{self.calls}",
            **exchange_samples.minutes_later(self.calls),
            **more,
        }
        if answer is None:
            said = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
            return exchange_samples.build_exchange("/v1/messages", body, said, status=529, **given)
        reason = "tool_use" if any(block["type"] == "tool_use" for block in answer) else "end_turn"
        message = {
            "id": f"msg_{self.session}_{self.calls}",
            "type": "message",
            "content": answer,
            "stop_reason": reason,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
        return exchange_samples.build_exchange("/v1/messages", body, message, **given)

    def _history(self) -> list[Message]:
        """The last block has a cache marker, an earlier single text is plain text, old reasoning is
        omitted, and a reminder accompanies the newest text."""
        shown: list[Message] = json.loads(json.dumps(self.history))
        for message in shown[:-4]:
            lasting = [block for block in message["content"] if block["type"] != "thinking"]
            message["content"] = lasting or message["content"]
        if self.reminder is not None:
            said = f"<system-reminder>\n{self.reminder}\n</system-reminder>"
            shown[-1]["content"].insert(0 if shown[-1]["content"][0]["type"] == "text" else 1, text(said))
            self.reminder = None
        for message in shown[:-1]:
            only = message["content"][0]
            if message["role"] == "user" and len(message["content"]) == 1 and only["type"] == "text":
                message["content"] = only["text"]
        shown[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
        return shown

    def say(self, *blocks: Message) -> None:
        self.history.append({"role": "user", "content": list(blocks)})

    def receive(self, answer: list[Message]) -> None:
        self.history.append({"role": "assistant", "content": answer})


def text(said: str) -> Message:
    return {"type": "text", "text": said}


def reasoning(said: str) -> Message:
    return {"type": "thinking", "thinking": said, "signature": "c2ln"}


def call(name: str) -> Message:
    return {"type": "tool_use", "id": name, "name": "Bash", "input": {"command": "ls"}}


def result(name: str, said: str = "done") -> Message:
    return {"type": "tool_result", "tool_use_id": name, "content": said}


class Recorded:
    """The stored rows; the key index drops duplicates."""

    def __init__(self) -> None:
        self.seen = ConversationCache()
        self.rows: dict[str, Row] = {}
        self.doubled = 0

    def record(self, exchange: DecodedExchange) -> Projection:
        projection = project_exchange(exchange, self.seen)
        for row in projection.rows:
            self.doubled += row["part_id"] in self.rows
            self.rows.setdefault(row["part_id"], row)
        return projection

    def texts(self) -> Counter[tuple[str, str]]:
        kept = (row for row in self.rows.values() if row["part_type"] != "error" and "attachment_type" not in row)
        return Counter((row["role"], _text_of(row)) for row in kept)

    def counted_responses(self) -> int:
        """Each response of the client above costs one token."""
        groups = (json.loads(row["attributes"]) for row in self.rows.values())
        return sum(group["usage"]["output_tokens"] for group in groups if "usage" in group)


def _text_of(row: Row) -> str:
    return str(row.get("tool_call_id") or row.get("content_text"))


def _expected_texts(role: str, blocks: list[Message]) -> list[tuple[str, str]]:
    names = ("id", "tool_use_id", "thinking", "text")
    return [(role, next(block[name] for name in names if name in block)) for block in blocks]


WORDS = st.sampled_from(["continue", "OK", "yes", "go on"])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["talk", "work", "fail", "compact", "compact and keep", "restart", "fail and restart"]),
        WORDS,
        WORDS,
        st.booleans(),
    ),
    min_size=1,
    max_size=14,
)


@pytest.mark.hazard(53)
@pytest.mark.hazard(67)
@pytest.mark.hazard(83)
@pytest.mark.hazard(86)
@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_any_course_of_a_conversation_records_each_part_once(steps: list[tuple[str, str, str, bool]]) -> None:
    """The guard against losing text repeated after a compaction, and against duplicates after a restart."""
    client, recorded = Client(), Recorded()
    truth: Counter[tuple[str, str]] = Counter()
    answers = 0
    for number, (step, asked, answered, reminded) in enumerate(steps):
        if step == "restart":
            recorded.seen.clear()
            continue
        if step.startswith("compact") and client.history:
            _compact(client, f"{SUMMARY} {number}", truth, keep=step.endswith("keep"))
        client.say(text(asked))
        truth.update(_expected_texts("user", [text(asked)]))
        if reminded:
            client.reminder = "Be brief."
        if step.startswith("fail"):
            recorded.record(client.exchange(None))
            recorded.record(client.exchange(None))
        if step == "fail and restart":
            recorded.seen.clear()
        answer = [text(answered)]
        if step == "work":
            tool = f"toolu_{number}"
            begun = [reasoning(answered), text(answered), call(tool)]
            recorded.record(client.exchange(begun))
            client.receive(begun)
            client.say(result(tool))
            answers += 1
            truth.update(_expected_texts("assistant", begun) + _expected_texts("user", [result(tool)]))
        recorded.record(client.exchange(answer))
        client.receive(answer)
        answers += 1
        truth.update(_expected_texts("assistant", answer))

    assert recorded.texts() == truth
    assert recorded.counted_responses() == answers


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["main", "agent", "restart"]), WORDS, WORDS), max_size=14))
def test_two_threads_with_the_same_session_id_do_not_interfere(steps: list[tuple[str, str, str]]) -> None:
    """Old clients send their subagents' calls with the session's id and nothing to distinguish them."""
    threads, recorded = {"main": Client(), "agent": Client()}, Recorded()
    truth: Counter[tuple[str, str]] = Counter()
    for number, (step, asked, answered) in enumerate(steps):
        if step == "restart":
            recorded.seen.clear()
            continue
        client = threads[step]
        client.calls = number
        client.say(text(asked if client.history else f"{step}: {asked}"))
        truth.update(_expected_texts("user", client.history[-1]["content"]))
        recorded.record(client.exchange([text(answered)]))
        client.receive([text(answered)])
        truth.update(_expected_texts("assistant", [text(answered)]))

    assert recorded.texts() == truth


def _compact(client: Client, summary: str, truth: Counter[tuple[str, str]], *, keep: bool) -> None:
    """The history becomes a summary; some clients keep its end, starting at a message with a tool call."""
    calls = [
        number
        for number, message in enumerate(client.history)
        if any(block["type"] == "tool_use" for block in message["content"])
    ]
    kept = client.history[calls[-1] :] if keep and calls else []
    client.history = [{"role": "user", "content": [text(summary)]}, *kept]
    truth.update(_expected_texts("user", [text(summary)]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), WORDS, WORDS), min_size=1, max_size=14))
def test_a_sliding_window_records_each_part_once(steps: list[tuple[int, str, str]]) -> None:
    """A client that sends only the end of a long conversation that is still in the cache."""
    client, recorded = Client(), Recorded()
    truth: Counter[tuple[str, str]] = Counter()
    for dropped, asked, answered in steps:
        del client.history[: dropped // 2 * 2]
        client.say(text(asked))
        answer = [text(answered)]
        recorded.record(client.exchange(answer))
        client.receive(answer)
        truth.update(_expected_texts("user", [text(asked)]) + _expected_texts("assistant", answer))

    assert recorded.texts() == truth
    assert recorded.doubled == 0


@pytest.mark.hazard(86)
def test_the_same_text_after_a_compaction_is_new() -> None:
    client, recorded = Client(), Recorded()
    for summary in (None, "A", "B"):
        if summary is not None:
            client.history = []
            client.say(text(f"{SUMMARY} {summary}"), text("continue"))
        else:
            client.say(text("continue"))
        recorded.record(client.exchange([text("OK")]))

    assert recorded.texts()["user", "continue"] == recorded.texts()["assistant", "OK"] == 3
    assert recorded.doubled == 0


@pytest.mark.hazard(83)
def test_after_a_restart_a_history_gets_its_old_ids() -> None:
    client, recorded = Client(), Recorded()
    for number in range(6):
        client.say(text("go on"))
        tool = [text("OK"), call(f"toolu_{number}")]
        recorded.record(client.exchange(tool))
        client.receive(tool)
        client.say(result(f"toolu_{number}", "done"))
        recorded.record(client.exchange([text("OK")]))
        client.receive([text("OK")])
    known = len(recorded.rows)
    client.say(text("go on"))
    recorded.seen.clear()
    replay = recorded.record(client.exchange(None))

    assert len(replay.rows) == known + 2
    assert len(recorded.rows) == known + 2, "the new question, and the error"


def test_a_tool_result_that_the_client_clears_later_keeps_its_id() -> None:
    client, recorded = Client(), Recorded()
    client.say(text("List."))
    recorded.record(client.exchange([call("toolu_1")]))
    client.receive([call("toolu_1")])
    client.say(result("toolu_1", "a long list"))
    recorded.record(client.exchange([text("Done.")]))
    client.receive([text("Done.")])
    client.history[2]["content"] = [result("toolu_1", "[Old tool result content cleared]")]
    client.say(text("Thanks."))
    recorded.seen.clear()
    recorded.record(client.exchange(None))

    assert recorded.texts()["user", "toolu_1"] == 1


@pytest.mark.hazard(66)
def test_the_repeated_history_of_a_fork_stays_with_the_original_session() -> None:
    client, recorded = Client(), Recorded()
    for asked in ("one", "two"):
        client.say(text(asked))
        recorded.record(client.exchange([text(f"said {asked}")]))
        client.receive([text(f"said {asked}")])
    fork = Client("22222222-2222-4222-8222-222222222222")
    fork.history = json.loads(json.dumps(client.history))
    fork.say(text("three"))
    rows = recorded.record(fork.exchange([text("said three")])).rows

    assert [row["content_text"] for row in rows] == ["three", "said three"]
    assert json.loads(rows[0]["previous_message_id"])[0] in {row["message_id"] for row in recorded.rows.values()}
    fork.receive([text("said three")])
    fork.say(text("four"))
    assert len(recorded.record(fork.exchange([text("said four")])).rows) == 2


def test_a_history_from_before_the_gateway_is_recorded_with_unknown_time() -> None:
    client = Client()
    client.say(text("one"))
    client.receive([text("said one")])
    client.say(text("two"))
    rows = project_exchange(client.exchange([text("said two")]), ConversationCache()).rows
    late = [json.loads(row["attributes"])["gateway"].get("time_source") for row in rows]

    assert [row["content_text"] for row in rows] == ["one", "said one", "two", "said two"]
    assert late == ["request", "request", None, None]
    assert [row["message_index"] for row in rows] == [0, 1, 2, 3]


def test_parts_that_could_not_be_stored_are_new_again() -> None:
    client, seen = Client(), ConversationCache()
    client.say(text("one"))
    project_exchange(client.exchange([text("said one")]), seen)
    client.receive([text("said one")])
    client.say(text("two"))
    lost = client.exchange([text("said two")])
    first = project_exchange(lost, seen)
    second = project_exchange(client.exchange(None), seen)
    seen.rollback(second.changes)
    seen.rollback(first.changes)

    assert [row["content_text"] for row in first.rows] == ["two", "said two"]
    assert project_exchange(lost, seen).rows == first.rows


def test_a_conversation_that_was_not_stored_is_forgotten() -> None:
    client, seen = Client(), ConversationCache()
    client.say(text("one"))
    exchange = client.exchange([text("said one")])
    first = project_exchange(exchange, seen)
    seen.rollback(first.changes)

    assert seen.part_count == 0
    assert project_exchange(exchange, seen).rows == first.rows


@pytest.mark.hazard(58)
def test_memory_is_bounded_and_idle_conversations_are_evicted_first() -> None:
    seen = ConversationCache(max_parts=20, max_conversations=4)
    for number in range(12):
        client = Client(f"session-{number}")
        client.say(*(text(f"{number} {each}") for each in range(6)))
        project_exchange(client.exchange([text("yes")]), seen)
        assert seen.part_count <= 20 + 7
