"""A rollout imported while it is being written: every row and token once, wherever the imports split it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hypaware.model.datasets import Row
from tests.support.codex_rollouts import (
    BEGIN,
    NAME,
    PROVIDER,
    add,
    added,
    answers,
    as_bytes,
    calls,
    counts,
    input_tokens,
    item,
    meta,
    record,
    sample,
    sample_names,
    says,
    snapshot,
    thinks,
    turn,
)
from tests.support.history import GrowingFile, rows_of, usage

# Columns that are unknown for the first messages if the file was quiet before its first turn.
OF_THE_TURN = ("model", "permission_mode")


def by_part(rows: list[Row]) -> dict[str, Row]:
    found = {row["part_id"]: row for row in rows}
    assert len(found) == len(rows), "a part was imported twice"
    return found


def without_what_may_differ(row: Row) -> Row:
    attributes = {name: value for name, value in row["attributes"].items() if name != "usage"}
    attributes["codex"] = {name: value for name, value in attributes["codex"].items() if name != "sandbox"}
    return {name: value for name, value in row.items() if name not in OF_THE_TURN} | {"attributes": attributes}


def cuts(data: bytes) -> list[int]:
    """Return offsets after and within every line."""
    ends = [at + 1 for at, byte in enumerate(data) if byte == 0x0A]
    return sorted({*ends, *(end - 1 for end in ends), *((a + b) // 2 for a, b in zip([0, *ends], ends, strict=False))})


@pytest.fixture
def file(tmp_path: Path) -> GrowingFile:
    return GrowingFile(PROVIDER, tmp_path / NAME)


@pytest.mark.hazard(52)
@pytest.mark.parametrize("name", sample_names())
def test_two_imports_split_anywhere_give_the_rows_of_one(name: str, tmp_path: Path) -> None:
    data = sample(name)
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / name).write_bytes(data)
    whole, _ = rows_of(PROVIDER, tmp_path / "whole" / name)
    for cut in cuts(data):
        file = GrowingFile(PROVIDER, tmp_path / f"{cut}" / name)
        file.path.parent.mkdir()
        file.grow_to(data[:cut], quiet=False)
        file.grow_to(data, quiet=True)
        # The path is part of the row's provenance.
        assert by_part(_unplaced(file.rows)) == by_part(_unplaced(whole)), cut
        assert not file.held


@pytest.mark.hazard(52)
@pytest.mark.hazard(96)
@pytest.mark.parametrize("name", sample_names())
def test_after_a_long_pause_anywhere_every_row_and_token_is_imported_once(name: str, tmp_path: Path) -> None:
    data = sample(name)
    path = tmp_path / name
    path.write_bytes(data)
    whole, _ = rows_of(PROVIDER, path)
    expected = by_part([without_what_may_differ(row) for row in whole])
    for cut in cuts(data):
        path.unlink()
        file = GrowingFile(PROVIDER, path)
        file.grow_to(data[:cut], quiet=True)
        file.grow_to(data, quiet=True)
        assert by_part([without_what_may_differ(row) for row in file.rows]) == expected, cut
        if file.held:
            # Only counts came after the pause. They wait for the next message.
            assert file.skipped["usage_waiting"] == len(file.held) == 1
            assert usage(file.rows) != usage(whole)
            add(file, says("user", "Go on."), says("assistant", "I do."), quiet=True)
        assert not file.held
        assert usage(file.rows) == usage(whole), cut


@pytest.mark.parametrize("name", sample_names())
def test_an_import_after_every_line_gives_the_rows_of_one(name: str, tmp_path: Path) -> None:
    data = sample(name)
    path = tmp_path / name
    path.write_bytes(data)
    whole, _ = rows_of(PROVIDER, path)
    path.unlink()
    file = GrowingFile(PROVIDER, path)
    for cut in cuts(data):
        file.grow_to(data[:cut], quiet=False)
    file.grow_to(data, quiet=True)

    assert by_part(file.rows) == by_part(whole)


def _unplaced(rows: list[Row]) -> list[Row]:
    return [
        row | {"attributes": row["attributes"] | {"gateway": row["attributes"]["gateway"]["native_id"]}} for row in rows
    ]


@pytest.mark.hazard(52)
def test_messages_are_held_back_until_the_counts_of_their_response(file: GrowingFile) -> None:
    assert [row["content_text"] for row in add(file, *BEGIN, thinks("Hm."), says("assistant", "Yes."))] == ["Do it."]
    assert len(file.held) == 2

    assert input_tokens(add(file, snapshot(counts(100), counts(100)))) == [("Yes.", 100)]
    assert not file.held


@pytest.mark.hazard(80)
def test_held_back_messages_are_imported_once_the_file_is_quiet(
    file: GrowingFile,
) -> None:
    add(file, *BEGIN, says("assistant", "Yes."), calls("c1"), answers("c1"))
    assert len(file.rows) == 1

    assert [row["role"] for row in add(file, quiet=True)] == ["assistant", "assistant", "tool"]
    assert not file.held
    assert add(file, quiet=True) == []


def test_messages_of_a_finished_turn_are_not_held_back(file: GrowingFile) -> None:
    new = add(file, *BEGIN, says("assistant", "Yes."), says("user", "And now?"))
    assert [row["content_text"] for row in new] == ["Do it.", "Yes.", "And now?"]


def test_tool_results_are_not_held_back_for_counts_of_an_imported_call(file: GrowingFile) -> None:
    add(file, *BEGIN, calls("c1"), quiet=True)
    assert [row["role"] for row in add(file, answers("c1"))] == ["tool"]


def test_nothing_is_imported_before_the_first_turn_context(file: GrowingFile) -> None:
    assert add(file, meta(), says("user", "Do it.")) == []
    assert [row["model"] for row in add(file, turn())] == ["gpt-5.5"]


def test_messages_imported_before_the_first_turn_are_not_imported_again(file: GrowingFile) -> None:
    add(file, meta(), says("user", "Do it."), quiet=True)
    assert add(file, says("user", "Now.")) == []
    assert [row["content_text"] for row in add(file, turn())] == ["Now."]


def test_skipped_lines_are_reported_once(file: GrowingFile) -> None:
    picture = item("message", role="user", content=[{"type": "input_image"}, {"type": "input_text", "text": "See?"}])
    add(file, *BEGIN, picture, item("hologram"), quiet=True)
    add(file, says("user", "Next."), quiet=True)
    assert file.skipped == {"block_without_text": 1, "unknown_type:hologram": 1}


def test_a_file_without_any_turn_is_imported_once_it_is_quiet(file: GrowingFile) -> None:
    add(file, meta(), says("user", "Do it."))
    assert [row.get("model") for row in add(file, quiet=True)] == [None]


def test_an_unchanged_file_gives_no_rows(file: GrowingFile) -> None:
    add(file, *BEGIN, says("assistant", "Yes."), snapshot(counts(100), counts(100)), quiet=True)
    assert add(file, quiet=True) == []


@pytest.mark.hazard(96)
def test_late_counts_go_to_the_next_message_of_the_model(file: GrowingFile) -> None:
    add(file, *BEGIN, calls("c1"), quiet=True)
    late = add(file, answers("c1"), snapshot(counts(100), counts(100)))
    assert input_tokens(late) == []
    assert len(file.held) == 1

    # The message is held back for its own counts, and the late counts with it.
    assert add(file, says("assistant", "Done.")) == []
    next_one = add(file, snapshot(counts(30), added(counts(100), counts(30))))
    assert input_tokens(next_one) == [("Done.", 130)]
    assert next_one[0]["attributes"]["usage"]["total_tokens"] == 150
    assert not file.held


@pytest.mark.hazard(96)
def test_late_counts_wait_across_a_pause_and_a_new_turn(file: GrowingFile) -> None:
    add(file, *BEGIN, calls("c1"), quiet=True)
    add(file, snapshot(counts(100), counts(100)))
    add(file, quiet=True)
    assert file.skipped["usage_waiting"] == 1
    add(file, says("user", "Still there?"), quiet=True)
    add(file, says("assistant", "Yes."), quiet=True)

    assert input_tokens(file.rows) == [("Yes.", 100)]
    assert not file.held
    assert file.skipped["usage_without_message"] == 0


@pytest.mark.hazard(96)
def test_counts_after_those_of_an_imported_message_are_not_counted_again(file: GrowingFile) -> None:
    """A compaction's response has counts but no message, long after the turn's last message."""
    add(file, *BEGIN, says("assistant", "Yes."), snapshot(counts(100), counts(100)), quiet=True)
    add(file, snapshot(counts(40), added(counts(100), counts(40))), quiet=True)
    add(file, says("user", "Next."), says("assistant", "Here."), snapshot(counts(5), counts(145)), quiet=True)

    assert input_tokens(file.rows) == [("Yes.", 100), ("Here.", 45)]


def test_counts_before_the_first_message_of_their_turn_wait_for_it(file: GrowingFile) -> None:
    add(file, *BEGIN, thinks("Hm."), snapshot(counts(100), counts(100)))
    add(file, calls("c1"), snapshot(counts(20), added(counts(100), counts(20))))

    assert input_tokens(file.rows) == [("shell", 120)]
    assert file.skipped["usage_without_message"] == 0


def test_counts_of_a_turn_without_a_message_are_dropped_and_reported_once(file: GrowingFile) -> None:
    add(file, *BEGIN, snapshot(counts(100), counts(100)))
    assert file.skipped["usage_without_message"] == 0
    add(file, quiet=True)
    assert file.skipped["usage_without_message"] == 1
    add(file, says("user", "Next."), says("assistant", "Here."), quiet=True)

    assert input_tokens(file.rows) == []
    assert file.skipped["usage_without_message"] == 1
    assert not file.held


@pytest.mark.parametrize("cut", range(1, 13))
@pytest.mark.parametrize("quiet", [False, True])
def test_records_and_their_snapshots_count_once_wherever_imports_split_the_file(
    tmp_path: Path, cut: int, quiet: bool
) -> None:
    first, second = counts(100), counts(30)
    lines: list[Any] = [
        *BEGIN,
        thinks("Hm."),
        calls("c1"),
        record("r1", first, first),
        answers("c1"),
        snapshot(first, first),
        says("assistant", "Done."),
        record("r2", second, added(first, second)),
        snapshot(second, added(first, second)),
        says("user", "Thanks."),
        says("assistant", "Welcome."),
    ]
    file = GrowingFile(PROVIDER, tmp_path / NAME)
    file.grow_to(as_bytes(lines[:cut]), quiet=quiet)
    file.grow_to(as_bytes(lines), quiet=True)

    assert Counter(row["role"] for row in file.rows) == {"user": 2, "assistant": 4, "tool": 1}
    assert usage(file.rows)["input_tokens"] == 130


def test_a_message_in_an_incomplete_line_is_imported_once_the_line_is_complete(file: GrowingFile) -> None:
    data = as_bytes([*BEGIN, says("assistant", "Yes."), snapshot(counts(100), counts(100))])
    file.grow_to(data[:-400], quiet=True)
    file.grow_to(data, quiet=True)

    assert [row.get("content_text") for row in file.rows] == ["Do it.", "Yes."]
