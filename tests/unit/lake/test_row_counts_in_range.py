"""Counting the rows of a range without Spark: exact for every range, and reading only the necessary row groups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.lake.read import count_rows_between
from hypaware.model.datasets import SEQ, SOURCE
from tests.support.iceberg_lake import append, create_table
from tests.support.rows import DATASET


@pytest.fixture
def table(home: Home) -> Iterator[Any]:
    found = create_table(home, DATASET)
    yield found
    found.catalog.close()


def files_of(home: Home) -> list[metadata.DataFile]:
    entry = metadata.find_table(home, DATASET)
    assert entry
    return list(metadata.iter_live_files(metadata.read_metadata(entry.metadata)))


def test_a_missing_table_and_an_empty_range_count_zero_rows(home: Home, tmp_path: Path) -> None:
    assert count_rows_between(home, DATASET, "claude", 0, 100) == 0
    created = create_table(home, DATASET)
    assert count_rows_between(home, DATASET, "claude", 0, 100) == 0
    created.catalog.close()


def test_every_range_of_two_interleaved_sources_is_counted_exactly(home: Home, table: Any) -> None:
    held = {"claude": [*range(1, 60, 2), 70], "codex": list(range(2, 60, 5))}
    append(table, {source: seqs[:9] for source, seqs in held.items()})
    append(table, {source: seqs[9:] for source, seqs in held.items()})
    for source, seqs in held.items():
        for after in range(0, 72, 3):
            for last in range(0, 75, 4):
                counted = count_rows_between(home, DATASET, source, after, last)
                assert counted == sum(after < seq <= last for seq in seqs), (source, after, last)
    assert count_rows_between(home, DATASET, "missing", 0, 100) == 0


def test_only_row_groups_that_cross_an_end_of_the_range_are_read(
    home: Home, table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with table.transaction() as change:
        change.set_properties({"write.parquet.row-group-limit": "100"})
    append(table, {"claude": list(range(1, 1001))})
    append(table, {"claude": list(range(1001, 2001))})
    read: list[tuple[str, list[int]]] = []
    original = pq.ParquetFile.read_row_groups

    def counted(self: pq.ParquetFile, places: list[int], *args: Any, **options: Any) -> Any:
        read.append((str(options["columns"]), places))
        return original(self, places, *args, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", counted)
    assert count_rows_between(home, DATASET, "claude", 0, 2000) == 2000
    assert count_rows_between(home, DATASET, "claude", 1000, 2000) == 1000
    assert read == []
    assert count_rows_between(home, DATASET, "claude", 250, 1000) == 750
    assert read == [("['_hyp_ingest_seq']", [2])]


def test_rows_without_a_sequence_are_in_no_range(home: Home, table: Any) -> None:
    for seqs in ([1, 2, None, None, 3], [None, None]):
        rows = {SEQ: pa.array(seqs, pa.int64()), SOURCE: ["claude"] * len(seqs)}
        table.append(pa.table(rows))
    assert count_rows_between(home, DATASET, "claude", 0, 10) == 3
    assert count_rows_between(home, DATASET, "claude", 1, 2) == 1


def test_a_file_that_a_purge_removes_during_the_count_is_found_in_the_new_metadata(
    home: Home, table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is purged after its lookup and before its files are opened."""
    append(table, {"claude": [1, 2, 3, 4]})
    before = metadata.find_table(home, DATASET)
    (gone,) = files_of(home)
    table.delete("_hyp_ingest_seq <= 2")
    gone.path.unlink()
    now = metadata.find_table(home, DATASET)
    answers = [before]
    monkeypatch.setattr(metadata, "find_table", lambda *_: answers.pop() if answers else now)
    assert count_rows_between(home, DATASET, "claude", 1, 3) == 1


def test_a_missing_file_of_an_unchanged_table_raises_an_error(home: Home, table: Any) -> None:
    append(table, {"claude": [1, 2, 3, 4]})
    (gone,) = files_of(home)
    gone.path.unlink()
    with pytest.raises(FileNotFoundError):
        count_rows_between(home, DATASET, "claude", 1, 3)


def test_the_manifest_cache_is_bounded_and_stays_correct(
    home: Home, table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "_manifest_cache", metadata._ManifestCache(3))
    for start in range(1, 60, 10):
        append(table, {"claude": list(range(start, start + 10))})
        assert count_rows_between(home, DATASET, "claude", 0, 100) == start + 9
        assert count_rows_between(home, DATASET, "claude", 0, 100) == start + 9
    assert metadata._manifest_cache._files <= 3
    with closing(SqlCatalog(metadata.CATALOG, uri=f"sqlite:///{home.catalog}")) as catalog:
        catalog.load_table((metadata.NAMESPACE, DATASET)).delete("_hyp_ingest_seq > 30")
    assert count_rows_between(home, DATASET, "claude", 0, 100) == 30
