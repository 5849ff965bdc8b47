"""Sequences and flushes: a range is reserved once, and a flush is finished once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from hypaware.errors import StateCorrupt, StateError
from hypaware.model.row_counts import RowCounts
from hypaware.state import flushes
from hypaware.state.flushes import Flush, FlushOutcome
from hypaware.state.store import StateStore
from tests.support.processes import together

_DATASET = "ai_gateway_messages"
_NOTHING = FlushOutcome({}, RowCounts())


def _reserve(store: StateStore, *segments: tuple[str, int], above: int = 0) -> Flush:
    with store.transaction() as connection:
        return flushes.reserve_flush(connection, _DATASET, segments, above=above)


def _burn(store: StateStore, flush: Flush, blamed: tuple[str, ...] | None = None) -> None:
    with store.transaction() as connection:
        flushes.discard_flush(connection, flush, blamed=blamed)


def _record(store: StateStore, flush: Flush, outcome: FlushOutcome = _NOTHING) -> None:
    with store.transaction() as connection:
        flushes.record_flush(connection, flush, outcome)


def _attempts(store: StateStore) -> dict[str, int]:
    with store.reading() as connection:
        return flushes.segment_attempts(connection, _DATASET)


def _committed(store: StateStore, *names: str) -> set[str]:
    with store.reading() as connection:
        return flushes.committed_segments(connection, _DATASET, names)


def test_ranges_are_consecutive_and_a_sequence_is_the_base_plus_the_ordinal(store: StateStore) -> None:
    first = _reserve(store, ("a", 3), ("b", 2))
    second = _reserve(store, ("c", 1))
    assert (first.after, first.last) == (0, 5)
    assert [(segment.name, segment.base, segment.rows) for segment in first.segments] == [("a", 1, 3), ("b", 4, 2)]
    assert (second.after, second.last) == (5, 6)


def test_a_flush_is_unfinished_until_it_is_recorded_or_discarded(store: StateStore) -> None:
    landed, lost = _reserve(store, ("a", 3)), _reserve(store, ("b", 2))
    with store.reading() as connection:
        assert flushes.unfinished_flushes(connection) == [landed, lost]
        assert flushes.unfinished_flushes(connection, "another") == []
    _record(store, landed, FlushOutcome({"claude": 3}, RowCounts(3)))
    _burn(store, lost)
    with store.reading() as connection:
        assert flushes.unfinished_flushes(connection) == []
        assert flushes.load_high_water(connection) == {_DATASET: {"claude": 3}}
        assert flushes.discarded_flush_ids(connection, _DATASET) == {lost.id}
        assert flushes.last_flush_at(connection) is not None
        assert flushes.last_flush_at(connection, "another") is None
    assert _committed(store, "a", "b") == {"a"}


def test_the_range_of_a_discarded_flush_is_never_reused(store: StateStore) -> None:
    lost = _reserve(store, ("a", 3))
    _burn(store, lost)
    again = _reserve(store, ("a", 3))
    assert again.after == lost.last
    assert again.id != lost.id


def test_a_flush_is_finished_once(store: StateStore) -> None:
    """If a committed flush were discarded, its rows would be committed again."""
    flush = _reserve(store, ("a", 1))
    _record(store, flush)
    with pytest.raises(StateError, match="not reserved any more"):
        _burn(store, flush)
    assert _committed(store, "a") == {"a"}
    lost = _reserve(store, ("b", 1))
    _burn(store, lost)
    with pytest.raises(StateError, match="not reserved any more"):
        _record(store, lost)
    assert _committed(store, "b") == set()


def test_each_attempt_counts_even_if_the_process_was_killed(store: StateStore) -> None:
    for attempt in (1, 2, 3):
        flush = _reserve(store, ("a", 1), ("b", 1))
        assert [segment.attempts for segment in flush.segments] == [attempt, attempt]
        _burn(store, flush)
    assert _attempts(store) == {"a": 3, "b": 3}


def test_a_failure_counts_only_for_the_blamed_segments(store: StateStore) -> None:
    _burn(store, _reserve(store, ("a", 1), ("b", 1)), blamed=("b",))
    assert _attempts(store) == {"a": 0, "b": 1}
    _burn(store, _reserve(store, ("a", 1), ("b", 1)), blamed=())
    assert _attempts(store) == {"a": 0, "b": 1}


def test_high_water_only_rises(store: StateStore) -> None:
    with store.transaction() as connection:
        flushes.raise_high_water(connection, _DATASET, {"claude": 10, "codex": 5})
        flushes.raise_high_water(connection, _DATASET, {"claude": 7, "codex": 8})
        assert flushes.load_high_water(connection, _DATASET) == {_DATASET: {"claude": 10, "codex": 8}}


@pytest.mark.hazard(15)
def test_the_next_sequence_only_rises(store: StateStore) -> None:
    with store.transaction() as connection:
        flushes.raise_next_sequence(connection, 100)
        flushes.raise_next_sequence(connection, 50)
        assert flushes.next_sequence(connection) == 100


@pytest.mark.hazard(74)
def test_nothing_is_reserved_at_or_below_the_lakes_floor(store: StateStore) -> None:
    assert _reserve(store, ("a", 2), above=1_000).after == 1_000
    assert _reserve(store, ("b", 2), above=1_000).after == 1_002
    assert _reserve(store, ("c", 2)).after == 1_004


@pytest.mark.hazard(15)
def test_an_empty_allocator_is_damage_and_never_means_one(store: StateStore) -> None:
    with store.transaction() as connection:
        connection.execute("DELETE FROM allocator")
    with pytest.raises(StateCorrupt, match="no sequence allocator"):
        _reserve(store, ("a", 1))
    with store.transaction() as connection:
        flushes.raise_next_sequence(connection, 41)
    assert _reserve(store, ("a", 1)).last == 41


def test_committed_segments_can_be_named_twice(store: StateStore) -> None:
    _reserve(store, ("a", 1))
    with store.transaction() as connection:
        flushes.mark_segments_committed(connection, _DATASET, ["a", "b", "b"])
        flushes.mark_segments_committed(connection, _DATASET, [])
    assert _committed(store, "a", "b", "c") == {"a", "b"}


def test_old_finished_flushes_are_forgotten_but_for_one_of_each_day(store: StateStore) -> None:
    """The days of commits show whether the clock can be trusted. Unfinished flushes are kept."""
    old = (datetime.now(UTC) - timedelta(days=31)).isoformat()
    done, again, burnt, open_ = (_reserve(store, (name, 1)) for name in ("a", "e", "b", "c"))
    _record(store, done)
    _record(store, again)
    _burn(store, burnt)
    with store.transaction() as connection:
        connection.execute("UPDATE segments SET updated_at = ?", (old,))
        connection.execute("UPDATE flushes SET finished_at = :old, reserved_at = :old", {"old": old})
    _record(store, _reserve(store, ("d", 1)))
    with store.reading() as connection:
        assert [flush.id for flush in flushes.unfinished_flushes(connection)] == [open_.id]
        assert set(connection.values("SELECT name FROM segments")) == {"b", "c", "d"}
        assert len(connection.rows("SELECT id FROM flushes")) == 3
        assert len(flushes.commit_times(connection)) == 2


@pytest.mark.hazard(14)
def test_concurrent_processes_never_allocate_the_same_sequence(store: StateStore, tmp_path: Path) -> None:
    """In the original, two processes allocated 2,935 of 3,000 sequences twice."""

    def allocate(number: int) -> None:
        with open(tmp_path / f"taken-{number}", "w") as taken:
            for turn in range(40):
                flush = _reserve(store, (f"{number}-{turn}", 7))
                taken.write(f"{flush.after} {flush.last}\n")

    assert together([partial(allocate, number) for number in range(5)]) == [0] * 5
    ranges = [line.split() for path in tmp_path.glob("taken-*") for line in path.read_text().splitlines()]
    taken = [number for after, last in ranges for number in range(int(after) + 1, int(last) + 1)]
    assert sorted(taken) == list(range(1, 5 * 40 * 7 + 1))
