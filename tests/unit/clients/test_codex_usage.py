"""Token counts of a Codex thread: every response once, on one row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hypaware.model.datasets import Row
from tests.support.codex_rollouts import (
    BEGIN,
    added,
    answers,
    calls,
    counts,
    imported,
    input_tokens,
    line,
    meta,
    record,
    says,
    snapshot,
    thinks,
    turn,
)
from tests.support.history import usage

FIRST, SECOND = counts(100), counts(30)
BOTH = added(FIRST, SECOND)
YES = says("assistant", "Yes.")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def rows_of(folder: Path, *lines: Any) -> list[Row]:
    rows, _ = imported(folder, [*BEGIN, *lines])
    return rows


def test_input_excludes_cached_tokens(folder: Path) -> None:
    rows = rows_of(folder, YES, snapshot(counts(100, output=7, cached=60), counts(100, output=7, cached=60)))
    assert rows[1]["attributes"]["usage"] == {
        "input_tokens": 40,
        "cache_read_tokens": 60,
        "output_tokens": 7,
        "reasoning_tokens": 3,
        "total_tokens": 107,
    }


def test_input_is_never_negative(folder: Path) -> None:
    rows = rows_of(folder, YES, snapshot(counts(10, cached=60), counts(10, cached=60)))
    assert rows[1]["attributes"]["usage"]["input_tokens"] == 0


def test_tokens_written_to_the_cache_are_counted(folder: Path) -> None:
    wrote = FIRST | {"cache_write_input_tokens": 60}
    assert rows_of(folder, YES, snapshot(wrote, wrote))[1]["attributes"]["usage"]["cache_write_tokens"] == 60


def test_the_last_message_with_text_or_a_tool_call_carries_the_counts(folder: Path) -> None:
    rows = rows_of(folder, thinks("Hm."), YES, calls("c1"), thinks("More."), answers("c1"), snapshot(FIRST, FIRST))
    assert input_tokens(rows) == [("shell", 100)]


def test_the_last_part_of_a_message_carries_the_counts(folder: Path) -> None:
    two = says("assistant", "One.")
    two["payload"]["content"].append({"type": "output_text", "text": "Two."})
    assert input_tokens(rows_of(folder, two, snapshot(FIRST, FIRST))) == [("Two.", 100)]


def test_a_repeated_snapshot_counts_once(folder: Path) -> None:
    rows = rows_of(
        folder, calls("c1"), snapshot(FIRST, FIRST), answers("c1"), snapshot(FIRST, FIRST, primary=1), turn(), YES,
        snapshot(FIRST, FIRST, primary=2), snapshot(SECOND, BOTH), snapshot(SECOND, BOTH),
    )  # fmt: skip
    assert input_tokens(rows) == [("shell", 100), ("Yes.", 30)]


def test_equal_counts_of_two_responses_count_twice(folder: Path) -> None:
    rows = rows_of(folder, calls("c1"), snapshot(FIRST, FIRST), YES, snapshot(FIRST, added(FIRST, FIRST)))
    assert input_tokens(rows) == [("shell", 100), ("Yes.", 100)]


def test_a_response_without_counts_adds_none(folder: Path) -> None:
    rows = rows_of(folder, calls("c1"), snapshot(FIRST, FIRST), YES, snapshot(FIRST, FIRST))
    assert input_tokens(rows) == [("shell", 100)]


def test_a_restarted_counter_of_the_client_continues_the_total(folder: Path) -> None:
    rows = rows_of(
        folder, YES, snapshot(FIRST, FIRST), says("user", "Next."), snapshot(None), says("assistant", "Here."),
        snapshot(FIRST, FIRST), says("user", "More."), says("assistant", "There."), snapshot(SECOND, SECOND),
    )  # fmt: skip
    assert input_tokens(rows) == [("Yes.", 100), ("Here.", 100), ("There.", 30)]


def test_the_estimate_after_a_compaction_is_not_usage(folder: Path) -> None:
    estimate = {"total_tokens": 5000}
    rows = rows_of(folder, YES, snapshot(FIRST, FIRST), line("compacted", {"message": ""}), snapshot(estimate, FIRST))
    assert usage(rows)["total_tokens"] == 110


def test_a_full_context_notice_is_not_usage(folder: Path) -> None:
    full = {"input_tokens": 0, "total_tokens": 258400}
    rows = rows_of(
        folder, YES, snapshot(FIRST, FIRST), snapshot({"total_tokens": 258290}, full),
        says("assistant", "Shorter."), snapshot(SECOND, added(full, SECOND)),
    )  # fmt: skip
    assert input_tokens(rows) == [("Yes.", 100), ("Shorter.", 30)]
    assert usage(rows)["total_tokens"] == 150


def test_tokens_of_a_compaction_are_added_to_its_turn(folder: Path) -> None:
    rows = rows_of(folder, YES, snapshot(FIRST, FIRST), line("compacted", {}), snapshot(SECOND, BOTH))
    assert input_tokens(rows) == [("Yes.", 130)]


@pytest.mark.parametrize("total", [FIRST, None])
@pytest.mark.parametrize("between", [(), (answers("c1"),)])
def test_a_record_and_its_snapshot_count_once(folder: Path, total: Any, between: tuple[Any, ...]) -> None:
    rows = rows_of(folder, calls("c1"), record("r1", FIRST, total), *between, snapshot(FIRST, FIRST))
    assert input_tokens(rows) == [("shell", 100)]


@pytest.mark.parametrize("totals", [(FIRST, added(FIRST, FIRST)), (None, None)])
def test_a_snapshot_and_its_record_count_once(folder: Path, totals: tuple[Any, Any]) -> None:
    rows = rows_of(
        folder, calls("c1"), snapshot(FIRST, FIRST), record("r1", FIRST, totals[0]),
        YES, snapshot(FIRST, added(FIRST, FIRST)), record("r2", FIRST, totals[1]),
    )  # fmt: skip
    assert input_tokens(rows) == [("shell", 100), ("Yes.", 100)]


def test_a_thread_continued_by_an_older_version_is_counted_in_both_forms(folder: Path) -> None:
    rows = rows_of(
        folder,
        calls("c1"),
        record("r1", FIRST, FIRST),
        snapshot(FIRST, FIRST),
        YES,
        snapshot(FIRST, added(FIRST, FIRST)),
    )
    assert input_tokens(rows) == [("shell", 100), ("Yes.", 100)]


def test_equal_records_of_two_responses_count_twice(folder: Path) -> None:
    rows = rows_of(
        folder, YES, record("r1", FIRST), record("r2", FIRST), snapshot(FIRST, counts(900)), record("r3", FIRST)
    )
    assert input_tokens(rows) == [("Yes.", 300)]


def test_records_alone_count(folder: Path) -> None:
    rows = rows_of(folder, calls("c1"), record("r1", FIRST), YES, record("r2", FIRST))
    assert input_tokens(rows) == [("shell", 100), ("Yes.", 100)]


def test_a_repeated_record_adds_only_the_difference(folder: Path) -> None:
    rows = rows_of(folder, YES, record("r1", SECOND), record("r1", SECOND), record("r1", FIRST))
    assert input_tokens(rows) == [("Yes.", 100)]


def test_a_thread_continued_by_a_newer_version_is_counted_in_both_forms(folder: Path) -> None:
    rows = rows_of(
        folder, YES, snapshot(FIRST, FIRST), says("user", "Next."),
        says("assistant", "Here."), record("r2", SECOND, BOTH), snapshot(SECOND, BOTH),
    )  # fmt: skip
    assert input_tokens(rows) == [("Yes.", 100), ("Here.", 30)]


def test_contradictory_totals_count_no_response_twice(folder: Path) -> None:
    rows = rows_of(
        folder, calls("c1"), record("r1", FIRST, counts(9000)), snapshot(FIRST, counts(500)),
        YES, record("r2", SECOND, counts(9030)), snapshot(SECOND, counts(530)),
    )  # fmt: skip
    assert input_tokens(rows) == [("shell", 100), ("Yes.", 30)]


def test_a_fork_does_not_count_what_its_parent_used(folder: Path) -> None:
    fork = meta(forked_from_id="t0")
    rows, _ = imported(
        folder, [fork, turn(), says("user", "Do it."), snapshot(FIRST, FIRST), YES, snapshot(SECOND, BOTH)]
    )
    assert input_tokens(rows) == [("Yes.", 30)]


def test_counts_without_a_message_in_their_turn_are_dropped_and_reported(folder: Path) -> None:
    rows, reading = imported(
        folder, [*BEGIN, YES, snapshot(FIRST, FIRST), says("user", "Next."), thinks("Hm."), snapshot(SECOND, BOTH)]
    )
    assert input_tokens(rows) == [("Yes.", 100)]
    assert reading.skipped["usage_without_message"] == 1


def test_dropped_counts_do_not_go_to_a_later_turn(folder: Path) -> None:
    rows, reading = imported(
        folder,
        [*BEGIN, snapshot(FIRST, FIRST), says("user", "Next."), YES, snapshot(SECOND, BOTH), says("user", "Thanks.")],
    )
    assert input_tokens(rows) == [("Yes.", 30)]
    assert reading.skipped["usage_without_message"] == 1


def test_counts_before_the_messages_of_their_turn_go_to_the_first_message(folder: Path) -> None:
    rows, reading = imported(folder, [*BEGIN, thinks("Hm."), snapshot(FIRST, FIRST), YES, snapshot(SECOND, BOTH)])

    assert input_tokens(rows) == [("Yes.", 130)]
    assert reading.skipped == {}


def test_a_repeated_message_carries_no_counts(folder: Path) -> None:
    twice = says("assistant", "Yes.", id="m1")
    rows = rows_of(folder, twice, snapshot(FIRST, FIRST), twice, snapshot(SECOND, BOTH))
    assert input_tokens(rows) == [("Yes.", 130)]


@pytest.mark.parametrize("total", [None, "x", 7])
def test_without_totals_equal_counts_after_another_message_count_again(folder: Path, total: Any) -> None:
    rows = rows_of(folder, calls("c1"), snapshot(FIRST, total), snapshot(FIRST, total), YES, snapshot(FIRST, total))
    assert input_tokens(rows) == [("shell", 100), ("Yes.", 100)]


@pytest.mark.hazard(60)
@pytest.mark.parametrize("bad", [-5, 1.5, "100", True, None, 2**70, [1], {}])
def test_an_invalid_count_is_ignored(folder: Path, bad: Any) -> None:
    rows = rows_of(folder, YES, snapshot(FIRST | {"input_tokens": bad}, FIRST))

    assert rows[1]["attributes"]["usage"]["input_tokens"] == 0
    assert rows[1]["attributes"]["usage"]["output_tokens"] == 10


@pytest.mark.hazard(60)
@pytest.mark.parametrize("info", [7, "x", [], {}, {"last_token_usage": 5}, {"last_token_usage": {}}])
def test_counts_of_the_wrong_shape_are_ignored(folder: Path, info: Any) -> None:
    rows = rows_of(
        folder, YES, line("event_msg", {"type": "token_count", "info": info}), record("r1", info), record("r2", None)
    )
    assert usage(rows) == {}
