"""What compaction is due, over layouts that no writer of ours would make, too."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.lake.metadata import DataFile
from hypaware.lake.sizes import TARGET_BYTES
from hypaware.maintain import compact_plan
from hypaware.maintain.compact_plan import Rewriting, due, lots

DAY = date(2026, 11, 2)
SMALL = 60_000


def file(number: int, *, day: int = 0, source: str = "claude", size: int = SMALL, rows: int = 500) -> DataFile:
    path = Path(f"/lake/{source}/{day}/{number}.parquet")
    first = number * 1_000_000
    when = DAY + timedelta(days=day)
    return DataFile(path, size, rows, source, first + rows, first + 1, rows, day=when, location=f"file:{path}")


def files(count: int, start: int = 0, **how: int | str) -> list[DataFile]:
    return [file(number, **how) for number in range(start, start + count)]  # type: ignore[arg-type]


def test_a_day_behind_the_tail_is_due_from_two_small_files_on() -> None:
    tail = files(4, start=100, day=1)
    assert due([file(0), *tail]) == []
    assert due([*files(2), *tail]) == [Rewriting("claude", DAY, tuple(files(2)))]


def test_the_tail_is_left_alone_and_its_day_waits_until_much_is_behind_it() -> None:
    """Today's files would else be rewritten with every flush."""
    assert due(files(5)) == []
    (found,) = due(files(6))
    assert found.files == tuple(files(4))


def test_each_source_has_a_tail_of_its_own() -> None:
    """A source that is seldom heard of has its newest files long before those of the others."""
    quiet, busy = files(4, source="codex"), files(20, start=50)
    assert {found.source for found in due([*quiet, *busy])} == {"claude"}


def test_with_force_everything_small_is_due_that_gets_fewer() -> None:
    assert [len(found.files) for found in due(files(3), force=True)] == [3]
    assert due(files(1), force=True) == []
    assert due(files(3, size=22 << 20), force=True) == [], "three files would stay three"


def test_what_would_not_halve_the_files_is_not_worth_a_rewriting() -> None:
    tail = files(4, start=100, day=1)
    assert due([*files(3, size=20 << 20), *tail]) == []
    assert len(due([*files(4, size=15 << 20), *tail])) == 1


def test_large_files_stay() -> None:
    tail = files(4, start=100, day=1)
    (found,) = due([*files(2), file(5, size=TARGET_BYTES), file(6, size=TARGET_BYTES * 3 // 4), *tail])
    assert found.files == tuple(files(2))


def test_files_whose_sequences_nobody_knows_and_rows_without_a_day_are_left_alone() -> None:
    unknown = [replace(each, min_seq=None, max_seq=None) for each in files(5)]
    mixed = [replace(each, numbered=3) for each in files(5, start=10)]
    timeless = [replace(each, day=None) for each in files(5, start=20)]
    assert due([*unknown, *mixed, *timeless], force=True) == []


def test_the_worst_day_comes_first() -> None:
    held = [*files(3, day=1), *files(9, start=20, day=2), *files(5, start=40, day=3), *files(4, start=90, day=9)]
    assert [found.day.day for found in due(held)] == [4, 5, 3]


def test_a_large_day_is_cut_by_sequence_into_what_one_task_may_read(monkeypatch: pytest.MonkeyPatch) -> None:
    tail = files(4, start=5_000, day=1)
    many = files(40, size=10 << 20)
    found = due([*reversed(many), *tail])
    assert [each for cut in found for each in cut.files] == many
    assert max(cut.bytes for cut in found) <= 128 << 20
    wide = files(8, rows=200_000)
    assert [len(cut.files) for cut in due([*wide, *tail])] == [2, 2, 2, 2], "its keys must fit into memory"


def test_lots_are_bounded_and_hold_everything_in_order() -> None:
    found = [Rewriting("claude", DAY, tuple(files(number % 7 + 2, size=9 << 20))) for number in range(90)]
    made = list(lots(found))
    assert [each for lot in made for each in lot] == found
    assert max(len(lot) for lot in made) <= 16
    assert all(sum(each.bytes for each in lot) <= 256 << 20 for lot in made if len(lot) > 1)


layouts = st.lists(
    st.builds(
        lambda number, day, source, size, rows: file(number, day=day, source=source, size=size, rows=rows),
        st.integers(0, 400),
        st.integers(0, 3),
        st.sampled_from(["claude", "codex"]),
        st.one_of(st.integers(1, 200_000), st.integers(1 << 20, 40 << 20)),
        st.one_of(st.integers(1, 5_000), st.integers(1, 600_000)),
    ),
    max_size=120,
    unique_by=lambda each: (each.path, each.max_seq),
)


@pytest.mark.hazard(37)
@given(layouts, st.booleans(), st.floats(0.2, 1.4))
def test_compaction_converges_whatever_the_layout(layout: list[DataFile], force: bool, shrinking: float) -> None:
    """A rewriting leaves files of the target's size and at most one small one. A second run must find nothing, and
    one without force nothing after one with it."""
    held, fresh = list(layout), 1_000
    passes = 0
    while found := due(held, force=force):
        passes += 1
        assert passes <= 8, "each pass must leave less to do"
        for rewriting in found:
            assert len(rewriting.files) >= 2
            held = [each for each in held if each not in rewriting.files]
            outcome = _rewritten(rewriting, shrinking, fresh)
            fresh += len(outcome)
            held += outcome
    assert due(held) == []
    assert sum(each.rows for each in held) == sum(each.rows for each in layout)


def _rewritten(rewriting: Rewriting, shrinking: float, fresh: int) -> list[DataFile]:
    left, rows = max(1, int(rewriting.bytes * shrinking)), rewriting.rows
    made: list[DataFile] = []
    first, last = rewriting.files[0].min_seq, max(each.max_seq or 0 for each in rewriting.files)
    while left > 0:
        size = left if left < TARGET_BYTES + 100_000 else TARGET_BYTES + 100_000
        left -= size
        path = Path(f"/lake/{rewriting.source}/{rewriting.day}/new-{fresh + len(made)}.parquet")
        share = rows if left <= 0 else rows // 2
        rows -= share
        made.append(
            replace(
                rewriting.files[0],
                path=path,
                location=f"file:{path}",
                bytes=size,
                rows=share,
                numbered=share,
                min_seq=first,
                max_seq=last,
            )
        )
    return made


def test_partitions_are_counted_once() -> None:
    assert compact_plan.partitions(due([*files(40, size=10 << 20), *files(4, start=5_000, day=1)])) == 1
