"""Row limits, combined batches, and the files of large results."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from hypaware.query.run import RowLimit
from hypaware.query.spill import combine_batches as join
from hypaware.query.spill import write_partition


def batches(*sizes: int) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_arrays([pa.array(range(size), pa.int64())], names=["n"]) for size in sizes]


@pytest.mark.parametrize(
    ("sizes", "max_rows", "rows", "truncated"),
    [
        ((3, 3), None, 6, False),
        ((3, 3), 6, 6, False),
        ((3, 3), 5, 5, True),
        ((3, 3), 3, 3, True),
        ((3, 0), 3, 3, False),
        ((), 3, 0, False),
    ],
)
def test_a_row_limit_knows_whether_rows_were_left_out(
    sizes: tuple[int, ...], max_rows: int | None, rows: int, truncated: bool
) -> None:
    cut = RowLimit(batches(*sizes), max_rows)

    assert sum(batch.num_rows for batch in cut) == rows
    assert (cut.rows, cut.truncated) == (rows, truncated)


def test_small_batches_are_combined_in_order_until_they_are_large_enough() -> None:
    joined = list(join(batches(*[64] * 40)))

    assert [batch.num_rows for batch in joined] == [1024, 1024, 512]
    assert [n for batch in joined for n in batch["n"].to_pylist()] == [*range(64)] * 40
    assert list(join([])) == []


def test_long_rows_fill_a_batch_sooner() -> None:
    long = pa.RecordBatch.from_arrays([pa.array(["x" * 3_000_000])], names=["text"])

    assert [batch.num_rows for batch in join([long] * 5)] == [2, 2, 1]


def test_a_partition_is_spilled_to_one_private_file(tmp_path: Path) -> None:
    first, second = batches(2000, 2)
    messages = [batch.serialize().to_pybytes() for batch in (first, second)]

    assert list(write_partition(str(tmp_path), first.schema.serialize().to_pybytes(), 7, messages)) == [2002]

    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
        assert reader.read_all().to_batches() == [first, second]


def test_an_empty_partition_leaves_no_file(tmp_path: Path) -> None:
    assert list(write_partition(str(tmp_path), pa.schema([]).serialize().to_pybytes(), 0, [])) == [0]
    assert list(tmp_path.iterdir()) == []


def test_spilled_files_sort_in_the_order_of_their_partitions(tmp_path: Path) -> None:
    (batch,) = batches(1)
    for index in (10, 9, 100):
        list(write_partition(str(tmp_path), batch.schema.serialize().to_pybytes(), index, [batch.serialize()]))

    assert [int(path.stem) for path in sorted(tmp_path.iterdir())] == [9, 10, 100]
