"""Transcripts of real clients: column by column what the original made of them, and what a naive oracle counts."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from hypaware.model.datasets import Row
from hypaware.model.messages import AI_GATEWAY_MESSAGES
from tests.claude_transcripts import PROVIDER, SAMPLES, sample_names, unpacked
from tests.history import comparable, rows_of, usage
from tests.oracle import claude_totals

# All but the one that names the installation.
COLUMNS = [column.name for column in AI_GATEWAY_MESSAGES.columns if column.name != "gateway_id"]
ERROR_LINE = "717cb21f-1a4f-4d36-9cc7-e5efc2819460#0"


class Decision(NamedTuple):
    """Where ours differ from the original's rows: (theirs, ours) are two rows for which the column may differ."""

    column: str
    why: str
    allows: Callable[[Row, Row], bool]


def _finish_reason_only(theirs: Row, ours: Row) -> bool:
    return theirs["status"] is None and ours["role"] == "assistant" and set(ours["status"]) == {"finish_reason"}


def _other_than_its_parent(theirs: Row, ours: Row) -> bool:
    """The original's is not the line that its client names, nor one before it."""
    return bool(theirs["previous_message_id"] != ours["previous_message_id"]) and (
        ours["previous_message_id"] in ([ours.get("parent_uuid")], []) or ours.get("is_compact_summary") is True
    )


def _is_error_line(theirs: Row, ours: Row) -> bool:
    return str(ours["part_id"]) == ERROR_LINE


def _starts_a_shape(theirs: Row, ours: Row) -> bool:
    return theirs["system_text"] is None and theirs["tools"] is None and ours["role"] == "assistant"


DECISIONS = [
    Decision("git_branch", "lines have it and there is no record", lambda theirs, ours: theirs["git_branch"] is None),
    Decision("system_text", "the request log has it: on the first response made with it", _starts_a_shape),
    Decision("tools", "the request log has them: on the first response made with them", _starts_a_shape),
    Decision("status", "why the model stopped stands on the last part of its response", _finish_reason_only),
    Decision("previous_message_id", "along the client's own links, not by time", _other_than_its_parent),
    Decision("part_type", "what the client says about a failed request is an error", _is_error_line),
    Decision("provider_subtype", "what the client says about a failed request is an error", _is_error_line),
    Decision("is_error", "what the client says about a failed request is an error", _is_error_line),
    Decision("status", "what the client says about a failed request is an error", _is_error_line),
    Decision("attributes", "what the client says about a failed request cost nothing", _is_error_line),
]
# The original's faults that FORMATS names: the request log is no message, and its rows shifted the others' numbers.
REQUEST_LOG = "api-request"


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return unpacked(tmp_path_factory.mktemp("samples"))


@pytest.fixture(scope="module")
def ours(paths: list[Path]) -> dict[str, Row]:
    """As the lake keeps them: of two rows with one id the first stays."""
    found: dict[str, Row] = {}
    for path in paths:
        for row in rows_of(PROVIDER, path)[0]:
            found.setdefault(row["part_id"], row)
    return found


@pytest.fixture(scope="module")
def theirs() -> dict[str, Row]:
    text = lzma.decompress((SAMPLES / "original-rows.jsonl.xz").read_bytes())
    rows = [json.loads(line) for line in text.splitlines()]
    return {row["part_id"]: row for row in rows if not row["provider_type"].startswith(REQUEST_LOG)}


def differences(column: str, theirs: dict[str, Row], ours: dict[str, Row]) -> list[str]:
    return [key for key in theirs if comparable(theirs[key], column) != comparable(ours[key], column)]


def test_there_are_samples_of_three_versions_and_of_every_scenario() -> None:
    assert Counter(name.split("/")[0] for name in sample_names()) == {"1.0.128": 1, "2.0.76": 6, "2.1.325": 16}


def test_the_same_messages_make_rows(theirs: dict[str, Row], ours: dict[str, Row]) -> None:
    assert theirs.keys() == ours.keys()


