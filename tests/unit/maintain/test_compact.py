"""Compaction over a light lake: the same rows in fewer files, whatever is damaged, cancelled or killed on the way."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from hypaware import errors, telemetry
from hypaware.crash_points import all_points
from hypaware.home import Home
from hypaware.lake import metadata, rewrite, row_groups, since
from hypaware.lake.build import BuildFailure, Built, Task
from hypaware.lake.committer import Change
from hypaware.lake.metadata import DataFile
from hypaware.lake.rewrite import Rewritten
from hypaware.maintain import compact, compact_plan
from hypaware.maintain.report import Report
from hypaware.model import datasets
from hypaware.model.datasets import SEQ
from tests.light_lake import LightLake
from tests.light_life import DATASET, append, flush
from tests.lives import live
from tests.rows import rows as message_rows
from tests.unit.maintain.compacting import KeptSmallFiles, SmallFiles, due_now

POINTS = sorted(point.name for point in all_points() if point.name.startswith(("maintain.compact", "lake.secure")))
# The second time is in the second lot, after the first has landed.
KILLS = [
    (point, times)
    for point in POINTS
    for times in ((1, 2) if point.startswith("maintain.compact") or "HYP_SOAK" in os.environ else (1,))
]

COLD = date(2026, 11, 2)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> KeptSmallFiles:
    """Two cold days of claude and one of codex, and a tail of each."""

    def make(made: SmallFiles) -> None:
        made.commit_each([("claude", 0), ("claude", 1), ("codex", 0)], times=3)
        made.commit_each([("claude", 5), ("codex", 5)], times=4)

    return KeptSmallFiles(tmp_path_factory.mktemp("small-files"), make)


@pytest.fixture
def lake(kept: KeptSmallFiles) -> SmallFiles:
    return kept.as_made()


def cold_codex(lake: SmallFiles) -> DataFile:
    return next(file for file in lake.files() if file.source == "codex" and file.day == COLD)


@pytest.mark.hazard(37)
def test_small_files_become_one_and_a_second_run_finds_nothing(lake: SmallFiles) -> None:
    before = lake.rows()
    assert due_now(lake.home) == [DATASET]
    report = lake.compact()
    assert (report.files_before, report.files_after, report.partitions_compacted) == (17, 11, 3)
    assert report.as_json()["reason"] == (
        "compacted 2 days of claude: 6 files became 2; compacted 1 day of codex: 3 files became 1"
    )
    assert lake.rows() == before, "rows keep their sequences, row ids and flush ids"
    assert due_now(lake.home) == []
    at = lake.entry
    assert lake.compact().as_json()["reason"] == "nothing to do"
    assert lake.entry == at, "nothing was committed"


def test_with_force_the_tail_goes_too_and_that_ends_as_well(lake: SmallFiles) -> None:
    before = lake.rows()
    assert lake.compact(force=True).files_after == 5
    assert lake.compact(force=True).as_json()["reason"] == "nothing to do"
    assert lake.compact().as_json()["reason"] == "nothing to do"
    assert lake.rows() == before


def test_rewritten_files_are_in_order_and_say_what_is_in_them(lake: SmallFiles) -> None:
    lake.compact()
    for file in lake.files():
        seqs = pq.read_table(file.path, columns=[SEQ]).column(SEQ).to_pylist()
        assert seqs == sorted(seqs)
        assert (file.min_seq, file.max_seq, file.rows) == (seqs[0], seqs[-1], len(seqs))
        assert file.path.stat().st_mode & 0o777 == 0o600
    (kept,) = [cold_codex(lake)]
    assert kept.path.name.startswith("keep-")
    assert b"hyp.row-group-bytes" in pq.read_metadata(kept.path).metadata


def test_a_read_since_a_sequence_still_skips_what_it_does_not_need(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one file of a day, row groups must do what files did before."""
    monkeypatch.setattr(rewrite, "_GROUP_BYTES", 4_000)
    lake = SmallFiles(home)
    lake.commit(0, rows=60, times=4)
    lake.commit(3, times=4)
    lake.compact()
    (file,) = (file for file in lake.files() if file.day == COLD)
    groups = row_groups.of_file(file.path)
    assert len(groups) > 5
    assert all(one.max_seq is not None and one.max_seq < (two.min_seq or 0) for one, two in pairwise(groups))
    last = lake.rows()[239][SEQ]
    found = since.between(home, DATASET, "claude", last - 5, last)
    assert (len(found.rows), found.rows.column(SEQ).to_pylist()) == (5, list(range(last - 4, last + 1)))
    assert found.scanned <= 5 + 2 * 240 // len(groups)


