"""Rewriting data files: the same rows, sorted, in files and row groups of bounded size, even if inputs overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypaware.errors import LakeError
from hypaware.lake import rewrite
from hypaware.lake.build import OutputPaths
from hypaware.lake.rewrite import RewriteBalance, RewriteTask
from hypaware.lake.schema import file_schema, parquet_writer, table_columns
from hypaware.model.datasets import SEQ
from tests.support.rows import DATASET, MESSAGES

FIELD_IDS = {column.name: index for index, column in enumerate(table_columns(MESSAGES), 1)}
SCHEMA = file_schema(MESSAGES, FIELD_IDS)
DAY = "2026-11-02"


def write(path: Path, groups: Sequence[Sequence[int | None]], schema: pa.Schema = SCHEMA, text: str = "x") -> Path:
    """Write a data file with these sequences in its row groups, and values for required columns and the text."""
    with parquet_writer(path, schema) as writer:
        for seqs in groups:
            columns = [_column(field, seqs, text) for field in schema]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=max(1, len(seqs)))
    return path


def _column(field: pa.Field, seqs: Sequence[int | None], text: str) -> pa.Array:
    if field.name == SEQ:
        return pa.array(seqs, pa.int64())
    if field.name == "content_text":
        return pa.array([f"{seq}{text}" for seq in seqs], pa.string())
    if not field.nullable:
        return pa.array([0 if not pa.types.is_string(field.type) else "s"] * len(seqs)).cast(field.type)
    return pa.nulls(len(seqs), field.type)


def task(folder: Path, paths: Sequence[Path], **options: Any) -> RewriteTask:
    return RewriteTask(
        DATASET, "claude", DAY, tuple(paths), OutputPaths(folder / "data", "keep-1", 1), FIELD_IDS, **options
    )


def seqs_of(path: Path) -> list[int | None]:
    found: list[int | None] = pq.read_table(path, columns=[SEQ]).column(SEQ).to_pylist()
    return found


def test_overlapping_files_are_merged_in_order(tmp_path: Path) -> None:
    one = write(tmp_path / "1.parquet", [[1, 5, 9], [10, 12]])
    two = write(tmp_path / "2.parquet", [[2, 3, 11], [4, 20]])
    built = task(tmp_path, [two, one]).run()
    (file,) = built.files
    assert seqs_of(file.path) == [1, 2, 3, 4, 5, 9, 10, 11, 12, 20]
    assert (file.rows, file.max_seq, file.source, file.day) == (10, 20, "claude", DAY)
    assert built.reports == [RewriteBalance(10, 10, 77, 77)]
    assert built.reports[0].balanced


def test_files_and_row_groups_have_bounded_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite, "_GROUP_BYTES", 20_000)
    paths = [write(tmp_path / f"{n}.parquet", [range(100 * n, 100 * n + 100)], text="y" * 50) for n in range(10)]
    built = task(tmp_path, paths, target_bytes=10_000).run()
    assert len(built.files) > 3
    assert all(file.bytes >= 10_000 for file in built.files[:-1])
    found = [seqs_of(file.path) for file in built.files]
    assert [seq for seqs in found for seq in seqs] == list(range(1000))
    for file in built.files:
        footer = pq.read_metadata(file.path)
        sizes = footer.metadata[b"hyp.row-group-bytes"].split(b",")
        assert len(sizes) == footer.num_row_groups
        assert all(int(size) <= 40_000 for size in sizes)


def test_a_column_newer_than_a_file_is_null_for_its_rows(tmp_path: Path) -> None:
    older = pa.schema([field for field in SCHEMA if field.name != "git_branch"])
    old, new = write(tmp_path / "1.parquet", [[1, 2]], older), write(tmp_path / "2.parquet", [[3]])
    (file,) = task(tmp_path, [old, new]).run().files
    found = pq.read_table(file.path)
    assert found.column_names == SCHEMA.names
    assert found.column("git_branch").null_count == 3
    ids = {field.name: field.metadata[b"PARQUET:field_id"] for field in found.schema}
    assert ids == {name: str(number).encode() for name, number in FIELD_IDS.items()}


def test_rows_without_a_sequence_are_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison with null is neither true nor false, so such rows could be dropped on both sides."""
    monkeypatch.setattr(rewrite, "_GROUP_BYTES", 1)
    paths = [write(tmp_path / "1.parquet", [[None, 4], [7]]), write(tmp_path / "2.parquet", [[5, None], [8, 9]])]
    built = task(tmp_path, paths).run()
    found = [seq for file in built.files for seq in seqs_of(file.path)]
    assert sorted(seq for seq in found if seq is not None) == [4, 5, 7, 8, 9]
    assert found.count(None) == 2


@dataclass(frozen=True)
class Odd:
    def select(self, rows: pa.Table) -> Any:
        return pc.equal(pc.bit_wise_and(rows.column(SEQ), 1), 1)


def test_excluded_rows_are_accounted_for(tmp_path: Path) -> None:
    path = write(tmp_path / "1.parquet", [range(1, 8)])
    built = task(tmp_path, [path], exclude=Odd()).run()
    assert seqs_of(built.files[0].path) == [2, 4, 6]
    assert built.reports == [RewriteBalance(7, 3, 28, 12, (1, 3, 5, 7))]
    assert built.reports[0].balanced
    assert not RewriteBalance(7, 3, 28, 12, (1, 3, 5)).balanced
    assert not RewriteBalance(2, 2, 5, 6).balanced, "the same number of rows, but different ones"


def test_no_file_is_written_if_all_rows_are_excluded(tmp_path: Path) -> None:
    built = task(tmp_path, [write(tmp_path / "1.parquet", [[1, 3]])], exclude=Odd()).run()
    assert built.files == []
    assert not list((tmp_path / "data").rglob("*.parquet"))


@pytest.mark.parametrize("damage", ["missing", "torn", "middle"])
def test_an_unreadable_file_is_named_and_nothing_is_left_behind(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewrite, "_GROUP_BYTES", 1)
    good = write(tmp_path / "1.parquet", [range(50), range(50, 100)])
    bad = write(tmp_path / "2.parquet", [range(100, 150), range(150, 200)])
    data = bad.read_bytes()
    if damage == "missing":
        bad.unlink()
    elif damage == "torn":
        bad.write_bytes(data[: len(data) // 2])
    else:
        bad.write_bytes(data[:4] + bytes(2_000) + data[2_004:])
    with pytest.raises(LakeError, match=r"2\.parquet cannot be read"):
        task(tmp_path, [good, bad]).run()
    assert not list((tmp_path / "data").rglob("*.parquet"))


@settings(max_examples=20)
@given(
    st.lists(st.lists(st.lists(st.integers(0, 10_000), max_size=12), min_size=1, max_size=3), min_size=1, max_size=4),
    st.integers(1, 3_000),
)
def test_any_files_are_rewritten_sorted_and_complete(
    tmp_path_factory: pytest.TempPathFactory, layout: list[list[list[int]]], group_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("any")
    paths = [write(folder / f"{index}.parquet", groups) for index, groups in enumerate(layout)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewrite, "_GROUP_BYTES", group_bytes)
        built = task(folder, paths, target_bytes=4_000).run()
    found = [seq for file in built.files for seq in seqs_of(file.path)]
    assert found == sorted(seq for groups in layout for group in groups for seq in group)
    assert built.reports[0].balanced
