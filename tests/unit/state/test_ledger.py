"""The ledger: known batches, delivered ranges, and the holes between them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypaware.errors import StateError
from hypaware.state import ledger, received
from hypaware.state.ledger import BatchSender, Coverage, ReceivedBatch, SequenceRange, StreamRange
from hypaware.state.store import StateStore

SENDER = BatchSender("default", "gw-1", "life", "messages")
OTHERS = [
    BatchSender("other", "gw-1", "life", "messages"),
    BatchSender("default", "gw-2", "life", "messages"),
    BatchSender("default", "gw-1", "another life", "messages"),
    BatchSender("default", "gw-1", "life", "exchanges"),
]


def batch(
    id: str, after: int | None = None, last: int = 0, *, sender: BatchSender = SENDER, source: str = "claude"
) -> ReceivedBatch:
    delivery = None if after is None else StreamRange(source, SequenceRange(after, last))
    segment = f"segment of {id}" if sender == SENDER else f"segment of {id} from {sender}"
    return ReceivedBatch(sender, id, delivery, 5, "sha", segment)


def enter(store: StateStore, *some: ReceivedBatch) -> None:
    with store.transaction() as connection:
        for each in some:
            ledger.record_batch(connection, each)


def ranges(store: StateStore, sender: BatchSender = SENDER, source: str = "claude") -> list[SequenceRange]:
    with store.reading() as connection:
        return ledger.delivered_ranges(connection, sender, source)


def known(store: StateStore, sender: BatchSender, *ids: str) -> list[bool]:
    with store.reading() as connection:
        return [ledger.is_known_batch(connection, sender, each) for each in ids]


def test_a_batch_is_known_only_for_its_own_sender(store: StateStore) -> None:
    enter(store, batch("b"))

    assert known(store, SENDER, "b", "c", "B") == [True, False, False]
    assert [known(store, other, "b") for other in OTHERS] == [[False]] * 4
    with store.reading() as connection:
        assert ledger.is_known_in_any_incarnation(connection, OTHERS[2], "b")
        assert not ledger.is_known_in_any_incarnation(connection, OTHERS[1], "b")


def test_a_batch_id_cannot_be_recorded_twice(store: StateStore) -> None:
    enter(store, batch("b"))
    with pytest.raises(StateError, match=r"a change of the state .* failed"):
        enter(store, batch("b"))


def test_adjacent_ranges_are_merged(store: StateStore) -> None:
    enter(store, batch("1", 0, 10), batch("2", 10, 20))
    assert ranges(store) == [SequenceRange(0, 20)]
    enter(store, batch("4", 30, 40))
    assert ranges(store) == [SequenceRange(0, 20), SequenceRange(30, 40)]
    enter(store, batch("3", 20, 30))
    assert ranges(store) == [SequenceRange(0, 40)]


def test_streams_are_separate_for_every_part_of_their_key(store: StateStore) -> None:
    enter(store, batch("b", 0, 10), batch("c", 5, 7, source="codex"))
    enter(store, *(batch("b", 2, 4, sender=other) for other in OTHERS))

    assert ranges(store) == [SequenceRange(0, 10)]
    assert ranges(store, source="codex") == [SequenceRange(5, 7)]
    assert [ranges(store, other) for other in OTHERS] == [[SequenceRange(2, 4)]] * 4


@pytest.mark.hazard(32)
def test_forgetting_removes_ids_and_keeps_ranges(store: StateStore) -> None:
    enter(store, batch("1", 0, 10), batch("2", 10, 20), batch("3", 0, 10, source="codex"), batch("4"))
    enter(store, *(batch("1", 0, 10, sender=other) for other in OTHERS))
    with store.transaction() as connection:
        ledger.forget_acknowledged(connection, SENDER, "claude", 15)

    assert known(store, SENDER, "1", "2", "3", "4") == [False, True, True, True]
    assert [known(store, other, "1") for other in OTHERS] == [[True]] * 4
    assert ranges(store) == [SequenceRange(0, 20)]


def test_segments_are_known_by_their_batches(store: StateStore) -> None:
    enter(store, batch("1"), batch("2", 0, 5))
    with store.reading() as connection:
        found = ledger.ledger_segments(connection, "messages", ["segment of 1", "segment of 2", "segment of 3"])
        assert found == {"segment of 1", "segment of 2"}
        assert ledger.ledger_segments(connection, "exchanges", ["segment of 1"]) == set()


def test_the_owner_of_the_ledger_is_lost_with_the_state(store: StateStore) -> None:
    with store.transaction() as connection:
        assert ledger.ledger_owner(connection) is None
        ledger.set_ledger_owner(connection, "srv-1")
        ledger.set_ledger_owner(connection, "srv-1")
        assert ledger.ledger_owner(connection) == "srv-1"


def test_too_many_holes_lower_the_reported_coverage() -> None:
    delivered = [SequenceRange(10 * number + 5, 10 * number + 10) for number in range(ledger.MAX_HOLES + 2)]
    found = ledger.compute_coverage(delivered)

    assert len(found.holes) == ledger.MAX_HOLES
    assert found.last == 10 * ledger.MAX_HOLES
    assert found.holes[-1].last < found.last
    assert ledger.compute_coverage(delivered, SequenceRange(0, 100)) == Coverage(
        delivered[-1].last, tuple(SequenceRange(10 * number, 10 * number + 5) for number in range(10))
    )


def test_as_many_holes_as_an_answer_holds_are_all_reported() -> None:
    delivered = [SequenceRange(10 * number + 5, 10 * number + 10) for number in range(ledger.MAX_HOLES)]
    found = ledger.compute_coverage(delivered)

    assert len(found.holes) == ledger.MAX_HOLES
    assert found.last == delivered[-1].last


def test_the_segment_of_a_recorded_batch_waits_to_be_committed(store: StateStore) -> None:
    enter(store, batch("1", 0, 5), batch("2"))
    with store.reading() as connection:
        (waiting,) = received.summarize_uncommitted(connection, SENDER.tenant)
    assert (waiting.gateway_id, waiting.rows) == (SENDER.gateway_id, 10)


small = st.integers(0, 60)
asked_ranges = st.tuples(small, small).filter(lambda pair: pair[0] < pair[1]).map(lambda pair: SequenceRange(*pair))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(tries=st.lists(asked_ranges, min_size=1, max_size=15), asked=asked_ranges)
def test_ranges_behave_like_sets_of_sequences(
    store: StateStore, tries: list[SequenceRange], asked: SequenceRange
) -> None:
    """In any order of batches, a range is accepted if it overlaps no other, and every hole is reported."""
    here: set[int] = set()
    with store.transaction() as connection:
        for table in ("batches", "delivered", "received"):
            connection.execute(f"DELETE FROM {table}")
        for number, each in enumerate(tries):
            delivery = StreamRange("claude", each)
            overlap = ledger.overlaps_delivered(connection, SENDER, delivery)
            assert overlap == bool(here & sequences(each))
            if not overlap:
                ledger.record_batch(connection, batch(str(number), each.after, each.last))
                here |= sequences(each)
        found = ledger.delivered_ranges(connection, SENDER, "claude")

    assert set().union(*map(sequences, found)) == here
    assert all(low.last < high.after for low, high in pairwise(found)), "no two ranges are adjacent"
    told = ledger.compute_coverage(found)
    assert told.last == max(here)
    missing = set(range(1, told.last + 1)) - here
    assert set().union(*map(sequences, told.holes)) == missing
    of_asked = ledger.compute_coverage(found, asked)
    assert of_asked.last == told.last
    assert set().union(*map(sequences, of_asked.holes)) == missing & sequences(asked)


def sequences(each: SequenceRange) -> set[int]:
    return set(range(each.after + 1, each.last + 1))
