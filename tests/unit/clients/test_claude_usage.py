"""Token counts and finish reason of a response: once, regardless of the order of its lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hypaware.model.datasets import Row
from tests.support.claude_transcripts import OTHER_SESSION, answers, calls, imported, rows, says, user
from tests.support.history import usage


def carriers(made: list[Row]) -> dict[str, int]:
    """Return message id → output tokens of the rows with counts."""
    return {
        row["message_id"]: row["attributes"]["usage"]["output_tokens"] for row in made if "usage" in row["attributes"]
    }


@pytest.mark.hazard(51)
def test_the_last_line_of_a_response_carries_its_counts(tmp_path: Path) -> None:
    made = rows(
        tmp_path,
        user("u1", "Go."),
        says("a1", "One", "u1", 1, output=1),
        says("a2", "two", "a1", 2, output=40),
        says("b1", "three", "a2", 3, api="msg_2", output=7),
    )
    assert carriers(made) == {"a2": 40, "b1": 7}
    assert made[2]["attributes"]["usage"] == {
        "input_tokens": 3,
        "output_tokens": 40,
        "cache_read_tokens": 11_000,
        "cache_write_tokens": 512,
    }


@pytest.mark.hazard(51)
def test_a_result_within_a_response_does_not_count_it_twice(tmp_path: Path) -> None:
    made = rows(
        tmp_path,
        says("a1", calls("c1"), None, 1, output=40),
        user("u1", answers("c1"), "a1", 2),
        says("a2", calls("c2"), "a1", 3, output=40),
        user("u2", answers("c2"), "a2", 4),
    )
    assert carriers(made) == {"a2": 40}


def test_the_last_line_is_the_last_in_file_order(tmp_path: Path) -> None:
    made = rows(tmp_path, says("a1", "One", None, 9, output=1), says("a2", "two", "a1", 2, output=40))
    assert carriers(made) == {"a2": 40}


def test_counts_of_a_last_line_without_a_row_go_to_the_line_before(tmp_path: Path) -> None:
    empty = says("a2", "", "a1", 2, output=40)
    empty["message"]["content"] = []
    made, reading = imported(tmp_path, says("a1", "One", None, 1, output=1), empty)
    assert carriers(made) == {"a1": 40}
    assert reading.skipped == {"empty_content": 1}


def test_a_last_line_without_counts_keeps_the_earlier_ones(tmp_path: Path) -> None:
    made = rows(tmp_path, says("a1", "One", None, 1, output=40), says("a2", "two", "a1", 2))
    assert carriers(made) == {"a2": 40}


def test_counts_that_no_row_can_carry_are_reported(tmp_path: Path) -> None:
    empty = says("a1", "", None, 1, output=40)
    empty["message"]["content"] = []
    made, reading = imported(tmp_path, empty)
    assert made == []
    assert reading.skipped == {"empty_content": 1, "usage_without_message": 1}


def test_lines_without_an_api_id_are_grouped_by_request(tmp_path: Path) -> None:
    made = rows(
        tmp_path,
        says("a1", "One", None, 1, api=None, output=1, requestId="req_1"),
        says("a2", "two", "a1", 2, api=None, output=40, requestId="req_1"),
        says("a3", "three", "a2", 3, api=None, output=7),
        says("a4", "four", "a3", 4, api=None, output=8),
    )
    assert carriers(made) == {"a2": 40, "a3": 7, "a4": 8}


def test_sessions_of_one_file_are_counted_separately(tmp_path: Path) -> None:
    """The sessions are copies, and the lake keeps the first copy of each row: both must be complete."""
    lines = [says("a1", "One", None, 1, output=1), says("a2", "two", "a1", 2, output=40)]
    made = rows(tmp_path, *lines, *(each | {"sessionId": OTHER_SESSION} for each in lines))
    assert [carriers(made[:2]), carriers(made[2:])] == [{"a2": 40}, {"a2": 40}]


def test_thinking_tokens_are_counted_separately(tmp_path: Path) -> None:
    said = says("a1", "One", output=40)
    said["message"]["usage"]["output_tokens_details"] = {"thinking_tokens": 25}
    assert rows(tmp_path, said)[0]["attributes"]["usage"]["reasoning_tokens"] == 25


@pytest.mark.parametrize(
    ("wrong", "left"),
    [
        ({"output_tokens": "40"}, {"input_tokens": 3}),
        ({"output_tokens": True}, {"input_tokens": 3}),
        ({"output_tokens": 1.5}, {"input_tokens": 3}),
        ({"output_tokens": 2**60}, {"input_tokens": 3}),
        ({"output_tokens": [40]}, {"input_tokens": 3}),
    ],
)
def test_an_invalid_count_is_skipped_and_counted(tmp_path: Path, wrong: dict[str, Any], left: dict[str, Any]) -> None:
    said = says("a1", "One")
    said["message"]["usage"] = {"input_tokens": 3} | wrong
    made, reading = imported(tmp_path, said)
    assert made[0]["attributes"]["usage"] == left
    assert reading.skipped == {"bad_usage": 1}


@pytest.mark.parametrize("wrong", [7, "x", [], None, {}])
def test_counts_of_another_shape_are_ignored(tmp_path: Path, wrong: Any) -> None:
    said = says("a1", "One")
    said["message"]["usage"] = wrong
    assert "usage" not in rows(tmp_path, said)[0]["attributes"]


@pytest.mark.parametrize(
    ("stopped", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("pause_turn", "pause"),
        ("tool_use", "tool_use"),
        ("refusal", "refusal"),
    ],
)
def test_the_finish_reason_is_on_the_last_part_of_the_response(tmp_path: Path, stopped: str, reason: str) -> None:
    made = rows(tmp_path, says("a1", "One", None, 1, stop=stopped), says("a2", "two", "a1", 2, stop=stopped))
    assert [row.get("status") for row in made] == [None, {"finish_reason": reason}]


def test_an_interrupted_response_has_no_finish_reason(tmp_path: Path) -> None:
    assert "status" not in rows(tmp_path, says("a1", "One"))[0]


def test_the_sum_over_rows_is_the_sum_over_responses(tmp_path: Path) -> None:
    lines = [
        says(f"a{number}-{place}", "x", None, number, api=f"msg_{number}", output=number * place)
        for number in range(1, 20)
        for place in range(1, 4)
    ]
    assert usage(rows(tmp_path, *lines))["output_tokens"] == 3 * sum(range(1, 20))


@pytest.mark.hazard(51)
@pytest.mark.parametrize("last", [{}, {"output_tokens": 60}, {"output_tokens": 60, "input_tokens": None}])
def test_a_line_with_some_counts_keeps_the_earlier_others(tmp_path: Path, last: dict[str, Any]) -> None:
    """Older clients write partial counts; replacing all of them would lose the others."""
    late = says("a2", "two", "a1", 2, output=60)
    late["message"]["usage"] = last
    made = rows(tmp_path, says("a1", "One", None, 1, output=50), late)
    assert usage(made) == {
        "input_tokens": 3,
        "output_tokens": last.get("output_tokens", 50),
        "cache_read_tokens": 11_000,
        "cache_write_tokens": 512,
    }


def test_a_line_without_an_api_id_joins_the_response_of_its_request(tmp_path: Path) -> None:
    made = rows(
        tmp_path,
        says("a1", "One", None, 1, output=50, requestId="req_1"),
        says("a2", "two", "a1", 2, output=50, api=None, requestId="req_1"),
    )
    assert usage(made)["output_tokens"] == 50


def test_cache_writes_that_are_kept_for_an_hour_are_counted_apart(tmp_path: Path) -> None:
    long, short = says("a1", "One", None, 1, output=1), says("b1", "two", "a1", 2, api="msg_2", output=2)
    long["message"]["usage"]["cache_creation"] = {"ephemeral_5m_input_tokens": 112, "ephemeral_1h_input_tokens": 400}
    short["message"]["usage"]["cache_creation"] = {"ephemeral_5m_input_tokens": 512, "ephemeral_1h_input_tokens": 0}

    counts = [row["attributes"]["usage"] for row in rows(tmp_path, long, short)]

    assert [(each["cache_write_tokens"], each.get("cache_write_1h_tokens")) for each in counts] == [
        (512, 400),
        (512, None),
    ]
