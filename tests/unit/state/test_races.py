"""Changes that read before they write, made by two connections at the same time. Over SQLite and PostgreSQL.

They rely on a transaction being the only one that writes while it runs. Most of these tests fail if it is not; in the
others, a key or a condition decides who wins.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar

import pytest

from hypaware.errors import HypError, StateError
from hypaware.model.row_counts import RowCounts
from hypaware.state import dead_letters, flushes, ledger, schema, streams
from hypaware.state.dead_letters import DeadLetter
from hypaware.state.flushes import FlushOutcome, SourceCheckpoint
from hypaware.state.ledger import BatchSender, GatewayClaim, ReceivedBatch, SequenceRange, StreamRange
from hypaware.state.store import Connection, StateStore
from hypaware.state.streams import Intent, PlannedChunk, StreamKey
from tests.support.state_database import make_database

T = TypeVar("T")
_DATASET, _KEY = "ai_gateway_messages", StreamKey("team", "ai_gateway_messages", "claude")
_ROUNDS = 10


def _race(store: StateStore, *changes: Callable[[Connection], T]) -> list[T | HypError]:
    """Run each change in its own transaction, connection and thread, all at once, and return what they return."""
    barrier = threading.Barrier(len(changes))

    def run(change: Callable[[Connection], T]) -> T | HypError:
        with closing(StateStore(store.database)) as own:
            own.close()
            barrier.wait()
            try:
                with own.transaction() as connection:
                    return change(connection)
            except StateError as error:
                return error

    with ThreadPoolExecutor(len(changes)) as pool:
        return list(pool.map(run, changes))


def _pair(change: Callable[[Connection], T]) -> list[Callable[[Connection], T]]:
    return [change, change]


def test_two_flushes_never_get_the_same_sequence(store: StateStore) -> None:
    last = 0
    for number in range(_ROUNDS):
        found = _race(
            store,
            lambda c, n=number: flushes.reserve_flush(c, _DATASET, [(f"a{n}", 3)]),  # type: ignore[misc]
            lambda c: flushes.reserve_range(c, _DATASET, 5),
        )
        ranges = sorted((flush.after, flush.last) for flush in found if isinstance(flush, flushes.Flush))
        assert [size for after, end in ranges for size in [end - after]] in ([3, 5], [5, 3])
        assert ranges[0][0] == last
        assert ranges[0][1] == ranges[1][0]
        last = ranges[1][1]


def test_a_flush_is_either_recorded_or_discarded(store: StateStore) -> None:
    for _ in range(_ROUNDS):
        with store.transaction() as connection:
            flush = flushes.reserve_range(connection, _DATASET, 1)
        found = _race(
            store,
            lambda c, f=flush: flushes.record_flush(c, f, FlushOutcome({}, RowCounts())),  # type: ignore[misc]
            lambda c, f=flush: flushes.discard_flush(c, f),  # type: ignore[misc]
        )
        assert sum(isinstance(outcome, StateError) for outcome in found) == 1


def test_the_high_water_keeps_the_highest(store: StateStore) -> None:
    for number in range(_ROUNDS):
        low, high = {"claude": 10 * number + 1}, {"claude": 10 * number + 9}
        _race(
            store,
            lambda c, to=high: flushes.raise_high_water(c, _DATASET, to),  # type: ignore[misc]
            lambda c, to=low: flushes.raise_high_water(c, _DATASET, to),  # type: ignore[misc]
        )
        with store.reading() as connection:
            assert flushes.load_high_water(connection) == {_DATASET: high}


def test_every_delivery_step_is_counted(store: StateStore) -> None:
    for _ in range(_ROUNDS):
        assert _race(store, *_pair(streams.advance_delivery_step)) == [None, None]
    with store.reading() as connection:
        assert streams.delivery_step(connection) == 2 * _ROUNDS


def test_a_stream_gets_one_intent(store: StateStore) -> None:
    for number in range(_ROUNDS):
        key = StreamKey("team", _DATASET, f"source {number}")
        with store.transaction() as connection:
            streams.create_stream(connection, key, "somewhere")

        def plan(connection: Connection, key: StreamKey = key) -> None:
            streams.save_intent(connection, Intent(key, 0, 5, (PlannedChunk("c", "i", 0, 5, 5),)))

        assert sum(isinstance(outcome, StateError) for outcome in _race(store, *_pair(plan))) == 1
        with store.reading() as connection:
            intent = streams.load_intent(connection, key)
        assert intent is not None
        assert len(intent.chunks) == 1


def test_acknowledged_rows_are_counted_once(store: StateStore) -> None:
    chunks = tuple(PlannedChunk(f"c{n}", "i", n, n + 1, 7) for n in range(_ROUNDS))
    with store.transaction() as connection:
        streams.create_stream(connection, _KEY, "somewhere")
        streams.save_intent(connection, Intent(_KEY, 0, _ROUNDS, chunks))
    for chunk in chunks:
        _race(store, *_pair(lambda c, chunk=chunk: streams.acknowledge_chunk(c, _KEY, chunk, 7)))  # type: ignore[misc]
    with store.reading() as connection:
        found = streams.load_stream(connection, _KEY)
    assert found is not None
    assert found.exported_rows == 7 * _ROUNDS


def test_overlapping_batches_are_recorded_once(store: StateStore) -> None:
    """Two receivers get the same rows under two ids, as after a sender that lost its state."""
    for number in range(_ROUNDS):
        sender = BatchSender("default", f"gateway {number}", "i", _DATASET)
        ranges = [StreamRange("claude", SequenceRange(0, 10)), StreamRange("claude", SequenceRange(5, 15))]

        def record(connection: Connection, delivery: StreamRange, sender: BatchSender = sender) -> bool:
            if ledger.overlaps_delivered(connection, sender, delivery):
                return False
            batch = ReceivedBatch(sender, str(delivery.range.after), delivery, 10, "sha", None)
            ledger.record_batch(connection, batch)
            return True

        found = _race(store, *(lambda c, r=each: record(c, r) for each in ranges))
        assert sorted(map(str, found)) == ["False", "True"]


def test_adjacent_ranges_are_joined(store: StateStore) -> None:
    for number in range(_ROUNDS):
        sender = BatchSender("default", f"gateway {number}", "i", _DATASET)

        def record(connection: Connection, after: int, sender: BatchSender = sender) -> None:
            delivery = StreamRange("claude", SequenceRange(after, after + 10))
            ledger.record_batch(connection, ReceivedBatch(sender, str(after), delivery, 10, "sha", None))

        _race(store, *(lambda c, after=after: record(c, after) for after in (0, 10, 20)))
        with store.reading() as connection:
            assert ledger.delivered_ranges(connection, sender, "claude") == [SequenceRange(0, 30)]


def test_a_gateway_id_is_bound_to_one_secret(store: StateStore) -> None:
    for number in range(_ROUNDS):
        claims = [GatewayClaim("default", f"gateway {number}", "owner", secret) for secret in ("one", "two")]
        found = _race(store, *(lambda c, claim=each: ledger.bind_gateway(c, claim) for each in claims))
        assert sorted(map(str, found)) == ["False", "True"]


def test_a_value_that_is_replaced_twice_has_one_of_the_values(store: StateStore) -> None:
    checkpoint = SourceCheckpoint("claude", _DATASET, "/a", 1, 1, 1, 1, "", (), False, (), None, None)
    letter = DeadLetter("c", _KEY, "i", 0, 5, 5, "reason", "2026-01-01")
    for _ in range(_ROUNDS):
        for change in (
            lambda c: schema.set_meta(c, "k", "v"),
            lambda c: flushes.store_checkpoint(c, checkpoint),
            lambda c: dead_letters.add_letter(c, letter, b"rows"),
            lambda c: flushes.mark_segments_committed(c, _DATASET, ["s"]),
        ):
            assert _race(store, *_pair(change)) == [None, None]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_two_processes_can_migrate_a_new_state(
    kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    database = make_database(kind, tmp_path_factory.mktemp("new"), request)
    with closing(StateStore(database)) as one, closing(StateStore(database)) as other:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(StateStore.migrate, (one, other)))
        with one.reading() as connection:
            assert connection.values("SELECT name FROM migrations ORDER BY name") == [n for n, _ in schema.MIGRATIONS]
            assert flushes.next_sequence(connection) == 1
