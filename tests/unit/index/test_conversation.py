"""Conversations: the messages of real sessions in their order, with the text of the lake, and their threads."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from hypaware.home import Home
from hypaware.index.conversation import RecordedConversation, read_conversation
from hypaware.index.sessions import find_session
from hypaware.index.store import Index, open_index
from hypaware.model.datasets import SEQ
from tests.support import claude_transcripts, codex_rollouts
from tests.support.index_home import index_of, prompt, response
from tests.support.light_home import append, flush, import_history
from tests.support.light_lake import read_lake
from tests.support.live_rows import Part
from tests.support.rows import row

DATASET = "ai_gateway_messages"
COMPACTED = "4af1ebce-fff1-4c49-8242-563ea1edf2ed"
RESUMED = "406dc910-3136-4696-a363-fc74f0a8ab6c"
CLAUDE_AGENTS = "676356ff-6a05-4e42-a0d9-86079f25bbec"
CLAUDE_2_0 = "ce8bc667-8419-4595-a37a-3c93fa83db07"
CLAUDE_1_0 = "0dc91b82-3238-4907-98f3-ae0d1d845b97"
CODEX_AGENT = "01a1de11-3126-7253-9e0a-aaf70c5123a5"
CODEX_RESUMED = "01a1de10-ddfd-76e2-a1e9-be6c3bd3f3d8"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Return a home with the samples of both clients."""
    root = tmp_path_factory.mktemp("samples")
    claude_transcripts.unpacked(root / "claude" / "projects")
    rollouts = root / "codex" / "sessions"
    rollouts.mkdir(parents=True)
    for name in codex_rollouts.sample_names():
        (rollouts / name).write_bytes(codex_rollouts.sample(name))
        os.utime(rollouts / name, (1_800_000_000, 1_800_000_000))
    found = Home(root / "home")
    environment = {"HOME": str(root), "CLAUDE_CONFIG_DIR": str(root / "claude"), "CODEX_HOME": str(root / "codex")}
    for provider in ("claude", "codex"):
        import_history(found, environment, provider)
    return found


@pytest.fixture(scope="module")
def index(home: Home) -> Iterator[Index]:
    with open_index(home) as opened:
        yield opened


