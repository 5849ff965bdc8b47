"""Reading a table of the original as files: current metadata, live files, deleted rows."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from hypaware.takeover import table
from hypaware.takeover.table import CacheDamaged
from tests.support.deletion_vectors import vector
from tests.support.original_cache import DATASET, SAMPLE, Builder, row


def rows(count: int) -> list[dict[str, object]]:
    return [row(number) for number in range(count)]


def test_the_sample_is_read_from_its_present_location() -> None:
    found = table.open_table(SAMPLE / "datasets" / DATASET / "source=claude" / "table")
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
        {position for block in range(6) for position in range(block << 16, (block << 16) + 50)},
    ],
)
def test_a_deletion_vector_yields_its_positions(tmp_path: Path, positions: set[int], runs: bool) -> None:
    blob = vector(positions, runs=runs)
    (tmp_path / "v").write_bytes(b"PFA1" + blob + b"more")
    assert set(table.read_deletion_vector(tmp_path / "v", 4, len(blob))) == positions


def test_a_damaged_deletion_vector_is_refused(tmp_path: Path) -> None:
    blob = bytearray(vector({1, 2, 3}))
    blob[-6] ^= 1
    (tmp_path / "v").write_bytes(blob)
    for size in (len(blob), len(blob) - 3, 2):
        with pytest.raises(ValueError, match="deletion vector"):
            list(table.read_deletion_vector(tmp_path / "v", 0, size))


def test_deletion_vectors_and_position_deletes_both_remove_rows(tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    first, second = builder.add(rows(5), range(5)), builder.add(rows(3), range(3))
    builder.delete(first, vector({0, 4}), 2)
    builder.delete_by_file([(second, 1), (first, 2)])
    builder.commit()
    found = {file.name: file for file in table.open_table(builder.folder).files}
    assert found[first].deleted == {0, 2, 4}
    assert found[second].deleted == {1}
    assert [file.rows for file in found.values()] == [2, 2]


def test_an_equality_delete_is_refused(tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    builder.add(rows(2), range(2))
    builder.delete_by_value()
    builder.commit()
    with pytest.raises(CacheDamaged, match="equality delete"):
        _ = table.open_table(builder.folder).files


def test_the_newest_metadata_is_used_even_if_the_hint_lags(tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    builder.add(rows(2), range(2))
    builder.commit()
    builder.add(rows(3), range(2, 5))
    builder.commit()
    hint = builder.folder / "metadata" / "version-hint.text"
    hint.write_text("1")
    assert len(table.open_table(builder.folder).files) == 2
    hint.write_text("3")
    with pytest.raises(CacheDamaged, match=r"has no v3\.metadata\.json"):
        table.open_table(builder.folder)


def test_damaged_metadata_and_paths_outside_the_table_are_refused(tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    builder.add(rows(2), range(2))
    builder.commit()
    path = builder.folder / "metadata" / "v1.metadata.json"
    intact = path.read_text()
    for changed, message in (
        (intact[: len(intact) // 2], "cannot read"),
        ("[]", "not the metadata of a table"),
        (intact.replace("snap-1.avro", "../../../../secret"), "outside its table"),
        (intact.replace("snap-1.avro", "snap-9.avro"), "cannot read the table .*FileNotFoundError"),
        (json.dumps({**json.loads(intact), "current-snapshot-id": 7}), "the current snapshot is missing"),
    ):
        path.write_text(changed)
        with pytest.raises(CacheDamaged, match=message):
            _ = table.open_table(builder.folder).files


def test_a_table_without_a_snapshot_has_no_files(tmp_path: Path) -> None:
    builder = Builder(tmp_path).commit()
    path = builder.folder / "metadata" / "v1.metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "current-snapshot-id": -1}))
    assert table.open_table(builder.folder).files == ()
