"""Matching of live and native rows: the pure function."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.lake.dedupe import MATCH_WINDOW_SECONDS, match_rows
from hypaware.lake.row_keys import MatchKey, MatchKeys, hash_match_key
from hypaware.model.datasets import coerce_row
from tests.support.live_rows import Part
from tests.support.rows import MESSAGES

DAY = 24 * 3600


def match_keys(*rows: tuple[int, dict[str, object]]) -> list[MatchKey]:
    found = MatchKeys()
    for seq, row in rows:
        found.record(MESSAGES, coerce_row(MESSAGES, row, "ours"), seq)
    return list(found)


def test_a_new_native_row_settles_a_live_row_of_the_lake() -> None:
    part = Part(1)
    done = match_rows(match_keys((20, part.native())), match_keys((3, part.live())))
    assert (done.upgrades, done.superseded, done.matched) == ({20: 3}, {}, [3])


def test_a_new_live_row_is_dropped_for_a_native_row_of_the_lake() -> None:
    part = Part(1, "answer")
    done = match_rows(match_keys((20, part.live())), match_keys((3, part.native())))
    assert (done.upgrades, done.superseded, done.matched) == ({}, {20: 3}, [3])


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_new_rows_the_native_one_is_kept(order: int) -> None:
    both = [Part(1).live(), Part(1).native()][::order]
    done = match_rows(match_keys((5, both[0]), (6, both[1])), [])
    assert done.upgrades == {}
    assert done.superseded == ({5: 6} if order == 1 else {6: 5})


def test_rows_with_another_session_text_or_role_do_not_match() -> None:
    live = match_keys((1, Part(1, text="continue").live()))
    others = [Part(1, text="continue", session="session-2"), Part(1, text="go on"), Part(1, "answer", "continue")]
    for other in others:
        assert match_rows(match_keys((9, other.native())), live).upgrades == {}


def test_two_live_rows_or_two_native_rows_never_match() -> None:
    same = Part(1, text="continue")
    assert match_rows(match_keys((1, same.native()), (2, Part(2, text="continue").native())), []).matched == []
    assert match_rows(match_keys((1, same.live()), (2, Part(2, text="continue").live())), []).matched == []


def test_equal_texts_match_in_order() -> None:
    parts = [Part(number, text="continue") for number in range(4)]
    live = match_keys(*((seq, part.live()) for seq, part in enumerate(parts)))
    native = match_keys(*((10 + seq, part.native()) for seq, part in enumerate(parts)))
    assert match_rows(native, live).upgrades == {10: 0, 11: 1, 12: 2, 13: 3}


def test_equal_texts_match_the_nearest_in_time_not_the_first() -> None:
    """The gateway did not record the first occurrence."""
    native = match_keys((1, Part(1, text="continue").native()), (2, Part(300, text="continue").native()))
    assert match_rows(match_keys((9, Part(301, text="continue").live())), native).superseded == {9: 2}


def test_equal_texts_of_another_day_match_only_if_their_time_is_uncertain() -> None:
    part = Part(1, text="continue")
    old = match_keys((1, part.native()))
    later = Part(1 + MATCH_WINDOW_SECONDS // 60 + 60, text="continue")
    assert match_rows(match_keys((9, later.live())), old).superseded == {}
    assert match_rows(match_keys((9, later.live(late=True))), old).superseded == {9: 1}


def test_an_id_that_both_records_share_matches_at_any_time() -> None:
    call = Part(1, "call")
    later = call.live(message_created_at="2027-02-01T00:00:00Z")
    assert match_rows(match_keys((9, later)), match_keys((1, call.native()))).superseded == {9: 1}


def test_a_more_reliable_key_is_tried_first() -> None:
    """An imported response is matched by its API id first: another one with the same text does not match."""
    mine, other = Part(5, "answer", "done"), Part(6, "answer", "done")
    native = match_keys((1, other.native()), (2, mine.native()))
    assert match_rows(match_keys((9, mine.live())), native).superseded == {9: 2}


def test_a_row_of_a_repeated_history_matches_a_response_by_its_text() -> None:
    """A part of a response that was only seen in a request has no API id."""
    answer = Part(5, "answer", "done")
    seen = answer.live(late=True, raw_frame=None)
    assert match_rows(match_keys((9, seen)), match_keys((1, answer.native()))).superseded == {9: 1}


texts = st.sampled_from(["continue", "yes", "words"])
kinds = st.sampled_from(["user", "answer", "call"])
parts = st.lists(st.tuples(kinds, texts), min_size=1, max_size=8).map(
    lambda made: [Part(number, kind, text) for number, (kind, text) in enumerate(made)]
)


@given(parts, st.data())
def test_each_part_has_one_row_in_any_order_of_arrival(conversation: list[Part], data: st.DataObject) -> None:
    """Each part arrives once from either side, in any order; some rows are already in the lake."""
    records = [(part, is_live) for part in conversation for is_live in (True, False)]
    order = data.draw(st.permutations(records))
    in_lake = data.draw(st.integers(0, len(order)))
    numbered = [(seq, part.live() if is_live else part.native()) for seq, (part, is_live) in enumerate(order)]
    # Rows in the lake were matched before.
    before = match_rows(match_keys(*numbered[:in_lake]), [])
    there = [seq for seq in range(in_lake) if seq not in before.superseded]
    unmatched = [key for key in match_keys(*numbered[:in_lake]) if key.seq in there and key.seq not in before.matched]
    after = match_rows(match_keys(*numbered[in_lake:]), unmatched)
    left = [*there, *(seq for seq in range(in_lake, len(order)) if seq not in {**after.superseded, **after.upgrades})]
    texts_left = Counter((order[seq][0].kind, order[seq][0].text) for seq in left)
    assert texts_left == Counter((part.kind, part.text) for part in conversation)
    assert len(set(after.matched)) == len(after.matched), "no row is matched twice"
    assert all(order[seq][1] != order[partner][1] for seq, partner in {**after.superseded, **after.upgrades}.items())


def test_match_key_hashes_include_the_dataset() -> None:
    assert hash_match_key("a", "call:1") != hash_match_key("b", "call:1")