def test_a_large_day_becomes_files_of_the_target_size_and_ends(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut into several tasks, each leaves a small file; the next pass of the same run takes those."""
    lake = SmallFiles(home)
    lake.commit(0, rows=4, times=6)
    lake.commit(3, times=4)
    size = lake.files()[0].bytes
    before = lake.rows()
    monkeypatch.setattr(compact_plan, "_TASK_BYTES", 3 * size)
    report = lake.compact()
    assert (report.files_before, report.files_after) == (10, 5)
    assert report.reasons == ["compacted 1 day of claude: 6 files became 1"]
    assert lake.compact().as_json()["reason"] == "nothing to do"
    assert lake.rows() == before


@pytest.mark.hazard(38)
def test_a_day_that_cannot_be_read_is_told_and_the_others_go_on(lake: SmallFiles) -> None:
    before = lake.rows()
    bad = cold_codex(lake)
    held = bad.path.read_bytes()
    bad.path.write_bytes(b"PAR1" + bytes(len(held) - 8) + b"PAR1")
    report = lake.compact()
    (error,) = report.errors
    assert error.startswith(f"{DATASET}, codex on 2026-11-02 is not compacted")
    assert bad.path.name in error
    assert report.partitions_compacted == 2
    assert report.files_after == 13
    bad.path.write_bytes(held)
    assert lake.rows() == before
    assert len(lake.on_disk()) == 13 + 6, "nothing is left of the failed one"


class _Tampered(LightLake):
    """Its tasks can be made to go wrong."""

    def __init__(self, home: Home, spoil: Callable[[Task, Built | BuildFailure], Built | BuildFailure]) -> None:
        super().__init__(home)
        self._spoil = spoil
        self.lots: list[int] = []

    def run(self, tasks: Any) -> list[Built | BuildFailure]:
        self.lots.append(len(tasks))
        return [self._spoil(task, result) for task, result in zip(tasks, super().run(tasks), strict=True)]


def _compact_with(lake: SmallFiles, tampered: LightLake, **how: Any) -> Report:
    report = Report(DATASET)
    with lake.work(**how) as work:
        compact.run(replace(work, lake=tampered), report)
    tampered.close()
    return report


@pytest.mark.hazard(38)
def test_rows_that_do_not_add_up_are_not_committed(lake: SmallFiles) -> None:
    def lose_a_row(task: Any, result: Built | BuildFailure) -> Built | BuildFailure:
        assert isinstance(result, Built)
        if task.rewriting.source == "codex":
            note: Rewritten = result.notes[0]
            return replace(result, notes=[replace(note, rows_out=note.rows_out - 1)])
        return result

    before = lake.rows()
    report = _compact_with(lake, _Tampered(lake.home, lose_a_row))
    (error,) = report.errors
    assert "codex on 2026-11-02 is not compacted: 9 rows should have been rewritten" in error
    assert report.partitions_compacted == 2
    assert lake.rows() == before
    assert len(lake.on_disk()) == 19


@pytest.mark.hazard(38)
def test_a_task_that_takes_the_others_down_is_found_out(lake: SmallFiles) -> None:
    """Spark says the same of every task of a lot when a worker dies."""
    tampered = _Tampered(lake.home, lambda _task, result: result)

    def die(tasks: Any) -> list[Built | BuildFailure]:
        tampered.lots.append(len(tasks))
        if any(task.rewriting.source == "codex" for task in tasks):
            return [BuildFailure("a Spark task died")] * len(tasks)
        return LightLake.run(tampered, tasks)

    tampered.run = die  # type: ignore[method-assign]
    report = _compact_with(lake, tampered)
    assert (report.errors, report.partitions_compacted) == (
        [f"{DATASET}, codex on 2026-11-02 is not compacted: a Spark task died"],
        2,
    )


def test_where_nothing_can_be_written_it_stops_and_says_so_once(lake: SmallFiles) -> None:
    full = _Tampered(lake.home, lambda _task, _result: BuildFailure("OSError: no space left", surroundings=True))
    with pytest.raises(errors.Retryable, match="compaction has stopped: OSError: no space left"):
        _compact_with(lake, full)


def test_a_file_that_somebody_else_has_removed_meanwhile_is_no_end(lake: SmallFiles) -> None:
    stolen = False

    def steal(_task: Task, result: Built | BuildFailure) -> Built | BuildFailure:
        nonlocal stolen
        if not stolen:
            stolen = True
            gone = cold_codex(lake)
            with closing(LightLake(lake.home)) as other:
                other.table(datasets.get(DATASET)).change(Change("retain", [gone]))
        return result

    before = lake.rows()
    report = _compact_with(lake, _Tampered(lake.home, steal))
    assert len(report.errors) == 3
    assert all("is not part of the table any more" in error for error in report.errors)
    assert len(lake.rows()) == len(before) - 3
    assert len(lake.on_disk()) == 17, "the new files are gone again"


def test_a_budget_ends_it_between_lots_and_the_rest_is_counted(
    lake: SmallFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact_plan, "_LOT_TASKS", 1)
    report = lake.compact(until=0.0)
    assert (report.partitions_compacted, report.partitions_left, report.files_after) == (0, 3, 17)
    assert report.reasons == ["3 more are due, no time was left for them"]
    assert lake.compact().partitions_left == 0


def test_cancelled_between_lots_what_was_done_stays_done(lake: SmallFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact_plan, "_LOT_TASKS", 1)
    before, asked = lake.rows(), 0

    def cancel_at_the_second() -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise errors.Cancelled

    with pytest.raises(errors.Cancelled):
        lake.compact(check_cancelled=cancel_at_the_second)
    assert len(lake.files()) == 15
    assert lake.rows() == before
    assert len(lake.on_disk()) == 18, "nothing lies about"


def test_a_dry_run_says_what_it_would_do_and_does_nothing(lake: SmallFiles) -> None:
    at, disk = lake.entry, lake.on_disk("*")
    report = lake.compact(dry_run=True)
    first, second = report.reasons
    assert first.startswith("would compact 2 days of claude: 6 files, ")
    assert second.startswith("would compact 1 day of codex: 3 files, ")
    assert (report.partitions_left, report.files_after) == (3, 17)
    assert (lake.entry, lake.on_disk("*")) == (at, disk)


def test_progress_is_told_lot_by_lot(lake: SmallFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact_plan, "_LOT_TASKS", 2)
    told: list[tuple[int, int]] = []
    lake.compact(progress=lambda _message, done, total: told.append((done, total)))
    assert told == [(0, 3), (2, 3)]


def test_the_span_says_what_became_of_files_and_bytes(
    lake: SmallFiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HYP_DEV_TELEMETRY", "1")
    telemetry.configure(lake.home)
    try:
        lake.compact()
    finally:
        telemetry.close()
    (trace,) = lake.home.telemetry.glob("traces-*.jsonl")
    told = trace.read_text()
    assert '"maintain.compact"' in told
    assert '"files_before"' in told
    assert '"hyp_dataset"' in told


@pytest.mark.hazard(36)
def test_rows_that_are_flushed_while_it_rewrites_are_there_afterwards(lake: SmallFiles) -> None:
    before = lake.rows()

    def flush_meanwhile(_task: Task, result: Built | BuildFailure) -> Built | BuildFailure:
        lake.commit(0, source="codex")
        return result

    report = _compact_with(lake, _Tampered(lake.home, flush_meanwhile))
    assert report.errors == []
    after = lake.rows()
    assert after[: len(before)] == before
    assert len(after) > len(before)
    assert len({row[SEQ] for row in after}) == len(after)


@pytest.mark.hazard(36)
@pytest.mark.parametrize(("point", "times"), KILLS)
def test_killed_at_any_point_no_row_is_lost_or_doubled(
    lake: SmallFiles, point: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact_plan, "_LOT_TASKS", 1)
    before = lake.rows()
    died = not live(lambda: (lake.compact(), None)[1], crash_at=f"{point}:{times}")
    assert died or times > 1
    assert lake.rows() == before
    append(lake.home, message_rows(3, start=5_000))
    flush(lake.home)
    lake.compact()
    lake.expire(force=True)
    assert lake.rows()[: len(before)] == before
    assert lake.on_disk() == {file.path for file in lake.files()}, "leftovers are gone"
    assert due_now(lake.home) == []


def test_delete_files_of_another_program_stop_it(lake: SmallFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewritten without them, deleted rows would come back."""
    real = metadata.manifests
    monkeypatch.setattr(metadata, "manifests", lambda at: [replace(each, deletes=True) for each in real(at)])
    with pytest.raises(errors.LakeError, match="delete files"):
        lake.compact()
