"""The key index: which keys it keeps and removes when its table changes."""

from __future__ import annotations

from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from hypaware.home import Home
from hypaware.lake.key_index import KeyIndex
from hypaware.model.datasets import KEY_BYTES


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = Home(tmp_path / "home")
    found.lake.mkdir(parents=True)
    return found


def key(number: int) -> bytes:
    return sha256(str(number).encode()).digest()[:KEY_BYTES]


@pytest.mark.hazard(83)
def test_a_rebuilt_table_is_indexed_again_and_keys_removed_by_retention_stay(home: Home) -> None:
    """Keys of removed rows exist only in the index; without them, a client that repeats the rows would restore them."""
    with closing(KeyIndex(home.keys)) as index:
        index.add("d", "old", 10, [(key(1), 1), (key(5), 5)])
        index.restart("d", "new", 10)
        assert index.indexed_through("d", "new") == 0
        assert index.find([key(1), key(5)]) == {key(1): 1, key(5): 5}


def test_a_restart_removes_keys_above_the_floor_for_every_dataset(home: Home) -> None:
    with closing(KeyIndex(home.keys)) as index:
        index.add("d", "old", 10, [(key(1), 1), (key(9), 9)])
        index.add("e", "other", 8, [(key(8), 8)])
        index.restart("d", "old", 5)
        assert index.find([key(1), key(8), key(9)]) == {key(1): 1}
        assert index.indexed_through("e", "other") == 5, "keys above the floor are read from the table again"


def test_keys_of_removed_rows_are_dropped_and_the_table_is_indexed_again_unless_marked_complete(home: Home) -> None:
    with closing(KeyIndex(home.keys)) as index:
        index.add("d", "uuid", 10, [(key(1), 1), (key(9), 9)])
        index.remove_rows("d", [9])
        assert index.find([key(1), key(9)]) == {key(1): 1}
        assert index.indexed_through("d", "uuid") == 0
        index.mark_complete("d", 10)
        assert index.indexed_through("d", "uuid") == 10
