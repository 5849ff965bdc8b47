"""Duplicates: rows with the same key, which no flush lets in and which compaction removes."""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypaware.home import Home
from hypaware.lake.build import table_from_json_lines
from hypaware.lake.key_index import KeyIndex
from hypaware.lake.schema import file_schema, parquet_writer, table_columns
from hypaware.maintain.compact import find_later_duplicates
from hypaware.model import canonical
from hypaware.model.datasets import BATCH_ID, ROW_ID, SEQ, SOURCE, hash_row_key
from tests.support.compaction_cases import SmallFiles
from tests.support.rows import DATASET, MESSAGES

SCHEMA = file_schema(MESSAGES, {column.name: index for index, column in enumerate(table_columns(MESSAGES), 1)})
Keyed = tuple[int, dict[str, Any]]


def write(path: Path, keyed: list[Keyed]) -> Path:
    lines = [canonical.serialize_row({"part_index": 0, **columns})[1] for _, columns in keyed]
    empty = pa.array([""] * len(keyed))
    seqs = pa.array([seq for seq, _ in keyed], pa.int64())
    schema = pa.schema([field.with_nullable(True) for field in SCHEMA])
    with parquet_writer(path, schema) as writer:
        writer.write_table(
            table_from_json_lines(schema, lines, {SEQ: seqs, SOURCE: empty, ROW_ID: empty, BATCH_ID: empty})
        )
    return path


def expected(files: list[list[Keyed]], own_gateway: str | None) -> list[int]:
    """Apply the rule that flushes use."""
    by_key: defaultdict[bytes, list[int]] = defaultdict(list)
    for keyed in files:
        for seq, columns in keyed:
            if (key := hash_row_key(MESSAGES, {"part_index": 0, **columns}, own_gateway)) is not None:
                by_key[key].append(seq)
    return sorted(seq for seqs in by_key.values() for seq in seqs if seq != min(seqs))


columns = st.fixed_dictionaries(
    {},
    optional={
        "part_id": st.sampled_from(["", "m1#0", "m2#0", "m3#1"]),
        "message_id": st.sampled_from(["m1", "m2", "m3"]),
        "gateway_id": st.sampled_from(["ours", "ours.member", "ours2.member", "theirs", ""]),
    },
)


@settings(max_examples=25)
@given(st.lists(st.lists(columns, min_size=1, max_size=6), min_size=1, max_size=4), st.sampled_from([None, "ours"]))
def test_compaction_and_flush_agree_on_duplicates(
    tmp_path_factory: pytest.TempPathFactory, layout: list[list[dict[str, Any]]], own_gateway: str | None
) -> None:
    folder, numbers = tmp_path_factory.mktemp("twins"), iter(range(1, 100))
    files = [[(next(numbers), each) for each in rows] for rows in layout]
    paths = [write(folder / f"{index}.parquet", keyed) for index, keyed in enumerate(files)]
    assert list(find_later_duplicates(MESSAGES, paths, own_gateway)) == expected(files, own_gateway)


def test_a_row_with_a_shared_sequence_is_not_removed(tmp_path: Path) -> None:
    """Rows are left out by sequence, so the other row would be removed too."""
    keyed = [(1, {"part_id": "a"}), (7, {"part_id": "a"}), (7, {"part_id": "b"}), (8, {"part_id": "a"})]
    assert find_later_duplicates(MESSAGES, [write(tmp_path / "1.parquet", keyed)], None) == (8,)


def test_compaction_keeps_the_lowest_duplicate_and_reports_it(home: Home) -> None:
    """Duplicates can come in while the key index is lost; a sink that received the first keeps it."""
    lake = SmallFiles(home)
    lake.commit(0, times=4)
    before = lake.rows()
    _forget_keys(lake)
    lake.numbers = 0
    lake.commit(0, rows=5, times=1)
    lake.commit(3, times=4)
    rows = lake.rows()
    assert len(rows) == 12 + 5 + 12, "the duplicates are in the lake"
    report = lake.compact()
    assert report.twins_removed == 5
    assert lake.notes == ["ai_gateway_messages: removed 5 duplicate rows"]
    kept = lake.rows()
    assert kept == [*before, *rows[17:]]
    assert lake.compact().as_json()["reason"] == "nothing to do"


def _forget_keys(lake: SmallFiles) -> None:
    """Replace the index by one that claims to be complete and is empty."""
    lake.home.keys.unlink()
    with closing(KeyIndex(lake.home.keys)) as index:
        index.add(DATASET, lake.table_metadata.uuid, lake.table_metadata.floor, ())


def test_rows_without_a_key_are_never_duplicates(tmp_path: Path) -> None:
    keyed = [(seq, {"role": "user"}) for seq in range(1, 5)]
    assert find_later_duplicates(MESSAGES, [write(tmp_path / "1.parquet", keyed)], "ours") == ()
