"""Conversations of real clients, live and imported, through a lake: each part becomes one row."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hypaware.gateway.projection.conversation import ConversationCache
from hypaware.home import Home
from hypaware.lake.flush import FlushReport
from hypaware.model.datasets import Row
from hypaware.model.schemas import GATEWAY_TYPE
from hypaware.spool.writer import Spool
from hypaware.state.home_opener import read_identity
from tests.support import claude_transcripts
from tests.support.claude_transcripts import says, user
from tests.support.compaction_cases import SmallFiles
from tests.support.light_home import DATASET, NO_TIMER, flush
from tests.support.light_lake import read_lake
from tests.unit.gateway import test_projection_anthropic as anthropic
from tests.unit.gateway.test_live_native_parity import SCENARIOS, Joined, live_rows, transcript_rows


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Row], list[Row], list[Row]]:
    """Live rows, imported rows of the same sessions, and the live rows that no transcript has."""
    by_session = transcript_rows(tmp_path_factory.mktemp("transcripts"))
    live, imported, alone = [], [], []
    for scenario in SCENARIOS:
        told = list(live_rows(scenario))
        sessions = sorted({row["session_id"] for row in told})
        written = [row for session in sessions for row in by_session[session]]
        live += told
        imported += written
        alone += Joined(written, told).live_only
    return live, imported, alone


def store(home: Home, rows: list[Row]) -> FlushReport:
    with Spool(home, NO_TIMER) as spool:
        spool.append(DATASET, [{**row, "gateway_id": read_identity(home).gateway_id} for row in rows])
    return flush(home)


@pytest.mark.hazard(68)
@pytest.mark.hazard(105)
@pytest.mark.parametrize("first", ["live", "imported"])
def test_each_part_of_a_real_conversation_is_one_row_in_either_order(
    home: Home, recorded: tuple[list[Row], list[Row], list[Row]], first: str
) -> None:
    live, imported, alone = recorded
    store(home, live if first == "live" else imported)
    second = store(home, imported if first == "live" else live)
    assert second.rows.rejected == 0
    assert SmallFiles(home).compact(force=True).errors == []
    found = Counter(row["part_id"] for row in read_lake(home, DATASET))
    assert max(found.values()) == 1
    native = {row["part_id"] for row in imported}
    assert native <= found.keys()
    assert len(found) - len(native) == len({row["part_id"] for row in alone} - native)
    rows = read_lake(home, DATASET)
    assert {row["part_id"] for row in rows if row["provider_type"] != GATEWAY_TYPE} == native
    messages = {row["message_id"] for row in rows}
    links = {link for row in rows for link in json.loads(row["previous_message_id"])}
    assert [link for link in links - messages if len(link) == 16] == []
    assert store(home, [*live, *imported]).rows.written == 0


@pytest.mark.hazard(67)
@pytest.mark.parametrize("order", ["live first", "transcript first", "one flush"])
@pytest.mark.parametrize("finished", [0, 1, 2])
def test_the_tokens_of_a_cut_response_count_once_in_every_order(
    home: Home, tmp_path: Path, order: str, finished: int
) -> None:
    """The client keeps the blocks that ended, with the usage of the first event, and asks again."""
    seen, events = ConversationCache(), anthropic.streamed(anthropic.MESSAGE)
    session: dict[str, Any] = {"sessionId": "session-1"}
    starts = [number for number, event in enumerate(events) if event.type == "content_block_start"]
    cut = events[: starts[finished] + 3]
    again = {**anthropic.MESSAGE, "id": "msg_2", "content": [{"type": "text", "text": "Here they are."}]}
    live = anthropic.rows_of(anthropic.BODY, cut, seen, error="upstream_cut", exchange_id="e0")
    live += anthropic.rows_of(anthropic.BODY, again, seen, exchange_id="e1")
    lines = [user("u", "List the files.", **session)]
    for number, block in enumerate(anthropic.BLOCKS[:finished]):
        lines.append(says(f"a{number}", block, str(lines[-1]["uuid"]), api="msg_1", output=1, **session))
    lines.append(says("b", "Here they are.", "u", api="msg_2", output=40, stop="end_turn", **session))
    imported = claude_transcripts.rows(tmp_path, *lines, quiet=True)
    for rows in {"live first": [live, imported], "transcript first": [imported, live]}.get(order, [live + imported]):
        store(home, rows)
    assert SmallFiles(home).compact(force=True).errors == []
    usages = [usage for row in read_lake(home, DATASET) if (usage := json.loads(row["attributes"]).get("usage"))]
    assert sorted(usage["output_tokens"] for usage in usages) == [1, 40]


@pytest.mark.hazard(67)
@pytest.mark.parametrize("order", ["live first", "transcript first", "one flush"])
@pytest.mark.parametrize("finished", [0, 1])
@pytest.mark.parametrize("kept", ["I l", "I look"])
def test_the_tokens_of_an_interrupted_response_count_once_although_its_last_block_differs(
    home: Home, tmp_path: Path, order: str, finished: int, kept: str
) -> None:
    """The gateway has more or less of the block than the client, which keeps what it has shown."""
    blocks = [*anthropic.BLOCKS[:finished], {"type": "text", "text": "I look at everything."}]
    events = anthropic.streamed({**anthropic.MESSAGE, "content": blocks})
    starts = [number for number, event in enumerate(events) if event.type == "content_block_start"]
    # Two deltas of four characters.
    live = anthropic.rows_of(anthropic.BODY, events[: starts[finished] + 3], error="client_gone")
    session: dict[str, Any] = {"sessionId": "session-1"}
    lines = [user("u", "List the files.", **session)]
    for number, block in enumerate([*blocks[:-1], kept]):
        lines.append(says(f"a{number}", block, str(lines[-1]["uuid"]), api="msg_1", output=1, **session))
    lines.append(user("stop", "[Request interrupted by user]", str(lines[-1]["uuid"]), 2, **session))
    imported = claude_transcripts.rows(tmp_path, *lines, quiet=True)
    for rows in {"live first": [live, imported], "transcript first": [imported, live]}.get(order, [live + imported]):
        store(home, rows)
    assert SmallFiles(home).compact(force=True).errors == []
    stored = read_lake(home, DATASET)
    usages = [usage for row in stored if (usage := json.loads(row["attributes"]).get("usage"))]
    assert [usage["output_tokens"] for usage in usages] == [1]
    counted = [row["content_text"] for row in stored if row["provider_type"] != GATEWAY_TYPE]
    assert Counter(counted) == Counter(row["content_text"] for row in imported)


@pytest.mark.hazard(66)
@pytest.mark.parametrize("original", ["live", "imported"])
@pytest.mark.parametrize("transcripts", ["both", "of the fork", "none"])
def test_the_history_of_a_fork_counts_once_even_if_it_is_committed_before_its_transcript(
    home: Home, tmp_path: Path, original: str, transcripts: str
) -> None:
    """The daemon was restarted between the sessions, so the gateway does not recognize the fork."""
    said = {**anthropic.MESSAGE, "content": [{"type": "text", "text": "Two."}]}
    answer = {"role": "assistant", "content": said["content"]}
    body = {
        **anthropic.BODY,
        "messages": [*anthropic.BODY["messages"], answer, {"role": "user", "content": "And now?"}],
    }
    more = {**said, "id": "msg_2", "content": [{"type": "text", "text": "Three."}]}
    headers = {**anthropic.CLAUDE, "x-claude-code-session-id": "session-2"}
    first, fork = {"sessionId": "session-1"}, {"sessionId": "session-2"}
    lines = [
        user("u", "List the files.", second=0),
        says("a", "Two.", "u", 1, api="msg_1", output=40, stop="end_turn"),
        user("v", "And now?", "a", 60),
        says("b", "Three.", "v", 61, api="msg_2", output=40, stop="end_turn"),
    ]
    of_first = claude_transcripts.rows(tmp_path, *(line | first for line in lines[:2]), quiet=True)
    of_fork = claude_transcripts.rows(tmp_path, *(line | fork for line in lines), quiet=True)
    store(home, of_first if original == "imported" else anthropic.rows_of(anthropic.BODY, said))
    store(home, anthropic.rows_of(body, more, request_headers=headers, exchange_id="e2"))
    if transcripts != "none":
        # An import reads the original first.
        store(home, of_first if transcripts == "both" or original == "live" else [])
        store(home, of_fork)
    assert SmallFiles(home).compact(force=True).errors == []
    counted = [row for row in read_lake(home, DATASET) if row["provider_type"] != GATEWAY_TYPE]
    sessions = {"List the files.": "session-1", "Two.": "session-1", "And now?": "session-2", "Three.": "session-2"}
    assert sorted((row["content_text"], row["session_id"]) for row in counted) == sorted(sessions.items())
    usages = [json.loads(row["attributes"]).get("usage") for row in counted]
    assert sum(usage["output_tokens"] for usage in usages if usage) == 80


@pytest.mark.hazard(66)
def test_a_history_from_before_the_gateway_counts_once_its_transcript_is_imported(home: Home, tmp_path: Path) -> None:
    answer = {"role": "assistant", "content": [{"type": "text", "text": "Two."}]}
    body = {
        **anthropic.BODY,
        "messages": [*anthropic.BODY["messages"], answer, {"role": "user", "content": "And now?"}],
    }
    store(home, anthropic.rows_of(body, {**anthropic.MESSAGE, "id": "msg_2"}))
    lines = [user("u", "List the files."), says("a", "Two.", "u", 1, api="msg_1", output=40, stop="end_turn")]
    store(home, claude_transcripts.rows(tmp_path, *(line | {"sessionId": "session-1"} for line in lines), quiet=True))
    assert SmallFiles(home).compact(force=True).errors == []
    counted = [row for row in read_lake(home, DATASET) if row["provider_type"] != GATEWAY_TYPE]
    assert {"u#0", "a#0"} < {row["part_id"] for row in counted}
    assert len(counted) == 6
