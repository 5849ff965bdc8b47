"""The compaction plan, including layouts that no writer of ours makes."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.iceberg.metadata import DataFile
from hypaware.lake import TARGET_FILE_BYTES
from hypaware.maintain import compact_plan
from hypaware.maintain.compact_plan import RewriteGroup, batch_groups, plan_compaction

DAY = date(2026, 11, 2)
SMALL = 60_000


def file(number: int, *, day: int = 0, source: str = "claude", size: int = SMALL, rows: int = 500) -> DataFile:
    path = Path(f"/lake/{source}/{day}/{number}.parquet")
    first = number * 1_000_000
    when = DAY + timedelta(days=day)
    return DataFile(path, size, rows, source, first + rows, first + 1, rows, day=when, location=f"file:{path}")


def files(count: int, start: int = 0, **options: int | str) -> list[DataFile]:
    return [file(number, **options) for number in range(start, start + count)]  # type: ignore[arg-type]


def test_a_day_behind_the_tail_is_due_with_two_small_files() -> None:
    tail = files(4, start=100, day=1)
    assert plan_compaction([file(0), *tail]) == []
    assert plan_compaction([*files(2), *tail]) == [RewriteGroup("claude", DAY, tuple(files(2)))]


def test_the_tail_is_left_alone_and_its_day_waits_for_more_files() -> None:
    """Otherwise today's files would be rewritten with every flush."""
    assert plan_compaction(files(5)) == []
    (found,) = plan_compaction(files(6))
    assert found.files == tuple(files(4))


def test_each_source_has_its_own_tail() -> None:
    """A source with little traffic has its newest files long before those of the others."""
    idle, busy = files(4, source="codex"), files(20, start=50)
    assert {found.source for found in plan_compaction([*idle, *busy])} == {"claude"}


def test_force_makes_every_reduction_due() -> None:
    assert [len(found.files) for found in plan_compaction(files(3), force=True)] == [3]
    assert plan_compaction(files(1), force=True) == []
    assert plan_compaction(files(3, size=22 << 20), force=True) == [], "three files would stay three"


def test_files_whose_number_would_not_halve_are_not_rewritten() -> None:
    tail = files(4, start=100, day=1)
    assert plan_compaction([*files(3, size=20 << 20), *tail]) == []
    assert len(plan_compaction([*files(4, size=15 << 20), *tail])) == 1


def test_large_files_are_not_rewritten() -> None:
    tail = files(4, start=100, day=1)
    (found,) = plan_compaction(
        [*files(2), file(5, size=TARGET_FILE_BYTES), file(6, size=TARGET_FILE_BYTES * 3 // 4), *tail]
    )
    assert found.files == tuple(files(2))


def test_files_without_sequences_or_a_day_are_left_alone() -> None:
    unknown = [replace(each, min_seq=None, max_seq=None) for each in files(5)]
    mixed = [replace(each, sequenced=3) for each in files(5, start=10)]
    without_day = [replace(each, day=None) for each in files(5, start=20)]
    assert plan_compaction([*unknown, *mixed, *without_day], force=True) == []


def test_the_day_with_most_files_comes_first() -> None:
    current = [*files(3, day=1), *files(9, start=20, day=2), *files(5, start=40, day=3), *files(4, start=90, day=9)]
    assert [found.day.day for found in plan_compaction(current)] == [4, 5, 3]


def test_a_large_day_is_split_by_sequence_into_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    tail = files(4, start=5_000, day=1)
    many = files(40, size=10 << 20)
    found = plan_compaction([*reversed(many), *tail])
    assert [each for group in found for each in group.files] == many
    assert max(group.bytes for group in found) <= 128 << 20
    wide = files(8, rows=200_000)
    assert [len(group.files) for group in plan_compaction([*wide, *tail])] == [2, 2, 2, 2], (
        "the keys must fit into memory"
    )


def test_batches_are_bounded_and_ordered() -> None:
    found = [RewriteGroup("claude", DAY, tuple(files(number % 7 + 2, size=9 << 20))) for number in range(90)]
    batches = list(batch_groups(found))
    assert [each for batch in batches for each in batch] == found
    assert max(len(batch) for batch in batches) <= 16
    assert all(sum(each.bytes for each in batch) <= 256 << 20 for batch in batches if len(batch) > 1)


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
def test_compaction_converges_for_every_layout(layout: list[DataFile], force: bool, ratio: float) -> None:
    """A rewrite leaves files of the target size and at most one small file. A second run must find nothing, and a run
    without `force` must find nothing after one with it."""
    current, next_number = list(layout), 1_000
    passes = 0
    while found := plan_compaction(current, force=force):
        passes += 1
        assert passes <= 8, "each pass must leave less to do"
        for group in found:
            assert len(group.files) >= 2
            current = [each for each in current if each not in group.files]
            outcome = _rewritten(group, ratio, next_number)
            next_number += len(outcome)
            current += outcome
    assert plan_compaction(current) == []
    assert sum(each.rows for each in current) == sum(each.rows for each in layout)


def _rewritten(group: RewriteGroup, ratio: float, next_number: int) -> list[DataFile]:
    remaining, rows = max(1, int(group.bytes * ratio)), group.rows
    batches: list[DataFile] = []
    first, last = group.files[0].min_seq, max(each.max_seq or 0 for each in group.files)
    while remaining > 0:
        size = remaining if remaining < TARGET_FILE_BYTES + 100_000 else TARGET_FILE_BYTES + 100_000
        remaining -= size
        path = Path(f"/lake/{group.source}/{group.day}/new-{next_number + len(batches)}.parquet")
        share = rows if remaining <= 0 else rows // 2
        rows -= share
        batches.append(
            replace(
                group.files[0],
                path=path,
                location=f"file:{path}",
                bytes=size,
                rows=share,
                sequenced=share,
                min_seq=first,
                max_seq=last,
            )
        )
    return batches


def test_partitions_are_counted_once() -> None:
    assert (
        compact_plan.count_partitions(plan_compaction([*files(40, size=10 << 20), *files(4, start=5_000, day=1)])) == 1
    )
