"""The files of a build: durable when it returns, none left if one is not, dictionaries where values repeat."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

import pyarrow.parquet as pq
import pytest

from hypaware.home import durable_files
from hypaware.lake.build import BuildFailure, BuildResult, BuildSettings, SegmentSlice, SegmentTask, run_catching
from hypaware.model.datasets import INTERNAL, coerce_row
from hypaware.spool import segments
from tests.support.rows import DATASET, MESSAGES, rows

_SOURCES = 12


@pytest.fixture
def task(tmp_path: Path) -> SegmentTask:
    return make_task(tmp_path, _SOURCES)


def make_task(tmp_path: Path, files: int) -> SegmentTask:
    """Return a build of as many files, in each of which are four rows."""
    sources = [f"client-{number}" for number in range(files)]
    named = zip(rows(4 * files), 4 * sources, strict=True)
    coerced = [coerce_row(MESSAGES, {**row, "client_name": name}, "gw-1") for row, name in named]
    segment = tmp_path / "segment"
    segment.write_bytes(segments.encode_lines(coerced, 0))
    columns = [column.name for column in MESSAGES.columns] + list(INTERNAL)
    ids = {name: number for number, name in enumerate(columns, 1)}
    settings = BuildSettings(DATASET, "flush", tmp_path / "data", ids)
    return SegmentTask(settings, (SegmentSlice("segment", segment, 1, 0, len(coerced)),))


def test_every_file_of_a_build_is_durable_when_it_returns(task: SegmentTask, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, lock, fsync = set[Path](), Lock(), durable_files.fsync_file

    def note(path: Path) -> None:
        fsync(path)
        with lock:
            synced.add(path)

    monkeypatch.setattr(durable_files, "fsync_file", note)
    built = task.run()
    assert len(built.files) == _SOURCES
    assert synced == {file.path for file in built.files}
    assert [file.bytes for file in built.files] == [file.path.stat().st_size for file in built.files]


def test_a_build_of_more_files_than_may_be_open_has_all_rows(tmp_path: Path) -> None:
    built = make_task(tmp_path, 150).run()
    # A file is finished early if too many are open, and another one takes the rest of its rows.
    assert len(built.files) >= 150
    assert sum(pq.read_metadata(file.path).num_rows for file in built.files) == 4 * 150


@pytest.mark.parametrize("failing", [1, 7, _SOURCES])
def test_a_build_that_cannot_make_a_file_durable_fails_and_leaves_none(
    task: SegmentTask, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    calls, lock, fsync = [0], Lock(), durable_files.fsync_file

    def fail_once(path: Path) -> None:
        with lock:
            calls[0] += 1
            number = calls[0]
        if number == failing:
            raise OSError(5, "Input/output error")
        fsync(path)

    monkeypatch.setattr(durable_files, "fsync_file", fail_once)
    failed = run_catching(task)
    assert isinstance(failed, BuildFailure)
    assert failed.is_environmental
    assert [*task.settings.data_root.rglob("*.parquet")] == []


def test_only_columns_whose_values_repeat_are_stored_with_a_dictionary(task: SegmentTask) -> None:
    built = task.run()
    assert isinstance(built, BuildResult)
    group = pq.ParquetFile(built.files[0].path).metadata.row_group(0)
    chunks = {chunk.path_in_schema: chunk for chunk in map(group.column, range(group.num_columns))}
    with_dictionary = {name for name, chunk in chunks.items() if chunk.has_dictionary_page}
    assert {"role", "part_type", "session_id", "client_name"} <= with_dictionary
    assert with_dictionary.isdisjoint(["part_id", "message_id", "content_text", "_hyp_cache_row_id"])
