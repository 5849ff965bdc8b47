"""Which records are of one thing: the rule by itself."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.lake.meetings import Meetings, Met, hash_of
from hypaware.lake.settle import NEAR_SECONDS, settle
from hypaware.model.coerce import coerce_row
from tests.live_rows import Part
from tests.rows import MESSAGES

DAY = 24 * 3600


def mets(*rows: tuple[int, dict[str, object]]) -> list[Met]:
    found = Meetings()
    for seq, row in rows:
        found.note(MESSAGES, coerce_row(MESSAGES, row, "ours"), seq)
    return list(found)


def test_a_new_native_row_settles_a_fallback_row_of_the_lake() -> None:
    part = Part(1)
    done = settle(mets((20, part.native())), mets((3, part.live())))
    assert (done.settled, done.dropped, done.met) == ({20: 3}, {}, [3])


def test_a_new_fallback_row_is_left_out_for_a_native_row_of_the_lake() -> None:
    part = Part(1, "answer")
    done = settle(mets((20, part.live())), mets((3, part.native())))
    assert (done.settled, done.dropped, done.met) == ({}, {20: 3}, [3])


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_new_rows_the_native_one_goes_on(order: int) -> None:
    both = [Part(1).live(), Part(1).native()][::order]
    done = settle(mets((5, both[0]), (6, both[1])), [])
    assert done.settled == {}
    assert done.dropped == ({5: 6} if order == 1 else {6: 5})


def test_rows_of_other_sessions_words_or_speakers_do_not_meet() -> None:
    live = mets((1, Part(1, words="continue").live()))
    others = [Part(1, words="continue", session="session-2"), Part(1, words="go on"), Part(1, "answer", "continue")]
    for other in others:
        assert settle(mets((9, other.native())), live).settled == {}


def test_two_fallback_rows_or_two_native_rows_never_meet() -> None:
    same = Part(1, words="continue")
    assert settle(mets((1, same.native()), (2, Part(2, words="continue").native())), []).met == []
    assert settle(mets((1, same.live()), (2, Part(2, words="continue").live())), []).met == []


def test_equal_words_meet_in_their_order() -> None:
    parts = [Part(number, words="continue") for number in range(4)]
    live = mets(*((seq, part.live()) for seq, part in enumerate(parts)))
    native = mets(*((10 + seq, part.native()) for seq, part in enumerate(parts)))
    assert settle(native, live).settled == {10: 0, 11: 1, 12: 2, 13: 3}


def test_equal_words_meet_the_nearest_not_the_first() -> None:
    """The gateway was not there when they were said for the first time."""
    native = mets((1, Part(1, words="continue").native()), (2, Part(300, words="continue").native()))
    assert settle(mets((9, Part(301, words="continue").live())), native).dropped == {9: 2}


def test_equal_words_of_another_day_are_others_unless_nobody_knows_when_they_were_said() -> None:
    words = Part(1, words="continue")
    old = mets((1, words.native()))
    later = Part(1 + NEAR_SECONDS // 60 + 60, words="continue")
    assert settle(mets((9, later.live())), old).dropped == {}
    assert settle(mets((9, later.live(late=True))), old).dropped == {9: 1}


def test_an_id_that_travels_is_sure_whatever_the_time() -> None:
    call = Part(1, "call")
    later = call.live(message_created_at="2027-02-01T00:00:00Z")
    assert settle(mets((9, later)), mets((1, call.native()))).dropped == {9: 1}


def test_a_surer_key_goes_first() -> None:
    """An imported answer is known by its API id and by its words: another one that says the same is not it."""
    mine, other = Part(5, "answer", "done"), Part(6, "answer", "done")
    native = mets((1, other.native()), (2, mine.native()))
    assert settle(mets((9, mine.live())), native).dropped == {9: 2}


def test_a_row_of_a_history_meets_an_answer_by_its_words() -> None:
    """A model's piece that was only ever seen in a request has no API id."""
    answer = Part(5, "answer", "done")
    seen = answer.live(late=True, raw_frame=None)
    assert settle(mets((9, seen)), mets((1, answer.native()))).dropped == {9: 1}


words = st.sampled_from(["continue", "yes", "words"])
kinds = st.sampled_from(["user", "answer", "call"])
parts = st.lists(st.tuples(kinds, words), min_size=1, max_size=8).map(
    lambda made: [Part(number, kind, said) for number, (kind, said) in enumerate(made)]
)


@given(parts, st.data())
def test_one_row_is_left_of_each_part_whatever_came_when(conversation: list[Part], data: st.DataObject) -> None:
    """Each part comes once from either side; some of it is in the lake, in any order."""
    records = [(part, is_live) for part in conversation for is_live in (True, False)]
    order = data.draw(st.permutations(records))
    in_lake = data.draw(st.integers(0, len(order)))
    numbered = [(seq, part.live() if is_live else part.native()) for seq, (part, is_live) in enumerate(order)]
    # What is in the lake was settled before.
    before = settle(mets(*numbered[:in_lake]), [])
    there = [seq for seq in range(in_lake) if seq not in before.dropped]
    free = [met for met in mets(*numbered[:in_lake]) if met.seq in there and met.seq not in before.met]
    after = settle(mets(*numbered[in_lake:]), free)
    left = [*there, *(seq for seq in range(in_lake, len(order)) if seq not in {**after.dropped, **after.settled})]
    said = Counter((order[seq][0].kind, order[seq][0].words) for seq in left)
    assert said == Counter((part.kind, part.words) for part in conversation)
    assert len(set(after.met)) == len(after.met), "nobody meets twice"
    assert all(order[seq][1] != order[partner][1] for seq, partner in {**after.dropped, **after.settled}.items())


def test_hashes_are_of_a_dataset() -> None:
    assert hash_of("a", "call:1") != hash_of("b", "call:1")
