"""The list of accepted segments: what a flush has to commit, what it may remove, and what was delivered each day."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hypaware.model.row_counts import RowCounts
from hypaware.state import flushes, received
from hypaware.state.flushes import Flush, FlushOutcome
from hypaware.state.received import ReceivedSegment
from hypaware.state.store import StateStore

DATASET = "messages"
OBJECT = ReceivedSegment("1700000000000-a.5", 5, 500, "received/messages/1700000000000-a.5.jsonl")
FILE = ReceivedSegment("1700000000001-b.7", 7, 700, None)


def enter(store: StateStore, *segments: ReceivedSegment, gateway: str = "gw-1") -> None:
    with store.transaction() as connection:
        for each in segments:
            received.add_segment(connection, "default", gateway, DATASET, each)


def reserve(store: StateStore, segments: Sequence[ReceivedSegment]) -> Flush:
    with store.transaction() as connection:
        return flushes.reserve_flush(connection, DATASET, [(each.name, each.rows) for each in segments])


def commit(store: StateStore, flush: Flush) -> None:
    with store.transaction() as connection:
        flushes.record_flush(connection, flush, FlushOutcome({"claude": flush.last}, RowCounts(written=12)))


def objects(store: StateStore, *, committed: bool) -> list[ReceivedSegment]:
    with store.reading() as connection:
        return received.list_objects(connection, DATASET, committed=committed)


def uncommitted_rows(store: StateStore) -> dict[str, int]:
    with store.reading() as connection:
        return {each.gateway_id: each.rows for each in received.summarize_uncommitted(connection, "default")}


def test_an_object_is_listed_until_it_was_removed_and_a_file_until_its_flush_is_recorded(store: StateStore) -> None:
    enter(store, OBJECT, FILE)
    assert (objects(store, committed=False), objects(store, committed=True)) == ([OBJECT], [])
    flush = reserve(store, [OBJECT, FILE])
    assert objects(store, committed=False) == [OBJECT], "a reserved flush may be discarded"
    assert uncommitted_rows(store) == {"gw-1": 12}
    commit(store, flush)
    assert (objects(store, committed=False), objects(store, committed=True)) == ([], [OBJECT])
    assert uncommitted_rows(store) == {}
    with store.transaction() as connection:
        received.forget_objects(connection, DATASET, [OBJECT.name])
        assert received.list_datasets(connection) == []
        found = connection.values("SELECT name FROM segments")
    assert found == [FILE.name], "receivers accept millions of batches, of which nothing remains"


@pytest.mark.hazard(4)
def test_an_object_that_cannot_be_removed_for_weeks_is_not_committed_again(store: StateStore) -> None:
    enter(store, OBJECT)
    commit(store, reserve(store, [OBJECT]))
    with store.transaction() as connection:
        connection.execute("UPDATE segments SET updated_at = '2000-01-01T00:00:00+00:00'")
    commit(store, reserve(store, [FILE]))
    assert (objects(store, committed=False), objects(store, committed=True)) == ([], [OBJECT])


def test_a_discarded_flush_leaves_its_segments_in_the_list(store: StateStore) -> None:
    enter(store, OBJECT, FILE)
    flush = reserve(store, [OBJECT, FILE])
    with store.transaction() as connection:
        flushes.discard_flush(connection, flush, blamed=())
    assert objects(store, committed=False) == [OBJECT]
    assert uncommitted_rows(store) == {"gw-1": 12}


@pytest.mark.hazard(94)
def test_a_name_is_either_entered_or_dropped(store: StateStore) -> None:
    enter(store, OBJECT)
    with store.transaction() as connection:
        assert received.drop_names(connection, DATASET, [OBJECT.name, "orphan"]) == ["orphan"]
    with store.transaction() as connection:
        assert received.drop_names(connection, DATASET, ["orphan"]) == ["orphan"], "a flush that was killed repeats it"
        assert received.is_finished(connection, DATASET, "orphan")
        assert not received.is_finished(connection, DATASET, OBJECT.name)
        assert flushes.segment_attempts(connection, DATASET) == {}, "a dropped name is no segment that waits"


def test_rows_are_counted_by_machine_and_day(store: StateStore) -> None:
    enter(store, OBJECT, FILE)
    enter(store, ReceivedSegment("c", 1, 10, None), gateway="gw-2")
    with store.reading() as connection:
        days = received.list_days(connection, "default", "2000-01-01")
        assert received.list_days(connection, "default", "9999-01-01") == []
        assert received.list_days(connection, "other", "2000-01-01") == []
    assert sum(each.rows for each in days if each.gateway_id == "gw-1") == 12
    assert sum(each.bytes for each in days if each.gateway_id == "gw-1") == 1200
    assert [each.rows for each in days if each.gateway_id == "gw-2"] == [1]