@pytest.mark.parametrize("column", COLUMNS)
def test_a_column_is_as_the_original_has_it(column: str, theirs: dict[str, Row], ours: dict[str, Row]) -> None:
    allowed = [decision.allows for decision in DECISIONS if decision.column == column]
    unexplained = [
        (key, theirs[key][column], ours[key].get(column))
        for key in differences(column, theirs, ours)
        if not any(allows(theirs[key], ours[key]) for allows in allowed)
    ]
    assert unexplained == []


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda decision: f"{decision.column}: {decision.why}")
def test_a_decision_is_still_needed(decision: Decision, theirs: dict[str, Row], ours: dict[str, Row]) -> None:
    assert any(decision.allows(theirs[key], ours[key]) for key in differences(decision.column, theirs, ours))


def test_the_original_made_rows_of_the_request_log_and_ours_do_not(ours: dict[str, Row]) -> None:
    text = lzma.decompress((SAMPLES / "original-rows.jsonl.xz").read_bytes())
    of_the_log = [row for row in map(json.loads, text.splitlines()) if row["provider_type"].startswith(REQUEST_LOG)]
    assert len(of_the_log) == 92
    assert not any(str(row["provider_type"]).startswith(REQUEST_LOG) for row in ours.values())


@pytest.mark.hazard(51)
def test_tokens_add_up_to_what_a_naive_reader_counts(paths: list[Path], ours: dict[str, Row]) -> None:
    expected = claude_totals(paths)
    assert expected.tokens["output_tokens"] > 0
    assert usage(ours.values()) == expected.tokens


@pytest.mark.hazard(66)
def test_parts_tools_and_sessions_are_those_that_a_naive_reader_finds(paths: list[Path], ours: dict[str, Row]) -> None:
    expected = claude_totals(paths)
    rows = ours.values()
    assert Counter((row["role"], row["part_type"]) for row in rows) == expected.parts
    assert Counter(row["tool_name"] for row in rows if row["part_type"] == "tool_call") == expected.tools
    assert {row["session_id"] for row in rows} == expected.sessions


@pytest.mark.parametrize("name", sample_names())
def test_a_single_transcript_comes_to_what_a_naive_reader_finds(name: str, paths: list[Path]) -> None:
    (path,) = [path for path in paths if str(path).endswith(name)]
    rows, reading = rows_of(PROVIDER, path)
    expected = claude_totals([path])
    assert usage(rows) == expected.tokens
    assert Counter((row["role"], row["part_type"]) for row in rows) == expected.parts
    assert set(reading.skipped) <= {"bookkeeping"}
    assert reading.consumed == path.stat().st_size
    assert not reading.held


@pytest.mark.hazard(66)
def test_the_copies_in_a_fork_are_the_first_sessions_rows_and_its_own_lines_are_its_own(
    paths: list[Path], ours: dict[str, Row]
) -> None:
    first, fork = "406dc910-3136-4696-a363-fc74f0a8ab6c", "b360ceec-c9c8-426e-a3ec-e08f72376c37"
    order = [path.stem for path in paths]
    assert order.index(first) < order.index(fork)
    own = [row["content_text"] for row in ours.values() if row["session_id"] == fork]
    assert own == ["And in a fork?", "In the fork it is blue, too."]
    (path,) = [path for path in paths if path.stem == fork]
    copies = [row["part_id"] for row in rows_of(PROVIDER, path)[0] if row["part_id"] in ours][: -len(own)]
    assert {ours[key]["session_id"] for key in copies} == {first}


def test_a_subagent_names_the_call_that_started_it(ours: dict[str, Row]) -> None:
    spawned = {
        row["agent_id"]: row["attributes"]["claude"]["spawned_by_tool_use_id"]
        for row in ours.values()
        if row.get("agent_id") and "spawned_by_tool_use_id" in row["attributes"].get("claude", {})
    }
    called = {row["tool_call_id"] for row in ours.values() if row.get("tool_name") == "Agent"}
    assert len(spawned) == 2
    assert set(spawned.values()) <= called


def test_every_shape_of_the_request_log_stands_once_in_its_session(paths: list[Path], ours: dict[str, Row]) -> None:
    (path,) = [path for path in paths if path.parent.name == "tools"]
    told = [row for row in ours.values() if row["session_id"] == path.stem and "system_text" in row]
    assert len(told) == 1
    assert told[0]["role"] == "assistant"
    assert told[0]["system_text"].startswith("You are a Claude agent")
    assert {"Bash", "Read"} <= {tool["name"] for tool in told[0]["tools"]}
