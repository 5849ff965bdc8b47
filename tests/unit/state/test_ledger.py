"""The ledger: which batches are known, which ranges were delivered, and what lies between them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete

from hypaware.errors import StateError
from hypaware.state import ledger, tables
from hypaware.state.ledger import Batch, Covered, Delivery, Range, Sender
from hypaware.state.store import Store

SENDER = Sender("default", "gw-1", "life", "messages")
OTHERS = [
    Sender("other", "gw-1", "life", "messages"),
    Sender("default", "gw-2", "life", "messages"),
    Sender("default", "gw-1", "another life", "messages"),
    Sender("default", "gw-1", "life", "exchanges"),
]


def batch(
    id: str, after: int | None = None, last: int = 0, *, sender: Sender = SENDER, source: str = "claude"
) -> Batch:
    delivery = None if after is None else Delivery(source, Range(after, last))
    return Batch(sender, id, delivery, 5, "sha", f"segment of {id}")


def enter(store: Store, *some: Batch) -> None:
    with store.transaction() as connection:
        for each in some:
            ledger.enter(connection, each)


def ranges(store: Store, sender: Sender = SENDER, source: str = "claude") -> list[Range]:
    with store.reading() as connection:
        return ledger.ranges(connection, sender, source)


def known(store: Store, sender: Sender, *ids: str) -> list[bool]:
    with store.reading() as connection:
        return [ledger.is_known(connection, sender, each) for each in ids]


def test_a_batch_is_known_only_for_its_own_sender(store: Store) -> None:
    enter(store, batch("b"))

    assert known(store, SENDER, "b", "c", "B") == [True, False, False]
    assert [known(store, other, "b") for other in OTHERS] == [[False]] * 4
    with store.reading() as connection:
        assert ledger.is_known_in_any_life(connection, OTHERS[2], "b")
        assert not ledger.is_known_in_any_life(connection, OTHERS[1], "b")


def test_a_batch_id_cannot_be_recorded_twice(store: Store) -> None:
    enter(store, batch("b"))
    with pytest.raises(StateError, match=r"a change of the state .* failed"):
        enter(store, batch("b"))


def test_adjacent_ranges_are_merged(store: Store) -> None:
    enter(store, batch("1", 0, 10), batch("2", 10, 20))
    assert ranges(store) == [Range(0, 20)]
    enter(store, batch("4", 30, 40))
    assert ranges(store) == [Range(0, 20), Range(30, 40)]
    enter(store, batch("3", 20, 30))
    assert ranges(store) == [Range(0, 40)]


def test_streams_are_separate_for_every_part_of_their_key(store: Store) -> None:
    enter(store, batch("b", 0, 10), batch("c", 5, 7, source="codex"))
    enter(store, *(batch("b", 2, 4, sender=other) for other in OTHERS))

    assert ranges(store) == [Range(0, 10)]
    assert ranges(store, source="codex") == [Range(5, 7)]
    assert [ranges(store, other) for other in OTHERS] == [[Range(2, 4)]] * 4


@pytest.mark.hazard(32)
def test_forgetting_removes_ids_and_keeps_ranges(store: Store) -> None:
    enter(store, batch("1", 0, 10), batch("2", 10, 20), batch("3", 0, 10, source="codex"), batch("4"))
    enter(store, *(batch("1", 0, 10, sender=other) for other in OTHERS))
    with store.transaction() as connection:
        ledger.forget(connection, SENDER, "claude", 15)

    assert known(store, SENDER, "1", "2", "3", "4") == [False, True, True, True]
    assert [known(store, other, "1") for other in OTHERS] == [[True]] * 4
    assert ranges(store) == [Range(0, 20)]


def test_segments_are_known_by_their_batches(store: Store) -> None:
    enter(store, batch("1"), batch("2", 0, 5))
    with store.reading() as connection:
        found = ledger.known_segments(connection, "messages", ["segment of 1", "segment of 2", "segment of 3"])
        assert found == {"segment of 1", "segment of 2"}
        assert ledger.known_segments(connection, "exchanges", ["segment of 1"]) == set()


def test_the_owner_of_the_ledger_is_lost_with_the_state(store: Store) -> None:
    with store.transaction() as connection:
        assert ledger.keeper(connection) is None
        ledger.keep(connection, "srv-1")
        ledger.keep(connection, "srv-1")
        assert ledger.keeper(connection) == "srv-1"


def test_too_many_holes_lower_the_reported_coverage() -> None:
    delivered = [Range(10 * number + 5, 10 * number + 10) for number in range(ledger.MAX_HOLES + 2)]
    found = ledger.covered(delivered)

    assert len(found.holes) == ledger.MAX_HOLES
    assert found.last == 10 * ledger.MAX_HOLES
    assert found.holes[-1].last < found.last
    assert ledger.covered(delivered, Range(0, 100)) == Covered(
        delivered[-1].last, tuple(Range(10 * number, 10 * number + 5) for number in range(10))
    )


small = st.integers(0, 60)
asked_ranges = st.tuples(small, small).filter(lambda pair: pair[0] < pair[1]).map(lambda pair: Range(*pair))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(tries=st.lists(asked_ranges, min_size=1, max_size=15), asked=asked_ranges)
def test_ranges_behave_like_sets_of_sequences(store: Store, tries: list[Range], asked: Range) -> None:
    """Whatever comes in whatever order: accepted is what overlaps nothing, and every gap is told."""
    here: set[int] = set()
    with store.transaction() as connection:
        for table in (tables.batches, tables.delivered):
            connection.execute(delete(table))
        for number, each in enumerate(tries):
            delivery = Delivery("claude", each)
            overlap = ledger.overlaps(connection, SENDER, delivery)
            assert overlap == bool(here & sequences(each))
            if not overlap:
                ledger.enter(connection, batch(str(number), each.after, each.last))
                here |= sequences(each)
        found = ledger.ranges(connection, SENDER, "claude")

    assert set().union(*map(sequences, found)) == here
    assert all(low.last < high.after for low, high in pairwise(found)), "no two of them touch"
    told = ledger.covered(found)
    assert told.last == max(here)
    missing = set(range(1, told.last + 1)) - here
    assert set().union(*map(sequences, told.holes)) == missing
    of_asked = ledger.covered(found, asked)
    assert of_asked.last == told.last
    assert set().union(*map(sequences, of_asked.holes)) == missing & sequences(asked)


def sequences(each: Range) -> set[int]:
    return set(range(each.after + 1, each.last + 1))
