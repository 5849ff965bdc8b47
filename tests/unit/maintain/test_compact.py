"""Compaction over a light lake: the same rows in fewer files, even after damage, cancellation or a kill."""

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
from hypaware.faults import list_crash_points
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.iceberg.metadata import DataFile
from hypaware.lake import parquet, rewrite
from hypaware.lake.build import BuildFailure, BuildResult, Task
from hypaware.lake.read import LakeRowReader
from hypaware.lake.rewrite import RewriteBalance
from hypaware.lake.table import TableChange
from hypaware.maintain import compact, compact_plan
from hypaware.maintain.context import MaintenanceReport
from hypaware.model import datasets
from hypaware.model.datasets import SEQ
from hypaware.testing.fault_injection import run_in_child
from tests.support.compaction_cases import PreparedSmallFiles, SmallFiles, due_now
from tests.support.light_home import DATASET, append, flush
from tests.support.light_lake import LightLake
from tests.support.rows import rows as message_rows

POINTS = sorted(
    point.name for point in list_crash_points() if point.name.startswith(("maintain.compact", "iceberg.fsync"))
)
# The second time is in the second batch, after the first is committed.
KILLS = [
    (point, times)
    for point in POINTS
    for times in ((1, 2) if point.startswith("maintain.compact") or "HYP_SOAK" in os.environ else (1,))
]

COLD = date(2026, 11, 2)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedSmallFiles:
    """Two cold days of claude and one of codex, and a tail of each."""

    def make(made: SmallFiles) -> None:
        made.commit_each([("claude", 0), ("claude", 1), ("codex", 0)], times=3)
        made.commit_each([("claude", 5), ("codex", 5)], times=4)

    return PreparedSmallFiles(tmp_path_factory.mktemp("small-files"), make)


@pytest.fixture
def lake(prepared: PreparedSmallFiles) -> SmallFiles:
    return prepared.restored()


def cold_codex(lake: SmallFiles) -> DataFile:
    return next(file for file in lake.files() if file.source == "codex" and file.day == COLD)


@pytest.mark.hazard(37)
def test_small_files_are_merged_and_a_second_run_finds_nothing(lake: SmallFiles) -> None:
    before = lake.rows()
    assert due_now(lake.home) == [DATASET]
    report = lake.compact()
    assert (report.files_before, report.files_after, report.partitions_compacted) == (17, 11, 3)
    assert report.as_json()["reason"] == (
        "compacted 2 days of claude: 6 files into 2; compacted 1 day of codex: 3 files into 1"
    )
    assert lake.rows() == before, "rows keep their sequences, row ids and flush ids"
    assert due_now(lake.home) == []
    entry = lake.entry
    assert lake.compact().as_json()["reason"] == "nothing to do"
    assert lake.entry == entry, "nothing was committed"


def test_force_compacts_the_tail_and_converges(lake: SmallFiles) -> None:
    before = lake.rows()
    assert lake.compact(force=True).files_after == 5
    assert lake.compact(force=True).as_json()["reason"] == "nothing to do"
    assert lake.compact().as_json()["reason"] == "nothing to do"
    assert lake.rows() == before


def test_rewritten_files_are_sorted_and_have_statistics(lake: SmallFiles) -> None:
    lake.compact()
    for file in lake.files():
        seqs = pq.read_table(file.path, columns=[SEQ]).column(SEQ).to_pylist()
        assert seqs == sorted(seqs)
        assert (file.min_seq, file.max_seq, file.rows) == (seqs[0], seqs[-1], len(seqs))
        assert file.path.stat().st_mode & 0o777 == 0o600
    (prepared,) = [cold_codex(lake)]
    assert prepared.path.name.startswith("keep-")
    assert b"hyp.row-group-bytes" in pq.read_metadata(prepared.path).metadata


