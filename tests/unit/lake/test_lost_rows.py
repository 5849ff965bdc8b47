"""Rows that are no longer in the lake: an import restores them under the sequences that sinks know."""

from __future__ import annotations

from contextlib import closing

import pytest

from hypaware import faults
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.lake import lost_rows
from hypaware.lake.key_index import KeyIndex
from hypaware.lake.key_lookup import ExistingKeys
from hypaware.lake.lost_rows import LostRange
from hypaware.lake.table import TableChange
from hypaware.model import datasets
from hypaware.model.datasets import SEQ, coerce_row, hash_row_key
from hypaware.state import flushes
from hypaware.state.home_opener import open_home, read_identity
from tests.support.light_home import DATASET, append, flush
from tests.support.light_lake import LightLake, read_lake
from tests.support.rows import rows

ALL = {f"message-{number}#0": number + 1 for number in range(9)}


@pytest.fixture
def home_without_rows(home: Home) -> Home:
    """Rows 0 to 8 in three files; those of the second file, with the sequences 4 to 6, are gone."""
    for start in (0, 3, 6):
        append(home, rows(3, start=start))
        flush(home)
    entry = metadata.find_table(home, DATASET)
    assert entry
    gone = [file for file in metadata.iter_live_files(metadata.read_metadata(entry.metadata)) if file.min_seq == 4]
    with closing(LightLake(home)) as lake:
        lake.table(datasets.get(DATASET)).replace_files(TableChange("retain", gone))
    return home


def mark(home: Home, first: int, last: int, delivered: int) -> int:
    with closing(KeyIndex(home.keys)) as index:
        return lost_rows.mark_lost(home, index, [LostRange(first, last, delivered)])


def sequences(home: Home) -> dict[str, int]:
    return {row["part_id"]: row[SEQ] for row in read_lake(home, DATASET)}


def test_a_row_that_is_gone_is_a_duplicate_until_it_is_marked(home_without_rows: Home) -> None:
    append(home_without_rows, rows(9))
    assert flush(home_without_rows).rows.written == 0


def test_delivered_rows_are_restored_under_their_sequences(home_without_rows: Home) -> None:
    home = home_without_rows
    assert mark(home, 1, 9, delivered=9) == 3, "rows that the table has are not lost"
    append(home, [*rows(9), *rows(1, start=9)])
    report = flush(home)
    assert (report.rows.written, report.rows.duplicate) == (4, 6)
    found = sequences(home)
    assert found.pop("message-9#0") > 9
    assert found == ALL
    append(home, rows(9))
    assert flush(home).rows.written == 0, "each row is restored once"


def test_a_dry_run_does_not_count_lost_rows_as_present(home_without_rows: Home) -> None:
    home, dataset = home_without_rows, datasets.get(DATASET)
    mark(home, 4, 6, delivered=9)
    gateway_id = read_identity(home).gateway_id
    keys = {hash_row_key(dataset, coerce_row(dataset, row, gateway_id), gateway_id): row for row in rows(9)}
    present = ExistingKeys(home, dataset, gateway_id).committed({key for key in keys if key})
    assert sorted(row["message_id"] for key, row in keys.items() if key not in present) == [
        "message-3",
        "message-4",
        "message-5",
    ]


def test_rows_that_a_sink_has_not_received_come_back_as_new_rows(home_without_rows: Home) -> None:
    home = home_without_rows
    assert mark(home, 4, 6, delivered=5) == 2
    append(home, rows(9))
    assert flush(home).rows.written == 3
    found = sequences(home)
    assert found.pop("message-5#0") > 9
    assert found == {part_id: seq for part_id, seq in ALL.items() if seq != 6}


@pytest.mark.parametrize(
    "point", ["commit.before-commit", "commit.after-commit", "record.after-commit", "keys.before-commit"]
)
def test_rows_are_restored_once_if_the_process_is_killed(
    home_without_rows: Home, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush has no row in its own range, so recovery cannot find it there."""
    home = home_without_rows
    mark(home, 4, 6, delivered=9)
    append(home, rows(3, start=3))

    def die(reached: str) -> None:
        if reached == f"lake.{point}":
            raise _Killed

    monkeypatch.setattr(faults, "_reach", die)
    with pytest.raises(_Killed):
        flush(home)
    monkeypatch.undo()
    append(home, rows(9))
    flush(home)
    assert sequences(home) == ALL
    assert len(read_lake(home, DATASET)) == 9
    with closing(open_home(home).store) as store, store.reading() as connection:
        assert not flushes.unfinished_flushes(connection)


class _Killed(BaseException):
    """Stands for a kill: no code handles it."""
