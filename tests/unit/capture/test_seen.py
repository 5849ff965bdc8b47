"""Requests add each part of a conversation once: growing, retried, compacted, forked, and after a restart."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypaware.capture.decoded import Decoded
from hypaware.capture.project.projection import Projection, project
from hypaware.capture.project.seen import Seen
from hypaware.model.datasets import Row
from tests import wire

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

    def exchange(self, answer: list[Message] | None, **more: Any) -> Decoded:
        """None if the response is an error."""
        self.calls += 1
        body = {
            "model": "model-1",
            "messages": self._shown(),
            "metadata": {"user_id": json.dumps({"session_id": self.session})},
        }
        given: dict[str, Any] = {"exchange_id": f"{self.session}-{self.calls}", **wire.later(self.calls), **more}
        if answer is None:
            said = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
            return wire.decoded("/v1/messages", body, said, status=529, **given)
        reason = "tool_use" if any(block["type"] == "tool_use" for block in answer) else "end_turn"
        message = {
            "id": f"msg_{self.session}_{self.calls}",
            "type": "message",
            "content": answer,
            "stop_reason": reason,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
        return wire.decoded("/v1/messages", body, message, **given)

    def _shown(self) -> list[Message]:
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

    def says(self, *blocks: Message) -> None:
        self.history.append({"role": "user", "content": list(blocks)})

    def takes(self, answer: list[Message]) -> None:
        self.history.append({"role": "assistant", "content": answer})


def text(said: str) -> Message:
    return {"type": "text", "text": said}


def thought(said: str) -> Message:
    return {"type": "thinking", "thinking": said, "signature": "c2ln"}


def call(name: str) -> Message:
    return {"type": "tool_use", "id": name, "name": "Bash", "input": {"command": "ls"}}


def result(name: str, said: str = "done") -> Message:
    return {"type": "tool_result", "tool_use_id": name, "content": said}


class Recorded:
    """The stored rows; the key index drops duplicates."""

    def __init__(self) -> None:
        self.seen = Seen()
        self.rows: dict[str, Row] = {}
        self.doubled = 0

    def take(self, exchange: Decoded) -> Projection:
        projection = project(exchange, self.seen)
        for row in projection.rows:
            self.doubled += row["part_id"] in self.rows
            self.rows.setdefault(row["part_id"], row)
        return projection

    def said(self) -> Counter[tuple[str, str]]:
        kept = (row for row in self.rows.values() if row["part_type"] != "error" and "attachment_type" not in row)
        return Counter((row["role"], _words(row)) for row in kept)

    def answers_counted(self) -> int:
        """Each response of the client above costs one token."""
        groups = (json.loads(row["attributes"]) for row in self.rows.values())
        return sum(group["usage"]["output_tokens"] for group in groups if "usage" in group)


def _words(row: Row) -> str:
    return str(row.get("tool_call_id") or row.get("content_text"))


def _truth(role: str, blocks: list[Message]) -> list[tuple[str, str]]:
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
        client.says(text(asked))
        truth.update(_truth("user", [text(asked)]))
        if reminded:
            client.reminder = "Be brief."
        if step.startswith("fail"):
            recorded.take(client.exchange(None))
            recorded.take(client.exchange(None))
        if step == "fail and restart":
            recorded.seen.clear()
        answer = [text(answered)]
        if step == "work":
            tool = f"toolu_{number}"
            begun = [thought(answered), text(answered), call(tool)]
            recorded.take(client.exchange(begun))
            client.takes(begun)
            client.says(result(tool))
            answers += 1
            truth.update(_truth("assistant", begun) + _truth("user", [result(tool)]))
        recorded.take(client.exchange(answer))
        client.takes(answer)
        answers += 1
        truth.update(_truth("assistant", answer))

    assert recorded.said() == truth
    assert recorded.answers_counted() == answers


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
        client.says(text(asked if client.history else f"{step}: {asked}"))
        truth.update(_truth("user", client.history[-1]["content"]))
        recorded.take(client.exchange([text(answered)]))
        client.takes([text(answered)])
        truth.update(_truth("assistant", [text(answered)]))

    assert recorded.said() == truth


def _compact(client: Client, summary: str, truth: Counter[tuple[str, str]], *, keep: bool) -> None:
    """The history becomes a summary; some clients keep its end, starting at a message with a tool call."""
    calls = [
        number
        for number, message in enumerate(client.history)
        if any(block["type"] == "tool_use" for block in message["content"])
    ]
    kept = client.history[calls[-1] :] if keep and calls else []
    client.history = [{"role": "user", "content": [text(summary)]}, *kept]
    truth.update(_truth("user", [text(summary)]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), WORDS, WORDS), min_size=1, max_size=14))
def test_a_sliding_window_records_each_part_once(steps: list[tuple[int, str, str]]) -> None:
    """A client that sends only the end of a long conversation that is still in the cache."""
    client, recorded = Client(), Recorded()
    truth: Counter[tuple[str, str]] = Counter()
    for dropped, asked, answered in steps:
        del client.history[: dropped // 2 * 2]
        client.says(text(asked))
        answer = [text(answered)]
        recorded.take(client.exchange(answer))
        client.takes(answer)
        truth.update(_truth("user", [text(asked)]) + _truth("assistant", answer))

    assert recorded.said() == truth
    assert recorded.doubled == 0


@pytest.mark.hazard(86)
def test_the_same_text_after_a_compaction_is_new() -> None:
    client, recorded = Client(), Recorded()
    for summary in (None, "A", "B"):
        if summary is not None:
            client.history = []
            client.says(text(f"{SUMMARY} {summary}"), text("continue"))
        else:
            client.says(text("continue"))
        recorded.take(client.exchange([text("OK")]))

    assert recorded.said()["user", "continue"] == recorded.said()["assistant", "OK"] == 3
    assert recorded.doubled == 0


@pytest.mark.hazard(83)
def test_after_a_restart_a_history_gets_its_old_ids() -> None:
    client, recorded = Client(), Recorded()
    for number in range(6):
        client.says(text("go on"))
        tool = [text("OK"), call(f"toolu_{number}")]
        recorded.take(client.exchange(tool))
        client.takes(tool)
        client.says(result(f"toolu_{number}", "done"))
        recorded.take(client.exchange([text("OK")]))
        client.takes([text("OK")])
    known = len(recorded.rows)
    client.says(text("go on"))
    recorded.seen.clear()
    replay = recorded.take(client.exchange(None))

    assert len(replay.rows) == known + 2
    assert len(recorded.rows) == known + 2, "the new question, and the error"


def test_a_tool_result_that_the_client_clears_later_keeps_its_id() -> None:
    client, recorded = Client(), Recorded()
    client.says(text("List."))
    recorded.take(client.exchange([call("toolu_1")]))
    client.takes([call("toolu_1")])
    client.says(result("toolu_1", "a long list"))
    recorded.take(client.exchange([text("Done.")]))
    client.takes([text("Done.")])
    client.history[2]["content"] = [result("toolu_1", "[Old tool result content cleared]")]
    client.says(text("Thanks."))
    recorded.seen.clear()
    recorded.take(client.exchange(None))

    assert recorded.said()["user", "toolu_1"] == 1


@pytest.mark.hazard(66)
def test_the_repeated_history_of_a_fork_stays_with_the_original_session() -> None:
    client, recorded = Client(), Recorded()
    for asked in ("one", "two"):
        client.says(text(asked))
        recorded.take(client.exchange([text(f"said {asked}")]))
        client.takes([text(f"said {asked}")])
    fork = Client("22222222-2222-4222-8222-222222222222")
    fork.history = json.loads(json.dumps(client.history))
    fork.says(text("three"))
    rows = recorded.take(fork.exchange([text("said three")])).rows

    assert [row["content_text"] for row in rows] == ["three", "said three"]
    assert json.loads(rows[0]["previous_message_id"])[0] in {row["message_id"] for row in recorded.rows.values()}
    fork.takes([text("said three")])
    fork.says(text("four"))
    assert len(recorded.take(fork.exchange([text("said four")])).rows) == 2


def test_a_history_from_before_the_gateway_is_recorded_with_unknown_time() -> None:
    client = Client()
    client.says(text("one"))
    client.takes([text("said one")])
    client.says(text("two"))
    rows = project(client.exchange([text("said two")]), Seen()).rows
    late = [json.loads(row["attributes"])["gateway"].get("time_source") for row in rows]

    assert [row["content_text"] for row in rows] == ["one", "said one", "two", "said two"]
    assert late == ["request", "request", None, None]
    assert [row["message_index"] for row in rows] == [0, 1, 2, 3]


def test_parts_that_could_not_be_stored_are_new_again() -> None:
    client, seen = Client(), Seen()
    client.says(text("one"))
    project(client.exchange([text("said one")]), seen)
    client.takes([text("said one")])
    client.says(text("two"))
    lost = client.exchange([text("said two")])
    first = project(lost, seen)
    second = project(client.exchange(None), seen)
    seen.rollback(second.changes)
    seen.rollback(first.changes)

    assert [row["content_text"] for row in first.rows] == ["two", "said two"]
    assert project(lost, seen).rows == first.rows


def test_a_conversation_that_was_not_stored_is_forgotten() -> None:
    client, seen = Client(), Seen()
    client.says(text("one"))
    exchange = client.exchange([text("said one")])
    first = project(exchange, seen)
    seen.rollback(first.changes)

    assert seen.part_count == 0
    assert project(exchange, seen).rows == first.rows


@pytest.mark.hazard(58)
def test_memory_is_bounded_and_idle_conversations_are_evicted_first() -> None:
    seen = Seen(max_parts=20, max_conversations=4)
    for number in range(12):
        client = Client(f"session-{number}")
        client.says(*(text(f"{number} {each}") for each in range(6)))
        project(client.exchange([text("yes")]), seen)
        assert seen.part_count <= 20 + 7
