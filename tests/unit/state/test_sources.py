"""Checkpoints of sources: valid together with their rows, or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hypaware.errors import StateError
from hypaware.model.row_counts import RowCounts
from hypaware.state import flushes
from hypaware.state.flushes import Flush, FlushOutcome, SourceCheckpoint, checkpoint_from_row, checkpoint_to_row
from hypaware.state.store import StateStore

_DATASET = "ai_gateway_messages"
_UNTIL = "2026-11-15T00:00:00.000000Z"
_MARK = SourceCheckpoint(
    "claude", _DATASET, "/a.jsonl", 1, 100, 5, 90, "aa", ("msg_1",), False, ((5, 9),), None, _UNTIL
)


def _pending(store: StateStore, *marks: SourceCheckpoint) -> Flush:
    with store.transaction() as connection:
        flush = flushes.reserve_range(connection, _DATASET, 1000)
        flushes.add_pending_checkpoints(connection, flush.id, marks)
    return flush


def _record(store: StateStore, flush: Flush) -> None:
    with store.transaction() as connection:
        flushes.record_flush(connection, flush, FlushOutcome({}, RowCounts()))


def _known(store: StateStore, provider: str = "claude") -> dict[str, SourceCheckpoint]:
    with store.reading() as connection:
        return flushes.load_checkpoints(connection, provider, _DATASET)


@pytest.mark.hazard(50)
def test_a_checkpoint_is_valid_when_its_flush_is_recorded(store: StateStore) -> None:
    """If it were valid earlier, a crash would lose the rows."""
    flush = _pending(store, _MARK)
    assert _known(store) == {}
    _record(store, flush)
    assert _known(store) == {"/a.jsonl": _MARK}


@pytest.mark.hazard(50)
def test_a_checkpoint_of_a_discarded_flush_is_never_valid(store: StateStore) -> None:
    flush = _pending(store, _MARK)
    with store.transaction() as connection:
        flushes.discard_flush(connection, flush, blamed=())
    _record(store, _pending(store))
    assert _known(store) == {}


def test_machines_that_share_a_lake_have_their_own_checkpoints_of_the_same_path(store: StateStore) -> None:
    here, there = replace(_MARK, machine="here"), replace(_MARK, machine="there", consumed=50)
    _record(store, _pending(store, here))
    flush = _pending(store, there)
    with store.transaction() as connection:
        key = ("claude", _DATASET, _MARK.path)
        assert not flushes.has_pending_checkpoint(connection, *key, "here")
        assert flushes.has_pending_checkpoint(connection, *key, "there")
        assert flushes.load_checkpoints(connection, "claude", _DATASET, machine="there") == {}
    _record(store, flush)
    with store.transaction() as connection:
        flushes.store_checkpoint(connection, newer := replace(here, consumed=95))
        assert flushes.load_checkpoint(connection, *key, "here") == newer
        assert flushes.load_checkpoints(connection, "claude", _DATASET, machine="there") == {_MARK.path: there}
        flushes.forget_checkpoint(connection, there)
        assert flushes.list_checkpoints(connection, _DATASET, "there") == []
        assert flushes.list_checkpoints(connection, _DATASET, "here") == [newer]


def test_a_newer_checkpoint_replaces_only_the_older_one_of_its_source(store: StateStore) -> None:
    other = replace(_MARK, path="/b.jsonl", held=())
    elsewhere = replace(_MARK, provider="codex")
    _record(store, _pending(store, _MARK, other, elsewhere))
    grown = replace(_MARK, size=200, consumed=200, held=())
    _record(store, _pending(store, grown))
    assert _known(store) == {"/a.jsonl": grown, "/b.jsonl": other}
    assert _known(store, "codex") == {"/a.jsonl": elsewhere}


def test_ranges_are_reserved_above_the_floor_and_never_reused(store: StateStore) -> None:
    with store.transaction() as connection:
        first = flushes.reserve_range(connection, _DATASET, 10, above=500)
        second = flushes.reserve_flush(connection, _DATASET, [("segment", 3)])
    assert (first.after, first.last) == (500, 510)
    assert (second.after, second.last) == (510, 513)


def test_lowering_the_high_water_forgets_the_checkpoints_of_the_dataset(store: StateStore) -> None:
    """The transcripts may still exist, and the checkpoints would prevent reading them again."""
    _record(store, _pending(store, _MARK))
    with store.transaction() as connection:
        flushes.lower_high_water(connection, _DATASET, 0)
    assert _known(store) == {}


def test_a_range_that_would_use_up_all_sequences_is_rejected(store: StateStore) -> None:
    with pytest.raises(StateError, match="cannot reserve"), store.transaction() as connection:
        flushes.reserve_range(connection, _DATASET, 2**63 - 10)
    with store.transaction() as connection:
        assert flushes.reserve_range(connection, _DATASET, 10).last == 10


def test_a_checkpoint_without_the_ignored_column_is_read(store: StateStore) -> None:
    mark = replace(_MARK, ignored=(("/a", None), (None, "s")))
    row = checkpoint_to_row(mark)
    assert checkpoint_from_row(row) == mark
    del row["ignored"]
    assert checkpoint_from_row(row) == _MARK
    _record(store, _pending(store, mark))
    assert _known(store) == {mark.path: mark}
