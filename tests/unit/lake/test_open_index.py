"""Opening the key index: what it knows of the lake's rows, whatever the file held before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from hashlib import sha256

import pytest

from hypaware.home import Home
from hypaware.lake.build import BuildFailure, BuildResult, Task
from hypaware.lake.dedupe import open_index
from hypaware.lake.key_index import KeyIndex
from hypaware.model.datasets import KEY_BYTES
from hypaware.state.home_opener import open_home
from tests.support.light_home import append, flush
from tests.support.light_lake import LightLake, LightTable
from tests.support.rows import DATASET, MESSAGES, rows

FOREIGN = sha256(b"a row of another lake").digest()[:KEY_BYTES]


class IndexedLake(LightLake):
    """A lake whose files must not be read again."""

    def run(self, tasks: Sequence[Task]) -> list[BuildResult | BuildFailure]:
        raise AssertionError("the rows are indexed already")


@pytest.fixture
def lake(home: Home) -> Iterator[LightLake]:
    """Return a lake with five rows, which the index knows."""
    open_home(home).store.close()
    append(home, rows(5))
    flush(home)
    with closing(LightLake(home)) as opened:
        yield opened


def known(home: Home, lake: LightLake) -> tuple[set[int], bool]:
    """Open the index. Return the sequences it knows, and whether it knows the foreign key."""
    table = lake.table(MESSAGES)
    with closing(open_index(home, lake, table, MESSAGES)) as index:
        assert index.indexed_through(DATASET, table.uuid) == table.floor
        return set(index.find_sequences(0, 10**6)), FOREIGN in index.find([FOREIGN])


def enter_foreign(home: Home, table_uuid: str, through: int, seq: int) -> None:
    with closing(KeyIndex(home.keys)) as index:
        index.add(DATASET, table_uuid, through, [(FOREIGN, seq)])


def test_rows_that_are_indexed_are_not_read_again(home: Home, lake: LightLake) -> None:
    with closing(IndexedLake(home)) as indexed:
        assert known(home, indexed) == ({1, 2, 3, 4, 5}, False)


def test_an_index_without_the_last_rows_catches_up(home: Home, lake: LightLake) -> None:
    with closing(KeyIndex(home.keys)) as index:
        index.restart(DATASET, lake.table(MESSAGES).uuid, 3)
    assert known(home, lake) == ({1, 2, 3, 4, 5}, False)


def test_an_index_that_is_ahead_of_the_lake_forgets_the_rows_that_the_lake_lost(home: Home, lake: LightLake) -> None:
    enter_foreign(home, lake.table(MESSAGES).uuid, 50, 40)
    assert known(home, lake) == ({1, 2, 3, 4, 5}, False)


def test_the_index_of_another_lake_is_discarded(home: Home, lake: LightLake) -> None:
    enter_foreign(home, "another table", 50, 4)
    assert known(home, lake) == ({1, 2, 3, 4, 5}, False)


def test_the_index_of_the_table_that_this_one_was_rebuilt_from_keeps_its_keys(
    home: Home, lake: LightLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of rows that retention removed are nowhere else."""
    monkeypatch.setattr(LightTable, "rebuilt_from", "the table before")
    enter_foreign(home, "the table before", 50, 4)
    assert known(home, lake) == ({1, 2, 3, 4, 5}, True)
