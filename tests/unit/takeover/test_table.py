"""A table of the original read as files: which metadata, which files, which rows of them are gone."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from hypaware.takeover import deletes, table
from hypaware.takeover.table import CacheDamaged
from tests.unit.takeover.original_cache import DATASET, SAMPLE, Builder, row
from tests.unit.takeover.vectors import vector


def rows(count: int) -> list[dict[str, object]]:
    return [row(number) for number in range(count)]


def test_the_sample_is_read_where_it_lies_now() -> None:
    found = table.opened(SAMPLE / "datasets" / DATASET / "source=claude" / "table")
    assert sum(file.rows for file in found.files) == 1481
    assert all(file.path.is_file() and file.bytes == file.path.stat().st_size for file in found.files)
    assert found.columns[1] == "gateway_id"
    assert found.columns[57] == "_hyp_ingest_seq"


@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.parametrize(
    "positions",
    [
        {3},
        set(range(100, 9000)),
        {1, 5, 70_000, 70_001, 2**32 + 7},
        set(random.Random(1).sample(range(300_000), 60_000)),
        {at for block in range(6) for at in range(block << 16, (block << 16) + 50)},
    ],
)
def test_a_deletion_vector_gives_the_positions_that_went_in(tmp_path: Path, positions: set[int], runs: bool) -> None:
    blob = vector(positions, runs=runs)
    (tmp_path / "v").write_bytes(b"PFA1" + blob + b"more")
    assert set(deletes.in_vector(tmp_path / "v", 4, len(blob))) == positions


def test_a_damaged_deletion_vector_is_refused(tmp_path: Path) -> None:
    blob = bytearray(vector({1, 2, 3}))
    blob[-6] ^= 1
    (tmp_path / "v").write_bytes(blob)
    for size in (len(blob), len(blob) - 3, 2):
        with pytest.raises(ValueError, match="deletion vector"):
            list(deletes.in_vector(tmp_path / "v", 0, size))


def test_deleted_rows_are_gone_whichever_way_they_were_deleted(tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    first, second = builder.add(rows(5), range(5)), builder.add(rows(3), range(3))
    builder.delete(first, vector({0, 4}), 2)
    builder.delete_by_file([(second, 1), (first, 2)])
    builder.commit()
    found = {file.name: file for file in table.opened(builder.folder).files}
    assert found[first].deleted == {0, 2, 4}
    assert found[second].deleted == {1}
    assert [file.rows for file in found.values()] == [2, 2]


def test_rows_deleted_by_their_values_stop_the_reading(tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    builder.add(rows(2), range(2))
    builder.delete_by_value()
    builder.commit()
    with pytest.raises(CacheDamaged, match="deletes rows by their values"):
        _ = table.opened(builder.folder).files


def test_the_newest_metadata_counts_also_where_the_hint_lags(tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    builder.add(rows(2), range(2))
    builder.commit()
    builder.add(rows(3), range(2, 5))
    builder.commit()
    hint = builder.folder / "metadata" / "version-hint.text"
    hint.write_text("1")
    assert len(table.opened(builder.folder).files) == 2
    hint.write_text("3")
    with pytest.raises(CacheDamaged, match=r"has no v3\.metadata\.json"):
        table.opened(builder.folder)


def test_torn_metadata_and_paths_out_of_the_table_are_refused(tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    builder.add(rows(2), range(2))
    builder.commit()
    path = builder.folder / "metadata" / "v1.metadata.json"
    whole = path.read_text()
    for changed, why in (
        (whole[: len(whole) // 2], "cannot be read"),
        ("[]", "no table's metadata"),
        (whole.replace("snap-1.avro", "../../../../secret"), "outside of its table"),
        (whole.replace("snap-1.avro", "snap-9.avro"), "cannot be read: FileNotFoundError"),
        (json.dumps({**json.loads(whole), "current-snapshot-id": 7}), "a snapshot that it does not have"),
    ):
        path.write_text(changed)
        with pytest.raises(CacheDamaged, match=why):
            _ = table.opened(builder.folder).files


def test_a_table_without_a_snapshot_has_no_files(tmp_path: Path) -> None:
    builder = Builder(tmp_path).commit()
    path = builder.folder / "metadata" / "v1.metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "current-snapshot-id": -1}))
    assert table.opened(builder.folder).files == ()
