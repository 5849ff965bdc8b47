"""A transcript imported while it is being written: every row and token once, wherever the imports split it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.clients.client import ImportItem
from hypaware.clients.reader import SourceReader, TimeWindow
from hypaware.model.datasets import Row
from tests.support.claude_transcripts import (
    OTHER_SESSION,
    PROVIDER,
    answers,
    as_bytes,
    at,
    calls,
    line,
    sample,
    sample_names,
    says,
    user,
)
from tests.support.history import NOWHERE, GrowingFile, pin, rows_of, usage

# The times of this sample go back (a compaction): its message indexes depend on the lines read so far.
TIMES_GO_BACK = "2.1.325/compact/4af1ebce-fff1-4c49-8242-563ea1edf2ed.jsonl"
SMALL = "2.0.76/basic/ce8bc667-8419-4595-a37a-3c93fa83db07.jsonl"


def by_part(rows: list[Row]) -> dict[str, Row]:
    found = {row["part_id"]: row for row in rows}
    assert len(found) == len(rows), "a part was imported twice"
    return found


def without(rows: list[Row], *columns: str) -> list[Row]:
    return [{name: value for name, value in row.items() if name not in columns} for row in rows]


def once_per_response(rows: list[Row]) -> list[Row]:
    """Return a row without the values of a response's last line, which is another line after a long pause."""
    bare = [{**row, "attributes": {**row["attributes"], "usage": None}} for row in rows]
    return without(bare, *(["status"] if any("finish_reason" in row.get("status", {}) for row in rows) else []))


def waiting(file: GrowingFile) -> set[str]:
    """Return the API ids of the held back responses."""
    return {key.rpartition(":")[2] for key in file.held}


def line_ends(data: bytes) -> list[int]:
    return [at + 1 for at, byte in enumerate(data) if byte == 0x0A]


