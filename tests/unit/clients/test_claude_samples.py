"""Transcripts of real clients, compared with the original column by column and with a naive oracle."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from hypaware.model.datasets import Row
from hypaware.model.schemas import AI_GATEWAY_MESSAGES
from tests.support.claude_oracle import claude_totals
from tests.support.claude_transcripts import PROVIDER, SAMPLES, sample_names, unpacked
from tests.support.history import comparable, rows_of, usage

# All columns except the installation's id.
COLUMNS = [column.name for column in AI_GATEWAY_MESSAGES.columns if column.name != "gateway_id"]
ERROR_LINE = "717cb21f-1a4f-4d36-9cc7-e5efc2819460#0"


class Decision(NamedTuple):
    """Known differences: pairs of rows (original, ours) for which the column may differ."""

    column: str
    why: str
    allows: Callable[[Row, Row], bool]


def _finish_reason_only(theirs: Row, ours: Row) -> bool:
    return theirs["status"] is None and ours["role"] == "assistant" and set(ours["status"]) == {"finish_reason"}


def _other_than_its_parent(theirs: Row, ours: Row) -> bool:
    """Return whether the original's value is neither the parent line nor one of its ancestors."""
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
# Known bugs of the original: the request log is not a message, and its rows shifted the other indexes.
REQUEST_LOG = "api-request"


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return unpacked(tmp_path_factory.mktemp("samples"))


@pytest.fixture(scope="module")
def ours(paths: list[Path]) -> dict[str, Row]:
    """Keep the first of two rows with one id, as the lake does."""
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


def test_the_same_messages_as_in_the_original_make_rows(theirs: dict[str, Row], ours: dict[str, Row]) -> None:
    assert theirs.keys() == ours.keys()


@pytest.mark.parametrize("column", COLUMNS)
def test_columns_equal_those_of_the_original(column: str, theirs: dict[str, Row], ours: dict[str, Row]) -> None:
    allowed = [decision.allows for decision in DECISIONS if decision.column == column]
    unexplained = [
        (key, theirs[key][column], ours[key].get(column))
        for key in differences(column, theirs, ours)
        if not any(allows(theirs[key], ours[key]) for allows in allowed)
    ]
    assert unexplained == []


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda decision: f"{decision.column}: {decision.why}")
def test_every_recorded_difference_still_exists(
    decision: Decision, theirs: dict[str, Row], ours: dict[str, Row]
) -> None:
    assert any(decision.allows(theirs[key], ours[key]) for key in differences(decision.column, theirs, ours))


def test_the_request_log_makes_no_rows_unlike_in_the_original(ours: dict[str, Row]) -> None:
    text = lzma.decompress((SAMPLES / "original-rows.jsonl.xz").read_bytes())
    of_the_log = [row for row in map(json.loads, text.splitlines()) if row["provider_type"].startswith(REQUEST_LOG)]
    assert len(of_the_log) == 92
    assert not any(str(row["provider_type"]).startswith(REQUEST_LOG) for row in ours.values())


@pytest.mark.hazard(51)
def test_token_totals_equal_those_of_a_naive_reader(paths: list[Path], ours: dict[str, Row]) -> None:
    expected = claude_totals(paths)
    assert expected.tokens["output_tokens"] > 0
    assert usage(ours.values()) == expected.tokens


@pytest.mark.hazard(66)
def test_parts_tools_and_sessions_equal_those_of_a_naive_reader(paths: list[Path], ours: dict[str, Row]) -> None:
    expected = claude_totals(paths)
    rows = ours.values()
    assert Counter((row["role"], row["part_type"]) for row in rows) == expected.parts
    assert Counter(row["tool_name"] for row in rows if row["part_type"] == "tool_call") == expected.tools
    assert {row["session_id"] for row in rows} == expected.sessions


@pytest.mark.parametrize("name", sample_names())
def test_a_single_transcript_gives_the_parts_of_a_naive_reader(name: str, paths: list[Path]) -> None:
    (path,) = [path for path in paths if str(path).endswith(name)]
    rows, reading = rows_of(PROVIDER, path)
    expected = claude_totals([path])
    assert usage(rows) == expected.tokens
    assert Counter((row["role"], row["part_type"]) for row in rows) == expected.parts
    assert set(reading.skipped) <= {"bookkeeping"}
    assert reading.consumed == path.stat().st_size
    assert not reading.held


@pytest.mark.hazard(66)
def test_a_fork_adds_only_its_own_lines(paths: list[Path], ours: dict[str, Row]) -> None:
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


def test_every_request_shape_is_stored_once_per_session(paths: list[Path], ours: dict[str, Row]) -> None:
    (path,) = [path for path in paths if path.parent.name == "tools"]
    with_prompt = [row for row in ours.values() if row["session_id"] == path.stem and "system_text" in row]
    assert len(with_prompt) == 1
    assert with_prompt[0]["role"] == "assistant"
    assert with_prompt[0]["system_text"].startswith("You are a Claude agent")
    assert {"Bash", "Read"} <= {tool["name"] for tool in with_prompt[0]["tools"]}
