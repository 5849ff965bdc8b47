"""The outline: results below their calls, subagents within the call that started them, sums per turn."""

from __future__ import annotations

from itertools import islice
from typing import Any

from hypaware.index.conversation import RecordedConversation, Thread
from hypaware.index.messages import Message
from hypaware.render.outline import (
    AgentEnd,
    AgentStart,
    Call,
    CallEnd,
    Context,
    LateResult,
    LiveOutline,
    Said,
    Speaker,
    TurnEnd,
    outline,
)
from tests.support.conversations import (
    SESSION,
    TOKENS,
    answered,
    at,
    called,
    conversation,
    in_agent,
    message,
    part,
    said,
    typed,
)


def told(found: RecordedConversation) -> list[str]:
    """Return the events in short."""
    return [short(event) for event in outline(found)]


def short(event: Any) -> str:
    match event:
        case Speaker():
            return f"{'  ' * event.depth}{event.name}:"
        case Said():
            return f"{'  ' * event.depth}{event.kind.value} {event.part['text']}"
        case Context():
            return f"{'  ' * event.depth}context {len(event.texts)}"
        case Call():
            return f"{'  ' * event.depth}call {event.part['tool_call_id']} -> {event.result and event.result['text']}"
        case CallEnd():
            return f"{'  ' * event.call.depth}end {event.call.part['tool_call_id']}"
        case LateResult():
            return f"{'  ' * event.depth}result {event.part['text']}"
        case AgentStart():
            return f"{'  ' * event.depth}agent {event.thread.name}"
        case AgentEnd():
            return f"{'  ' * event.depth}agent ends"
        case TurnEnd():
            return f"turn {event.number}: {event.calls} calls, {event.errors} errors"
    raise AssertionError(event)


def test_results_come_with_their_calls_whatever_was_said_in_between() -> None:
    found = conversation(
        typed(0, "Go"),
        called(1, "a"),
        called(2, "b"),
        answered(3, "b", "of b"),
        said(4, "Next"),
        answered(5, "a", "of a"),
    )

    assert told(found) == [
        "you:",
        "text Go",
        "agent:",
        "call a -> of a",
        "end a",
        "call b -> of b",
        "end b",
        "text Next",
        "turn 1: 2 calls, 0 errors",
    ]


def test_a_call_without_a_result_is_shown_before_the_next_prompt() -> None:
    found = conversation(typed(0, "Go"), called(1, "a"), typed(2, "Stop"), answered(3, "a", "late"))

    assert told(found) == [
        "you:",
        "text Go",
        "agent:",
        "call a -> None",
        "end a",
        "turn 1: 1 calls, 0 errors",
        "you:",
        "text Stop",
        "result late",
        "turn 2: 0 calls, 0 errors",
    ]


def test_a_subagent_is_shown_between_its_call_and_the_result() -> None:
    agent = in_agent("a1", message(2, "user", part("text", "Count")), said(3, "Two"))
    found = conversation(
        typed(0, "Go"),
        called(1, "task", "Task"),
        *agent,
        answered(4, "task", "two"),
        threads=(Thread("a1", True, None, "task", at(2)),),
    )

    assert told(found) == [
        "you:",
        "text Go",
        "agent:",
        "call task -> two",
        "  agent a1",
        "  prompt:",
        "  text Count",
        "  agent:",
        "  text Two",
        "  agent ends",
        "end task",
        "turn 1: 1 calls, 0 errors",
    ]


def test_a_subagent_whose_call_is_not_known_is_shown_when_it_began() -> None:
    agent = in_agent("a1", message(2, "user", part("text", "Warm up")))
    found = conversation(
        typed(0, "Go"), said(1, "One"), *agent, said(3, "Two"), threads=(Thread("a1", True, None, "gone", at(2)),)
    )

    assert told(found) == [
        "you:",
        "text Go",
        "agent:",
        "text One",
        "  agent a1",
        "  prompt:",
        "  text Warm up",
        "  agent ends",
        "text Two",
        "turn 1: 0 calls, 0 errors",
    ]


