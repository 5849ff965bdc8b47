"""What imports took of their sources: it counts together with the rows, or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hypaware.errors import StateError
from hypaware.state import flushes, sources
from hypaware.state.flushes import Flush, Outcome
from hypaware.state.source_mark import SourceMark, from_row, to_row
from hypaware.state.store import Store

_DATASET = "ai_gateway_messages"
_UNTIL = "2026-11-15T00:00:00.000000Z"
_MARK = SourceMark("claude", _DATASET, "/a.jsonl", 1, 100, 5, 90, "aa", ("msg_1",), False, ((5, 9),), None, _UNTIL)


def _pending(store: Store, *marks: SourceMark) -> Flush:
    with store.transaction() as connection:
        flush = flushes.reserve_blocks(connection, _DATASET, 1000)
        sources.pend(connection, flush.id, marks)
    return flush


def _record(store: Store, flush: Flush) -> None:
    with store.transaction() as connection:
        flushes.record(connection, flush, Outcome({}, 0, 0, 0))


def _known(store: Store, provider: str = "claude") -> dict[str, SourceMark]:
    with store.reading() as connection:
        return sources.known(connection, provider, _DATASET)


@pytest.mark.hazard(50)
def test_a_checkpoint_is_valid_when_its_flush_is_recorded(store: Store) -> None:
    """Counted before, a crash would lose the rows; counted after, it would only read them again."""
    flush = _pending(store, _MARK)
    assert _known(store) == {}
    _record(store, flush)
    assert _known(store) == {"/a.jsonl": _MARK}


@pytest.mark.hazard(50)
def test_a_checkpoint_of_a_discarded_flush_is_never_valid(store: Store) -> None:
    flush = _pending(store, _MARK)
    with store.transaction() as connection:
        flushes.burn(connection, flush, blamed=())
    _record(store, _pending(store))
    assert _known(store) == {}


def test_a_newer_checkpoint_replaces_only_the_older_one_of_its_source(store: Store) -> None:
    other = replace(_MARK, path="/b.jsonl", held=())
    elsewhere = replace(_MARK, provider="codex")
    _record(store, _pending(store, _MARK, other, elsewhere))
    grown = replace(_MARK, size=200, consumed=200, held=())
    _record(store, _pending(store, grown))
    assert _known(store) == {"/a.jsonl": grown, "/b.jsonl": other}
    assert _known(store, "codex") == {"/a.jsonl": elsewhere}


def test_ranges_are_reserved_above_the_floor_and_never_reused(store: Store) -> None:
    with store.transaction() as connection:
        first = flushes.reserve_blocks(connection, _DATASET, 10, above=500)
        second = flushes.reserve(connection, _DATASET, [("segment", 3)])
    assert (first.after, first.last) == (500, 510)
    assert (second.after, second.last) == (510, 513)


def test_lowering_the_high_water_forgets_the_checkpoints_of_the_dataset(store: Store) -> None:
    """Their transcripts may still be there, and the marks would keep them from being read."""
    _record(store, _pending(store, _MARK))
    with store.transaction() as connection:
        flushes.lower_high_water(connection, _DATASET, 0)
    assert _known(store) == {}


def test_a_range_that_would_use_up_all_sequences_is_rejected(store: Store) -> None:
    with pytest.raises(StateError, match="cannot reserve"), store.transaction() as connection:
        flushes.reserve_blocks(connection, _DATASET, 2**63 - 10)
    with store.transaction() as connection:
        assert flushes.reserve_blocks(connection, _DATASET, 10).last == 10


def test_a_checkpoint_without_the_ignored_column_is_read(store: Store) -> None:
    mark = replace(_MARK, ignored=(("/a", None), (None, "s")))
    row = to_row(mark)
    assert from_row(row) == mark
    del row["ignored"]
    assert from_row(row) == _MARK
    _record(store, _pending(store, mark))
    assert _known(store) == {mark.path: mark}
