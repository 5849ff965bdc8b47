"""Rows of a flush with the key of another row: which one is kept, and which one settles the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from hypaware.home import Home
from hypaware.lake import key_index
from hypaware.lake.build import BuildResult
from hypaware.lake.dedupe import find_duplicates, match_rows
from hypaware.lake.key_index import KeyIndex
from hypaware.lake.row_keys import MatchKey, unpack_keys
from hypaware.model.datasets import coerce_row, hash_row_key
from tests.support.live_rows import Part
from tests.support.rows import DATASET, MESSAGES

PART = Part(1)


@pytest.fixture
def index(home: Home) -> Iterator[KeyIndex]:
    home.lake.mkdir(parents=True)
    with closing(KeyIndex(home.keys)) as opened:
        yield opened


def built(*rows: tuple[int, dict[str, Any]]) -> BuildResult:
    result = BuildResult()
    for seq, raw in rows:
        row = coerce_row(MESSAGES, raw, "ours")
        key = hash_row_key(MESSAGES, row, "ours")
        assert key is not None
        result.seqs.append(seq)
        result.keys += key
        result.match_keys.record(MESSAGES, row, seq)
    return result


def store(index: KeyIndex, *rows: tuple[int, dict[str, Any]]) -> None:
    """Enter rows of the lake into the index."""
    result = built(*rows)
    index.add(DATASET, "uuid", max(result.seqs), unpack_keys(result.keys, result.seqs))
    with index.transaction() as db:
        key_index.insert_match_keys(db, result.match_keys, ())


def test_of_two_new_rows_with_one_key_the_native_one_is_kept_in_any_order(index: KeyIndex) -> None:
    found = find_duplicates(index, [built((5, PART.shown()), (6, PART.native()))])
    assert (found.superseded, found.duplicates) == ({5: 6}, set())
    found = find_duplicates(index, [built((5, PART.native())), built((6, PART.shown()))])
    assert (found.superseded, found.duplicates, found.kept) == ({}, {6}, {6: 5})


def test_of_equal_rows_the_one_with_the_lowest_sequence_is_kept(index: KeyIndex) -> None:
    found = find_duplicates(index, [built((7, PART.native())), built((5, PART.native()), (6, PART.native()))])
    assert (found.duplicates, found.kept, found.superseded) == ({6, 7}, {6: 5, 7: 5}, {})
    found = find_duplicates(index, [built((5, PART.shown()), (6, PART.shown()))])
    assert (found.duplicates, found.superseded) == ({6}, {})


def test_a_native_row_settles_the_live_row_of_the_lake_once(index: KeyIndex) -> None:
    store(index, (3, PART.shown()))
    found = find_duplicates(index, [built((9, PART.native()), (10, PART.native()))])
    assert (found.upgrades, found.duplicates, found.kept) == ({9: 3}, {10}, {10: 3})
    assert found.settled_keys == [bytes(built((9, PART.native())).keys)]
    assert found.excluded == {9, 10}


def test_a_live_row_is_a_duplicate_of_the_live_row_of_the_lake(index: KeyIndex) -> None:
    store(index, (3, PART.shown()))
    found = find_duplicates(index, [built((9, PART.shown()))])
    assert (found.upgrades, found.duplicates, found.kept) == ({}, {9}, {9: 3})


def test_a_lost_live_row_is_restored_and_not_settled(index: KeyIndex) -> None:
    store(index, (3, PART.shown()))
    # As if the lake lost the row, but its match key came back with an older copy of the index.
    match_keys = [*built((3, PART.shown())).match_keys]
    index.mark_lost([3], [])
    with index.transaction() as db:
        key_index.insert_match_keys(db, match_keys, ())
    found = find_duplicates(index, [built((9, PART.native()))])
    assert (found.upgrades, found.duplicates, found.kept) == ({}, {9}, {9: 3})


def test_a_purged_row_is_neither_kept_nor_a_duplicate(index: KeyIndex) -> None:
    found = find_duplicates(index, [built((5, PART.native()), (6, PART.native()))], purged={5})
    assert (found.duplicates, found.kept) == (set(), {})


def match_keys(seq: int, row: dict[str, Any]) -> list[MatchKey]:
    return [*built((seq, row)).match_keys]


@pytest.mark.parametrize(("seconds", "matches"), [(3600, True), (3601, False)])
def test_equal_texts_match_up_to_an_hour_apart(seconds: int, matches: bool) -> None:
    part = Part(0, text="continue")
    at = f"2026-11-15T{7 + seconds // 3600:02}:00:{seconds % 3600:02}Z"
    later = part.live(message_created_at=at)
    assert bool(match_rows(match_keys(9, later), match_keys(1, part.native())).superseded) is matches


def test_a_text_that_was_shown_with_an_id_is_no_repetition_of_one_without(index: KeyIndex) -> None:
    """Only the history of a request repeats a part, and the time of such a row is not certain."""
    part = Part(1, text="continue")
    plain, shown, repeated = part.live(), part.shown(), part.live(late=True)
    assert match_rows(match_keys(9, shown), match_keys(1, plain)).matched == []
    assert match_rows(match_keys(9, plain), match_keys(1, shown)).matched == []
    assert match_rows(match_keys(9, repeated), match_keys(1, shown)).superseded == {9: 1}