class Folder:
    """Import one content several times independently."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def file(self) -> GrowingFile:
        self.path.unlink(missing_ok=True)
        return GrowingFile(PROVIDER, self.path)

    def whole(self, data: bytes) -> list[Row]:
        return self.file().grow_to(data, quiet=True)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "session.jsonl")


@pytest.fixture
def file(folder: Folder) -> GrowingFile:
    return folder.file()


def add(file: GrowingFile, *lines: object, quiet: bool = False) -> list[Row]:
    before = file.path.read_bytes() if file.path.exists() else b""
    return file.grow_to(before + as_bytes(lines), quiet=quiet)


@pytest.mark.hazard(52)
@pytest.mark.parametrize("name", sample_names())
def test_two_imports_split_at_any_line_give_the_rows_of_one(name: str, folder: Folder) -> None:
    data = sample(name)
    changing = ["message_index"] if name == TIMES_GO_BACK else []
    whole = by_part(without(folder.whole(data), *changing))
    for cut in line_ends(data):
        file = folder.file()
        file.grow_to(data[:cut], quiet=False)
        file.grow_to(data, quiet=True)
        assert by_part(without(file.rows, *changing)) == whole, cut
        assert not file.held


@pytest.mark.hazard(52)
@pytest.mark.hazard(96)
@pytest.mark.parametrize("name", sample_names())
def test_after_a_long_pause_at_any_line_every_row_and_token_is_imported_once(name: str, folder: Folder) -> None:
    data = sample(name)
    rows = folder.whole(data)
    whole = by_part(without(once_per_response(rows), "message_index"))
    for cut in line_ends(data):
        file = folder.file()
        file.grow_to(data[:cut], quiet=True)
        file.grow_to(data, quiet=True)
        assert by_part(without(once_per_response(file.rows), "message_index")) == whole, cut
        assert usage(file.rows) == usage(rows), cut


@pytest.mark.parametrize("quiet", [False, True])
def test_two_imports_split_within_any_line_give_the_rows_of_one(quiet: bool, folder: Folder) -> None:
    data = sample(SMALL)
    rows = folder.whole(data)
    ends = line_ends(data)
    for cut in (place for end in ends for place in (end - 1, end - 2, end - 200)):
        file = folder.file()
        file.grow_to(data[:cut], quiet=quiet)
        file.grow_to(data, quiet=True)
        assert by_part(once_per_response(file.rows)) == by_part(once_per_response(rows)), cut
        assert usage(file.rows) == usage(rows)


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=6))
def test_several_imports_give_the_rows_of_one(
    tmp_path_factory: pytest.TempPathFactory, stops: list[tuple[int, bool]]
) -> None:
    data = sample(SMALL)
    ends = [0, *line_ends(data)]
    folder = Folder(tmp_path_factory.mktemp("cuts") / "session.jsonl")
    rows = folder.whole(data)
    file = folder.file()
    for count, quiet in sorted(stops):
        file.grow_to(data[: ends[min(count, len(ends) - 1)]], quiet=quiet)
    file.grow_to(data, quiet=True)
    assert by_part(once_per_response(file.rows)) == by_part(once_per_response(rows))
    assert usage(file.rows) == usage(rows)


@pytest.mark.hazard(52)
def test_the_last_response_is_held_back_until_another_follows(file: GrowingFile) -> None:
    assert [row["message_id"] for row in add(file, user("u1", "Go."), says("a1", "One", "u1", output=5))] == ["u1"]
    assert waiting(file) == {"msg_1"}
    assert add(file, says("a2", "two", "a1", 2, output=9, stop="end_turn")) == []

    new = add(file, says("b1", "Next", "a2", 3, api="msg_2", output=1))
    assert [row["message_id"] for row in new] == ["a1", "a2"]
    assert usage(new)["output_tokens"] == 9
    assert waiting(file) == {"msg_2"}


def test_a_response_with_a_stop_reason_is_held_back_too(file: GrowingFile) -> None:
    """Every line of a response has its stop reason, even if more lines follow."""
    add(file, user("u1", "Go."), says("a1", "One", "u1", output=5, stop="tool_use"))
    assert waiting(file) == {"msg_1"}


def test_the_next_user_message_does_not_end_a_response(file: GrowingFile) -> None:
    """A tool result can precede the end of the response that called the tool."""
    rows = add(
        file,
        user("u1", "Go."),
        says("a1", calls("c1"), "u1", output=5),
        user("u2", answers("c1"), "a1", 2),
        quiet=False,
    )
    assert [row["message_id"] for row in rows] == ["u1", "u2"]
    assert rows[1]["tool_name"] == "Bash"
    assert rows[1]["previous_message_id"] == ["a1"]

    new = add(file, says("a2", calls("c2"), "a1", 3, output=7), quiet=True)
    assert [(row["message_id"], row["message_index"]) for row in new] == [("a1", 1), ("a2", 3)]
    assert usage(file.rows)["output_tokens"] == 7


@pytest.mark.hazard(80)
def test_held_back_messages_are_imported_once_the_file_is_quiet(file: GrowingFile) -> None:
    add(file, user("u1", "Go."), says("a1", "One", "u1", output=5))
    assert [row["message_id"] for row in add(file, quiet=True)] == ["a1"]
    assert not file.held
    assert add(file, quiet=True) == []


def test_a_failed_request_ends_the_previous_response_and_is_not_held_back(file: GrowingFile) -> None:
    broken = says("e1", "API Error: 529", "a1", 2, api="local-1", model="<synthetic>", isApiErrorMessage=True)
    rows = add(file, user("u1", "Go."), says("a1", "One", "u1", output=5), broken)
    assert [row["message_id"] for row in rows] == ["u1", "a1", "e1"]
    assert not file.held


def test_agents_that_take_turns_in_one_file_are_held_back_separately(file: GrowingFile) -> None:
    """Older clients write subagents into the session's file and give them no id."""
    side: dict[str, Any] = {"isSidechain": True}
    rows = add(
        file,
        user("s1", "Count.", None, 0, **side),
        user("t1", "Read.", None, 0, **side),
        says("s2", "I count", "s1", 1, api="msg_s", output=5, **side),
        says("t2", "I read", "t1", 2, api="msg_t", output=6, **side),
    )
    assert [row["message_id"] for row in rows] == ["s1", "t1"]
    assert waiting(file) == {"msg_s", "msg_t"}

    new = add(file, says("s3", "three", "s2", 3, api="msg_s", output=8, **side), quiet=True)
    assert [row["message_id"] for row in new] == ["s2", "t2", "s3"]
    assert usage(file.rows)["output_tokens"] == 14