def test_subagents_that_start_each_other_are_shown_once() -> None:
    first = in_agent("a1", message(1, "user", part("text", "One")), called(2, "x"))
    second = in_agent("a2", message(1, "user", part("text", "Two")), called(2, "y"))
    threads = (Thread("a1", True, "a2", "y", at(1)), Thread("a2", True, "a1", "x", at(1)))

    found = told(conversation(typed(0, "Go"), *first, *second, threads=threads))

    assert [line.strip() for line in found].count("agent a1") == 1
    assert [line.strip() for line in found].count("agent a2") == 1


def test_a_chain_of_a_thousand_subagents_ends() -> None:
    messages, threads = [typed(0, "Go"), called(1, "c0", "Task")], []
    for number in range(1000):
        name = f"a{number}"
        messages += in_agent(name, message(2, "user", part("text", "p")), called(3, f"c{number + 1}", "Task"))
        threads.append(Thread(name, True, None, f"c{number}", at(2)))

    found = told(conversation(*messages, threads=tuple(threads)))

    assert sum(line.strip().startswith("agent a") for line in found) == 1000
    assert max(len(line) - len(line.lstrip()) for line in found) < 60


def test_a_turn_adds_up_tokens_and_cost_with_those_of_its_subagents() -> None:
    agent = in_agent("a1", message(2, "user", part("text", "Count")), said(3, "Two", tokens=TOKENS, cost_usd=0.25))
    found = conversation(
        typed(0, "Go"),
        called(1, "task", "Task", tokens=TOKENS, cost_usd=0.5),
        *agent,
        answered(4, "task", "no", failed=True),
        typed(5, "Again"),
        said(6, "Done", tokens=TOKENS, cost_usd=1.0),
        threads=(Thread("a1", True, None, "task", at(2)),),
    )

    first, second = [event for event in outline(found) if isinstance(event, TurnEnd)]
    assert (first.tokens["output"], first.cost_usd, first.calls, first.errors) == (100, 0.75, 1, 1)
    assert first.seconds == 3
    assert (second.tokens["cache_read"], second.cost_usd) == (11000, 1.0)


def test_text_added_by_the_client_is_distinguished_from_typed_text() -> None:
    found = conversation(
        message(0, "developer", part("text", "You are an agent")),
        message(1, "user", part("text", "<environment_context>")),
        message(2, "user", part("text", "<system-reminder>"), part("text", "Go", is_typed=True)),
        message(3, "user", part("text", "This session continues"), is_compact_summary=True),
    )

    assert told(found) == [
        "context 3",
        "you:",
        "text Go",
        "summary This session continues",
        "turn 1: 0 calls, 0 errors",
    ]


def test_the_first_events_come_without_reading_the_rest() -> None:
    read: list[int] = []

    def endless() -> Any:
        second = 0
        while True:
            read.append(second)
            yield typed(second, "Go") if second % 10 == 0 else said(second, "On")
            second += 1

    found = conversation(typed(0, "Go"))
    list(islice(outline(RecordedConversation(found.session, found.threads, lambda thread: endless())), 20))

    assert len(read) < 50


def test_new_messages_are_shown_immediately_with_results_of_their_own() -> None:
    live = LiveOutline()
    arriving: list[Message] = [typed(0, "Go"), called(1, "a"), answered(2, "a"), said(3, "Done")]

    found = [[short(event) for event in live.add(SESSION, each)] for each in arriving]

    assert found == [["you:", "text Go"], ["agent:", "call a -> None"], ["result done"], ["text Done"]]


def test_a_call_that_arrives_after_its_result_is_marked() -> None:
    live = LiveOutline()
    arriving: list[Message] = [answered(0, "a"), called(1, "a"), called(2, "b"), answered(3, "b")]

    events = [event for each in arriving for event in live.add(SESSION, each)]

    assert [event.is_answered for event in events if isinstance(event, Call)] == [True, False]