@pytest.fixture(scope="module")
def stored(home: Home) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the lake by session, in the order in which they were said."""
    found = defaultdict(list)
    for each in read_lake(home, DATASET):
        found[each["session_id"]].append(each)
    for rows in found.values():
        rows.sort(key=lambda each: (each["message_created_at"], each["message_index"], each[SEQ], each["part_index"]))
    return found


def read(index: Index, session: str) -> RecordedConversation:
    return read_conversation(index, find_session(index, session))


def texts(found: RecordedConversation) -> list[str]:
    return [part["text"] or part["tool_name"] for message in found for part in message["parts"]]


def test_every_session_has_the_parts_of_the_lake_in_order(
    index: Index, stored: dict[str, list[dict[str, Any]]]
) -> None:
    assert len(stored) > 20
    for session, rows in stored.items():
        found = list(read(index, session))
        parts = [(message, part) for message in found for part in message["parts"]]
        assert [part["part_id"] for _, part in parts] == [each["part_id"] for each in rows]
        for (message, part), each in zip(parts, rows, strict=True):
            created = each["message_created_at"].replace(tzinfo=UTC).isoformat().replace("+00:00", "Z")
            assert (message["message_id"], message["at"], message["role"], message["index"]) == (
                each["message_id"],
                created,
                each["role"],
                each["message_index"],
            )
            assert message["parent"] == next(iter(json.loads(each["previous_message_id"])), None)
            assert part == {
                "part_id": each["part_id"],
                "type": each["part_type"],
                "text": each["content_text"],
                "tool_name": each["tool_name"],
                "tool_call_id": each["tool_call_id"],
                "tool_args": json.loads(each["tool_args"]) if each["tool_args"] else None,
                "tool_result_for": each["tool_result_for"],
                "is_error": bool(each["is_error"]),
                "is_typed": part["is_typed"],
            }


def test_tokens_and_costs_of_messages_and_threads_add_up_to_those_of_the_session(
    index: Index, stored: dict[str, list[dict[str, Any]]]
) -> None:
    for session in stored:
        found = read(index, session)
        for name, total in found.session["tokens"].items():
            assert sum(message["tokens"][name] for message in found if message["tokens"]) == total
            assert sum(thread.tokens[name] for thread in found.threads) == total
        costs = [message["cost_usd"] for message in found if message["cost_usd"] is not None]
        assert sum(costs) == pytest.approx(found.session["cost_usd"] or 0, abs=1e-4)
        assert sum(thread.cost_usd or 0 for thread in found.threads) == pytest.approx(sum(costs), abs=1e-4)
        assert sum(message["is_turn"] for message in found) == found.session["turns"]


def test_the_threads_read_together_are_the_conversation(index: Index, stored: dict[str, list[dict[str, Any]]]) -> None:
    for session in stored:
        found = read(index, session)
        by_thread = [message for thread in found.threads for message in found.read(thread)]
        assert sorted(each["message_id"] for each in by_thread) == sorted(each["message_id"] for each in found)


@pytest.mark.parametrize(
    ("session", "tool", "expected"),
    [
        (CLAUDE_AGENTS, "Agent", ["a442ed57fc76e8f89", "a2e26e2a0945d8861"]),
        (CLAUDE_2_0, "Task", ["ac2b69f"]),
        (CLAUDE_1_0, "Task", ["79ae638e-6ae1-4cf0-8a9d-8516a40fbf7b"]),
        (CODEX_AGENT, "spawn_agent", ["01a1de11-31ea-75f0-8e5b-572c3102c979"]),
    ],
)
def test_a_subagent_belongs_to_the_call_that_started_it(
    index: Index, session: str, tool: str, expected: list[str]
) -> None:
    found = read(index, session)
    calls = [
        part["tool_call_id"]
        for message in found
        for part in message["parts"]
        if (part["type"], part["tool_name"]) == ("tool_call", tool)
    ]

    main, *agents = found.threads
    started = {each.started_by: each for each in agents if each.started_by}
    assert [started[call].name for call in calls] == expected
    assert {each.parent for each in started.values()} == {main.name}
    assert not main.is_sidechain
    for each in agents:
        assert {message["thread"] for message in found.read(each)} == {each.name}


def test_agents_that_no_call_started_are_threads_without_one(index: Index) -> None:
    found = read(index, CLAUDE_2_0)

    idle = [each for each in found.threads if each.is_sidechain and each.started_by is None]
    assert [texts_of[0]["text"] for each in idle[:2] for texts_of in [next(iter(found.read(each)))["parts"]]] == [
        "Warmup"
    ] * 2


def test_a_compaction_is_shown_where_it_happened(index: Index) -> None:
    found = read(index, COMPACTED)

    assert [each["is_compact_summary"] for each in found].index(True) == 4
    assert texts(found)[0] == "Remember: the colour is blue."
    assert texts(found)[-1] == "It was blue, according to the summary."


@pytest.mark.parametrize(("session", "prompts"), [(RESUMED, 3), (CODEX_RESUMED, 3)])
def test_a_resumed_session_is_one_conversation(index: Index, session: str, prompts: int) -> None:
    found = [message for message in read(index, session) if message["is_turn"]]

    assert [each["parts"][0]["text"] for each in found][:2] == [
        "Remember: the colour is blue.",
        "Which colour did I say?",
    ]
    assert len(found) == prompts


def test_a_part_that_was_recorded_live_and_read_from_the_transcript_is_shown_once(tmp_path: Path) -> None:
    said = [Part(1), Part(2, "answer"), Part(3), Part(4, "answer")]
    home = Home(tmp_path / "home")
    append(home, [each.live() for each in said])
    flush(home)
    append(home, [each.native() for each in said[:2]])

    with open_index(home) as opened:
        found = read(opened, "session-1")
        assert texts(found) == ["text of 1", "text of 2", "text of 3", "text of 4"]


def test_parts_of_the_spool_follow_those_of_the_lake(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    append(home, [row(1), row(2, part_index=0), row(2, part_index=1, content_text="second part")])
    flush(home)
    append(home, [row(3), row(4)], seal=False)

    with open_index(home) as opened:
        found = list(read(opened, "session-1"))

    assert [each["message_id"] for each in found] == [f"message-{number}" for number in (1, 2, 3, 4)]
    assert [part["text"] for part in found[1]["parts"]] == ["text of message 2", "second part"]


def test_messages_of_one_moment_keep_the_order_of_their_transcript(tmp_path: Path) -> None:
    same = "2026-11-15T08:00:00Z"
    rows = [row(number, message_created_at=same, message_index=9 - number) for number in range(5)]

    with index_of(tmp_path / "home", *rows) as opened:
        assert [each["index"] for each in read(opened, "session-1")] == [5, 6, 7, 8, 9]


def test_rows_that_are_not_part_of_the_conversation_are_left_out(tmp_path: Path) -> None:
    rows = [row(1), row(2, provider_type="gateway", provider_subtype="context", content_text="title"), row(3)]

    with index_of(tmp_path / "home", *rows) as opened:
        assert texts(read(opened, "session-1")) == ["text of message 1", "text of message 3"]


def test_a_subagent_that_names_itself_as_its_parent_belongs_to_the_main_thread(tmp_path: Path) -> None:
    own_call = {"claude": {"spawned_by_tool_use_id": "call-1"}, "client": {}}
    at = "2026-11-15T08:00:0{}Z"
    rows = [
        prompt(1, "Go", at=at.format(1)),
        {**prompt(2, "Count", at=at.format(2), agent_id="a1", is_sidechain=True), "attributes": own_call},
        response(
            3,
            at=at.format(3),
            agent_id="a1",
            is_sidechain=True,
            part_type="tool_call",
            tool_name="Task",
            tool_call_id="call-1",
            tool_args={"prompt": "Count"},
        ),
    ]

    with index_of(tmp_path / "home", *rows) as opened:
        main, agent = read(opened, "session-1").threads

    assert (main.name, agent.name, agent.parent, agent.started_by) == (None, "a1", None, "call-1")


def test_a_subagent_of_a_subagent_has_it_as_its_parent(tmp_path: Path) -> None:
    def task(number: int, second: int, thread: str | None, call: str, text: str) -> dict[str, Any]:
        return response(
            number,
            at=f"2026-11-15T08:00:{second:02}Z",
            agent_id=thread,
            is_sidechain=thread is not None,
            part_type="tool_call",
            tool_name="Task",
            tool_call_id=call,
            tool_args={"prompt": text},
        )

    def begins(number: int, second: int, thread: str, text: str) -> dict[str, Any]:
        at = f"2026-11-15T08:00:{second:02}Z"
        return prompt(number, text, at=at, agent_id=thread, is_sidechain=True)

    rows = [
        task(1, 1, None, "c1", "outer"),
        begins(2, 2, "a1", "outer"),
        task(3, 3, "a1", "c2", "inner"),
        begins(4, 4, "a2", "inner"),
    ]

    with index_of(tmp_path / "home", *rows) as opened:
        _, outer, inner = read(opened, "session-1").threads

    assert (outer.name, outer.parent, outer.started_by) == ("a1", None, "c1")
    assert (inner.name, inner.parent, inner.started_by) == ("a2", "a1", "c2")


def test_a_conversation_without_text_has_its_shape(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    append(home, [row(1), row(2)])
    home.config.write_text("version = 1\n[index]\ntext = false\n")

    with open_index(home) as opened:
        found = list(read(opened, "session-1"))

    assert [part["text"] for message in found for part in message["parts"]] == [None, None]
