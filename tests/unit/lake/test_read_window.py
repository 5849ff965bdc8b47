"""Windows of reads: never more rows than requested, always progress, gaps and sparse sources in one step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypaware.iceberg.metadata import DataFile
from hypaware.lake import read
from hypaware.lake.build import OutputPaths, PartitionWriter
from hypaware.lake.schema import table_columns
from hypaware.model.datasets import SEQ, coerce_row
from tests.support.rows import MESSAGES, rows

_PLENTY = 1 << 40


def file_of(
    path: Path, seqs: Sequence[int | None], group_rows: int = 1 << 20, row_bytes: int = 0, stats: bool = True
) -> DataFile:
    """Write a file with these sequences and return its manifest entry."""
    rows = pa.table({SEQ: pa.array(seqs, pa.int64()), "text": [random.randbytes(row_bytes) for _ in seqs]})
    pq.write_table(rows, path, row_group_size=group_rows, write_statistics=stats)
    numbered = [seq for seq in seqs if seq is not None]
    return DataFile(
        path=path,
        bytes=path.stat().st_size,
        rows=len(seqs),
        source="claude",
        max_seq=max(numbered) if stats and numbered else None,
        min_seq=min(numbered) if stats and numbered else None,
        sequenced=len(numbered),
    )


def steps(files: Sequence[DataFile], since: int, until: int, rows: int, bytes: int = _PLENTY) -> list[int]:
    ends = []
    while since < until:
        since = read.find_window_end(files, since, until, rows=rows, bytes=bytes)
        ends.append(since)
    return ends


def test_rows_within_the_limit_are_one_window(tmp_path: Path) -> None:
    files = [file_of(tmp_path / "a.parquet", range(1, 101)), file_of(tmp_path / "b.parquet", range(101, 201))]
    assert steps(files, 0, 200, rows=200) == [200]


def test_a_dense_file_is_split_at_the_row_limit(tmp_path: Path) -> None:
    files = [file_of(tmp_path / "a.parquet", range(1, 1001))]
    assert steps(files, 0, 1000, rows=300) == [300, 600, 900, 1000]
    assert steps(files, 850, 1000, rows=300) == [1000]


def test_a_sparse_source_is_one_window(tmp_path: Path) -> None:
    """100 rows over ten million sequences: unused sequences do not make the window smaller."""
    files = [
        file_of(tmp_path / f"{part}.parquet", range(part * 10**6, (part + 1) * 10**6, 10**5)) for part in range(10)
    ]
    assert steps(files, 0, 10**7, rows=100) == [10**7]


def test_a_gap_of_any_width_costs_nothing(tmp_path: Path) -> None:
    files = [file_of(tmp_path / "a.parquet", range(1, 11)), file_of(tmp_path / "b.parquet", range(10**12, 10**12 + 10))]
    assert steps(files, 0, 2 * 10**12, rows=15) == [10**12 + 4, 2 * 10**12]


def test_without_files_the_window_reaches_the_end() -> None:
    assert steps([], 5, 10**9, rows=10) == [10**9]
    assert read.find_window_end([], 9, 9, rows=10, bytes=10) == 9


def test_rows_at_the_start_of_a_wide_file_do_not_exceed_the_window(tmp_path: Path) -> None:
    """Linear interpolation would take a tenth of the range for a tenth of the rows, and read nearly all of them."""
    crowded = [*range(1, 10_000), 1_000_000]
    files = [file_of(tmp_path / "a.parquet", crowded, group_rows=500)]
    since = 0
    for end in steps(files, 0, 1_000_000, rows=1_000):
        assert sum(since < seq <= end for seq in crowded) <= 1_000
        since = end
    assert since == 1_000_000


def test_the_row_groups_of_a_split_file_locate_its_rows(tmp_path: Path) -> None:
    """Interleaved with nine other sources, a window still contains nearly the maximum."""
    every_tenth = range(10, 100_010, 10)
    files = [file_of(tmp_path / "a.parquet", every_tenth, group_rows=100)]
    ends = steps(files, 0, 100_000, rows=1_000)
    assert len(ends) <= 12, "10,000 rows in windows of 1,000; at most a group of 100 is overestimated"


def test_large_rows_make_the_window_smaller_but_never_empty(tmp_path: Path) -> None:
    files = [file_of(tmp_path / "a.parquet", range(1, 11), row_bytes=100_000)]
    assert steps(files, 0, 10, rows=1_000, bytes=10_000) == list(range(1, 11))


def test_bytes_bound_the_window_as_rows_do(tmp_path: Path) -> None:
    """The rows of the first file are ten times as large."""
    files = [
        file_of(tmp_path / "a.parquet", range(1, 101), group_rows=20, row_bytes=10_000),
        file_of(tmp_path / "b.parquet", range(101, 201), group_rows=20, row_bytes=1_000),
    ]
    assert read.find_window_end(files, 100, 200, rows=1_000, bytes=150_000) == 200
    end = read.find_window_end(files, 0, 200, rows=1_000, bytes=500_000)
    assert 40 <= end <= 50, "50 rows of 10,000 bytes, plus the overhead of the file"


def test_a_text_that_every_row_repeats_counts_with_its_size_in_memory(tmp_path: Path) -> None:
    """The text is stored once per row group but loaded once per row: 20,000 rows of 28 KB would be half a gigabyte."""
    ids = {column.name: place for place, column in enumerate(table_columns(MESSAGES), 1)}
    writer = PartitionWriter(MESSAGES, OutputPaths(tmp_path, "flush", 1), ids)
    for seq, raw in enumerate(rows(6_000, system_text="you are a helpful assistant " * 1_000), 1):
        writer.add(coerce_row(MESSAGES, raw, "gateway"), seq)
    (built,) = writer.close()
    assert built.bytes < 2 << 20
    files = [DataFile(built.path, built.bytes, built.rows, "claude", built.max_seq, 1, built.rows)]
    ends = steps(files, 0, 6_000, rows=50_000)
    assert max(end - since for since, end in zip([0, *ends], ends, strict=False)) * 28_000 <= 72 << 20
    assert len(ends) <= 4


def test_a_file_without_statistics_can_have_its_rows_anywhere(tmp_path: Path) -> None:
    files = [file_of(tmp_path / "a.parquet", range(501, 601), stats=False)]
    ends = steps(files, 0, 1_000, rows=50)
    assert max(end - since for since, end in zip([0, *ends], ends, strict=False)) <= 950
    assert ends[-1] == 1_000


def test_rows_without_a_sequence_do_not_count_in_a_window(tmp_path: Path) -> None:
    files = [file_of(tmp_path / "a.parquet", [None] * 500), file_of(tmp_path / "b.parquet", [None] * 50 + [5, 6, 7])]
    assert steps(files, 0, 10, rows=3) == [10]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_windows_cover_every_row_once_and_never_exceed_the_limit(tmp_path: Path, data: st.DataObject) -> None:
    """Any files, sorted or not, overlapping or not, with row groups of any size."""
    seqs = data.draw(st.lists(st.integers(1, 400), unique=True, max_size=80))
    owner = data.draw(st.lists(st.integers(0, 3), min_size=len(seqs), max_size=len(seqs)))
    group_rows = data.draw(st.integers(1, 20))
    rows = data.draw(st.integers(1, 30))
    folder = Path(mkdtemp(dir=tmp_path))
    files = [
        file_of(folder / f"{part}.parquet", held, group_rows)
        for part in range(4)
        if (held := [seq for seq, owned_by in zip(seqs, owner, strict=True) if owned_by == part])
    ]
    since = 0
    for end in steps(files, 0, 400, rows=rows):
        assert end > since
        assert sum(since < seq <= end for seq in seqs) <= rows
        since = end
    assert since == 400