def test_a_thread_continues_across_a_compaction(file: GrowingFile) -> None:
    boundary = line("system", "c1", None, 2, subtype="compact_boundary", logicalParentUuid="a1")
    rows = add(
        file,
        user("u1", "Go."),
        says("a1", "One", "u1", output=5),
        boundary,
        user("u2", "Summary", "c1", 3, isCompactSummary=True),
        says("b1", "Next", "u2", 4, api="msg_2"),
    )
    assert [row["message_id"] for row in rows] == ["u1", "a1", "u2"]
    assert waiting(file) == {"msg_2"}


@pytest.mark.hazard(96)
def test_lines_after_a_long_pause_carry_the_difference(file: GrowingFile) -> None:
    add(file, user("u1", "Go."), says("a1", "One", "u1", output=5), quiet=True)
    late = add(file, says("a2", "two", "a1", 2, output=9))
    assert [row["attributes"]["usage"] for row in late] == [{"output_tokens": 4}]
    later = add(file, says("a3", "three", "a2", 3, output=9))
    assert ["usage" in row["attributes"] for row in later] == [False]
    last = add(file, says("a4", "four", "a3", 4, output=20), says("b1", "Next", "a4", 5, api="msg_2"), quiet=True)
    assert usage(last)["output_tokens"] == 11

    assert usage(file.rows) == {
        "input_tokens": 3,
        "cache_read_tokens": 11_000,
        "cache_write_tokens": 512,
        "output_tokens": 20,
    }
    assert not file.held


@pytest.mark.hazard(96)
def test_decreasing_counts_are_corrected(file: GrowingFile) -> None:
    """The last line counts, even if earlier lines had higher counts."""
    add(file, user("u1", "Go."), says("a1", "One", "u1", output=9), quiet=True)
    add(file, says("a2", "two", "a1", 2, output=7), quiet=True)
    assert usage(file.rows)["output_tokens"] == 7


@pytest.mark.hazard(96)
def test_counts_on_a_late_line_that_makes_no_row_wait_for_one_that_does(file: GrowingFile) -> None:
    """Regression: these counts were lost, because the next line carried only the difference."""
    add(file, user("u1", "Go."), says("a1", "One", "u1", output=50), quiet=True)
    assert add(file, says("a1", "One", "u1", 2, output=80), quiet=True) == []
    add(file, says("a3", "three", "a1", 3, output=90), quiet=True)
    assert usage(file.rows)["output_tokens"] == 90
    assert not file.held


@pytest.mark.hazard(52)
def test_a_response_held_back_in_one_session_repeats_no_rows_of_another(file: GrowingFile) -> None:
    """Both sessions of a file may have copies of one API message."""
    first = [
        user("u1", "Go."),
        says("a1", "One", "u1"),
        user("u2", "On.", "a1", 2),
        says("a2", "Two", "u2", 3, api="b"),
    ]
    add(file, *first, quiet=True)
    add(file, user("v1", "Go.", None, 4, sessionId=OTHER_SESSION), says("w1", "One", "v1", 5, sessionId=OTHER_SESSION))
    assert waiting(file) == {"msg_1"}
    rows = add(file, quiet=True)
    assert [row["message_id"] for row in rows] == ["w1"]


def test_a_partly_imported_response_is_not_held_back(file: GrowingFile) -> None:
    add(file, user("u1", "Go."), says("a1", "One", "u1", output=5), quiet=True)
    assert [row["message_id"] for row in add(file, says("a2", "two", "a1", 2, output=9))] == ["a2"]
    assert not file.held


@pytest.mark.hazard(84)
def test_lines_of_an_earlier_import_make_no_rows_again(file: GrowingFile) -> None:
    """Retention may have removed the row since; it must not come back because its session continues."""
    add(file, user("u1", "Go."), says("a1", calls("c1"), "u1", output=5), quiet=True)
    (row,) = add(file, user("u2", answers("c1"), "a1", 2), quiet=True)
    assert (row["message_id"], row["message_index"], row["tool_name"]) == ("u2", 2, "Bash")
    assert row["previous_message_id"] == ["a1"]
    assert row["conversation_started_at"] == at(0).replace("000Z", "000000Z")


