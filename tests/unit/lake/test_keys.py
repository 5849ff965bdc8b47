"""The key index by itself: what it keeps and forgets when its table changes under it."""

from __future__ import annotations

from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from hypaware.home import Home
from hypaware.lake.build import KEY_BYTES
from hypaware.lake.keys import KeyIndex


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = Home(tmp_path / "home")
    found.lake.mkdir(parents=True)
    return found


def key(number: int) -> bytes:
    return sha256(str(number).encode()).digest()[:KEY_BYTES]


@pytest.mark.hazard(83)
def test_a_rebuilt_table_is_taken_in_again_and_what_retention_dropped_stays_known(home: Home) -> None:
    """Nothing but the index knows of dropped rows: without their keys, a client that repeats them brings them back."""
    with closing(KeyIndex(home.keys)) as index:
        index.add("d", "old", 10, [(key(1), 1), (key(5), 5)])
        index.start_over("d", "new", 10)
        assert index.through("d", "new") == 0
        assert index.find([key(1), key(5)]) == {key(1): 1, key(5): 5}


def test_starting_over_forgets_what_lies_above_the_floor_for_every_dataset(home: Home) -> None:
    with closing(KeyIndex(home.keys)) as index:
        index.add("d", "old", 10, [(key(1), 1), (key(9), 9)])
        index.add("e", "other", 8, [(key(8), 8)])
        index.start_over("d", "old", 5)
        assert index.find([key(1), key(8), key(9)]) == {key(1): 1}
        assert index.through("e", "other") == 5, "what it had above is read from its table again"


def test_keys_of_rows_that_go_are_forgotten_and_the_table_is_read_again_unless_they_went(home: Home) -> None:
    with closing(KeyIndex(home.keys)) as index:
        index.add("d", "uuid", 10, [(key(1), 1), (key(9), 9)])
        index.forget("d", [9])
        assert index.find([key(1), key(9)]) == {key(1): 1}
        assert index.through("d", "uuid") == 0
        index.trust("d", 10)
        assert index.through("d", "uuid") == 10