def test_a_read_since_a_sequence_skips_row_groups(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one file per day, row groups must allow the skipping that separate files allowed before."""
    monkeypatch.setattr(rewrite, "_GROUP_BYTES", 4_000)
    lake = SmallFiles(home)
    lake.commit(0, rows=60, times=4)
    lake.commit(3, times=4)
    lake.compact()
    (file,) = (file for file in lake.files() if file.day == COLD)
    groups = parquet.read_row_groups(file.path)
    assert len(groups) > 5
    assert all(one.max_seq is not None and one.max_seq < (two.min_seq or 0) for one, two in pairwise(groups))
    last = lake.rows()[239][SEQ]
    found = LakeRowReader(home).page(DATASET, "claude", last - 5, last)
    assert (len(found.rows), found.rows.column(SEQ).to_pylist()) == (5, list(range(last - 4, last + 1)))
    assert found.scanned <= 5 + 2 * 240 // len(groups)


def test_a_large_day_converges_over_several_passes(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Split into several tasks, each leaves a small file; the next pass of the same run merges those."""
    lake = SmallFiles(home)
    lake.commit(0, rows=4, times=6)
    lake.commit(3, times=4)
    size = lake.files()[0].bytes
    before = lake.rows()
    monkeypatch.setattr(compact_plan, "_TASK_BYTES", 3 * size)
    report = lake.compact()
    assert (report.files_before, report.files_after) == (10, 5)
    assert report.reasons == ["compacted 1 day of claude: 6 files into 1"]
    assert lake.compact().as_json()["reason"] == "nothing to do"
    assert lake.rows() == before


@pytest.mark.hazard(38)
def test_an_unreadable_day_is_reported_and_the_others_are_compacted(lake: SmallFiles) -> None:
    before = lake.rows()
    damaged = cold_codex(lake)
    content = damaged.path.read_bytes()
    damaged.path.write_bytes(b"PAR1" + bytes(len(content) - 8) + b"PAR1")
    report = lake.compact()
    (error,) = report.errors
    assert error.startswith(f"{DATASET}: could not compact codex on 2026-11-02")
    assert damaged.path.name in error
    assert report.partitions_compacted == 2
    assert report.files_after == 13
    damaged.path.write_bytes(content)
    assert lake.rows() == before
    assert len(lake.on_disk()) == 13 + 6, "the files of the failed rewrite are removed"


class _Tampered(LightLake):
    """A lake whose task results can be changed."""

    def __init__(
        self, home: Home, change: Callable[[Task, BuildResult | BuildFailure], BuildResult | BuildFailure]
    ) -> None:
        super().__init__(home)
        self._change = change
        self.batches: list[int] = []

    def run(self, tasks: Any) -> list[BuildResult | BuildFailure]:
        self.batches.append(len(tasks))
        return [self._change(task, result) for task, result in zip(tasks, super().run(tasks), strict=True)]


def _compact_with(lake: SmallFiles, tampered: LightLake, **options: Any) -> MaintenanceReport:
    report = MaintenanceReport(DATASET)
    with lake.work(**options) as context:
        compact.compact_dataset(replace(context, lake=tampered), report)
    tampered.close()
    return report


@pytest.mark.hazard(38)
def test_a_rewrite_with_wrong_row_counts_is_not_committed(lake: SmallFiles) -> None:
    def lose_a_row(task: Any, result: BuildResult | BuildFailure) -> BuildResult | BuildFailure:
        assert isinstance(result, BuildResult)
        if task.rewriting.source == "codex":
            report_: RewriteBalance = result.reports[0]
            return replace(result, reports=[replace(report_, rows_out=report_.rows_out - 1)])
        return result

    before = lake.rows()
    report = _compact_with(lake, _Tampered(lake.home, lose_a_row))
    (error,) = report.errors
    assert "could not compact codex on 2026-11-02: row counts do not match: 9 rows expected" in error
    assert report.partitions_compacted == 2
    assert lake.rows() == before
    assert len(lake.on_disk()) == 19


@pytest.mark.hazard(38)
def test_a_task_that_kills_its_worker_is_identified(lake: SmallFiles) -> None:
    """If a worker dies, Spark reports the same failure for every task of the batch."""
    tampered = _Tampered(lake.home, lambda _task, result: result)

    def die(tasks: Any) -> list[BuildResult | BuildFailure]:
        tampered.batches.append(len(tasks))
        if any(task.rewriting.source == "codex" for task in tasks):
            return [BuildFailure("a Spark task died")] * len(tasks)
        return LightLake.run(tampered, tasks)

    tampered.run = die  # type: ignore[method-assign]
    report = _compact_with(lake, tampered)
    assert (report.errors, report.partitions_compacted) == (
        [f"{DATASET}: could not compact codex on 2026-11-02: a Spark task died"],
        2,
    )


def test_a_full_disk_stops_compaction_with_one_error(lake: SmallFiles) -> None:
    full = _Tampered(lake.home, lambda _task, _result: BuildFailure("OSError: no space left", is_environmental=True))
    with pytest.raises(errors.Retryable, match="compaction stopped: OSError: no space left"):
        _compact_with(lake, full)


def test_a_file_removed_by_another_commit_is_reported(lake: SmallFiles) -> None:
    removed = False

    def remove_file(_task: Task, result: BuildResult | BuildFailure) -> BuildResult | BuildFailure:
        nonlocal removed
        if not removed:
            removed = True
            file = cold_codex(lake)
            with closing(LightLake(lake.home)) as other:
                other.table(datasets.get(DATASET)).replace_files(TableChange("retain", [file]))
        return result

    before = lake.rows()
    report = _compact_with(lake, _Tampered(lake.home, remove_file))
    assert len(report.errors) == 3
    assert all("is not part of the table any more" in error for error in report.errors)
    assert len(lake.rows()) == len(before) - 3
    assert len(lake.on_disk()) == 17, "the new files are removed again"


def test_a_budget_ends_between_batches_and_the_rest_is_counted(
    lake: SmallFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact_plan, "_BATCH_TASKS", 1)
    report = lake.compact(deadline=0.0)
    assert (report.partitions_compacted, report.partitions_left, report.files_after) == (0, 3, 17)
    assert report.reasons == ["3 more partitions are due, but the time was up"]
    assert lake.compact().partitions_left == 0


def test_cancellation_between_batches_keeps_committed_work(lake: SmallFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact_plan, "_BATCH_TASKS", 1)
    before, checks = lake.rows(), 0

    def cancel_at_the_second() -> None:
        nonlocal checks
        checks += 1
        if checks == 2:
            raise errors.Cancelled

    with pytest.raises(errors.Cancelled):
        lake.compact(check_cancelled=cancel_at_the_second)
    assert len(lake.files()) == 15
    assert lake.rows() == before
    assert len(lake.on_disk()) == 18, "no file is left behind"


def test_a_dry_run_reports_and_changes_nothing(lake: SmallFiles) -> None:
    entry, disk = lake.entry, lake.on_disk("*")
    report = lake.compact(dry_run=True)
    first, second = report.reasons
    assert first.startswith("would compact 2 days of claude: 6 files, ")
    assert second.startswith("would compact 1 day of codex: 3 files, ")
    assert (report.partitions_left, report.files_after) == (3, 17)
    assert (lake.entry, lake.on_disk("*")) == (entry, disk)


def test_progress_is_reported_per_batch(lake: SmallFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact_plan, "_BATCH_TASKS", 2)
    messages: list[tuple[int, int]] = []
    lake.compact(progress=lambda _message, done, total: messages.append((done, total)))
    assert messages == [(0, 3), (2, 3)]


def test_the_span_has_file_and_byte_counts(lake: SmallFiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HYP_DEV_TELEMETRY", "1")
    telemetry.configure(lake.home.telemetry)
    try:
        lake.compact()
    finally:
        telemetry.close()
    (trace,) = lake.home.telemetry.glob("traces-*.jsonl")
    messages = trace.read_text()
    assert '"maintain.compact"' in messages
    assert '"files_before"' in messages
    assert '"hyp_dataset"' in messages


@pytest.mark.hazard(36)
def test_rows_flushed_during_a_rewrite_are_kept(lake: SmallFiles) -> None:
    before = lake.rows()

    def flush_during_rewrite(_task: Task, result: BuildResult | BuildFailure) -> BuildResult | BuildFailure:
        lake.commit(0, source="codex")
        return result

    report = _compact_with(lake, _Tampered(lake.home, flush_during_rewrite))
    assert report.errors == []
    after = lake.rows()
    assert after[: len(before)] == before
    assert len(after) > len(before)
    assert len({row[SEQ] for row in after}) == len(after)


@pytest.mark.hazard(36)
@pytest.mark.parametrize(("point", "times"), KILLS)
def test_a_kill_at_any_point_loses_or_duplicates_no_row(
    lake: SmallFiles, point: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact_plan, "_BATCH_TASKS", 1)
    before = lake.rows()
    was_killed = not run_in_child(lambda: (lake.compact(), None)[1], crash_at=f"{point}:{times}")
    assert was_killed or times > 1
    assert lake.rows() == before
    append(lake.home, message_rows(3, start=5_000))
    flush(lake.home)
    lake.compact()
    lake.expire(force=True)
    assert lake.rows()[: len(before)] == before
    assert lake.on_disk() == {file.path for file in lake.files()}, "leftover files are removed"
    assert due_now(lake.home) == []


def test_delete_files_of_another_program_stop_compaction(lake: SmallFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewrite that ignores them would bring deleted rows back."""
    real = metadata.read_manifests
    monkeypatch.setattr(
        metadata, "read_manifests", lambda snapshot: [replace(each, deletes=True) for each in real(snapshot)]
    )
    with pytest.raises(errors.LakeError, match="delete files"):
        lake.compact()