@pytest.mark.hazard(53)
def test_occurrences_of_messages_without_an_id_continue_across_imports(file: GrowingFile, folder: Folder) -> None:
    lines = [user(None, "continue", None, second) for second in range(4)]
    for each in lines:
        add(file, each, quiet=True)
    grown = by_part(file.rows)
    assert len(grown) == 4
    assert grown == by_part(folder.whole(as_bytes(lines)))


def test_a_line_that_was_skipped_is_counted_once(file: GrowingFile) -> None:
    add(file, user("u1", ""), line("system", "x1"), b"garbage\n", user("u2", "Go."), quiet=True)
    add(file, user("u3", "And?"), user("u2", "Go."), quiet=True)
    assert file.skipped["empty_content"] == file.skipped["duplicate_message"] == file.skipped["bookkeeping"] == 1


def test_lines_outside_the_window_make_no_rows_but_count_for_the_others(folder: Folder) -> None:
    lines = [user("u1", "Go."), says("a1", calls("c1"), "u1", 60, output=5), user("u2", answers("c1"), "a1", 120)]
    folder.path.write_bytes(as_bytes(lines))
    window = TimeWindow(since="2026-11-15T08:01:30.000000Z")
    rows, reading = rows_of(PROVIDER, folder.path, window=window)
    assert [(row["message_id"], row["message_index"], row["tool_name"]) for row in rows] == [("u2", 2, "Bash")]
    assert reading.left_out == [(0, len(as_bytes(lines[:2])))]


def test_a_window_includes_both_ends_and_lines_without_a_time(folder: Folder) -> None:
    lines = [
        user("u1", "a", None, 0),
        user("u2", "b", None, 60),
        user("u3", "c", None, 120),
        user("u4", "d", None, None),
    ]
    folder.path.write_bytes(as_bytes(lines))
    window = TimeWindow(since="2026-11-15T08:00:00.000000Z", until="2026-11-15T08:01:00.000000Z")
    rows, _ = rows_of(PROVIDER, folder.path, window=window)
    assert [row["message_id"] for row in rows] == ["u1", "u2", "u4"]


@pytest.mark.parametrize("windows", [("until", None), ("since", None), (None, "until", None), ("until", "since", None)])
def test_windows_that_split_a_response_count_it_once(folder: Folder, windows: tuple[str | None, ...]) -> None:
    """Lines outside the window do not exist yet; the line inside carries the counts so far."""
    lines = [user("u1", "Go."), says("a1", "One", "u1", 1, output=9), says("a2", "two", "a1", 60, output=9)]
    between = at(30).replace("000Z", "000000Z")
    kinds = {"until": TimeWindow(until=between), "since": TimeWindow(since=between), None: TimeWindow()}
    rows: list[Row] = []
    consumed = 0
    left_out: tuple[tuple[int, int], ...] = ()
    for number, kind in enumerate(windows):
        # With an unbounded window, the file has only its beginning so far.
        here = lines[:2] if kind is None and number == 0 else lines
        folder.path.write_bytes(as_bytes(here))
        made, reading = rows_of(PROVIDER, folder.path, window=kinds[kind], consumed=consumed, left_out=left_out)
        rows += made
        consumed, left_out = reading.consumed, tuple(reading.left_out)
    assert sorted(by_part(rows)) == ["a1#0", "a2#0", "u1#0"]
    assert usage(rows)["output_tokens"] == 9


def test_a_session_with_nothing_new_gives_no_item(folder: Folder) -> None:
    data = as_bytes([user("u1", "Go."), user("v1", "Go.", None, 1, sessionId="other")])
    folder.path.write_bytes(data)
    with SourceReader(pin(folder.path, consumed=data.index(b"\n") + 1)) as reading:
        items = list(PROVIDER.read(reading, NOWHERE))
    assert [item.provenance.native_id for item in items if isinstance(item, ImportItem)] == ["other"]
