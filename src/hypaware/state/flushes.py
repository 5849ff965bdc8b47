"""Sequences, segments and flushes. Each function is one step of the flush protocol that the state records.

A flush is `reserved`, then `committed` or `burnt`. Its range (after, last] is never reused. A segment is `waiting` (an
earlier flush of it failed), `reserved` by a flush, or `committed`. A segment without a record is waiting too.

@ref flush#sequence
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, delete, func, insert, select, update

from hypaware.errors import StateCorrupt, StateError
from hypaware.state import sources, streams, tables, takeovers

_segments, _flushes, _high_water, _allocator = tables.segments, tables.flushes, tables.high_water, tables.allocator

_SEQ = "seq"
# Far below the 64-bit limit, so that one faulty import cannot use up the sequences of a home.
_LAST_SEQ = 2**62
# How long finished segments and flushes are kept, in case a segment file reappears.
_REMEMBER = timedelta(days=30)


@dataclass(frozen=True)
class ReservedSegment:
    name: str
    base: int
    rows: int
    attempts: int


@dataclass(frozen=True)
class Flush:
    id: str
    dataset: str
    after: int
    last: int
    segments: tuple[ReservedSegment, ...]


@dataclass(frozen=True)
class Outcome:
    """The result of a flush, as `record` stores it."""

    high_water: Mapping[str, int]
    rows_written: int
    rows_duplicate: int
    rows_rejected: int
    rows_purged: int = 0
    """Rows that were skipped because they were purged. Reported, but not stored."""
    rows_settled: int = 0
    """Native rows that settle a live row already in the lake. Reported, but not stored."""


def next_seq(connection: Connection) -> int:
    found = allocated(connection)
    if found is None:
        raise StateCorrupt("the state has no sequence allocator")
    return found


def allocated(connection: Connection) -> int | None:
    """Return the next sequence, or None if the allocator is empty, which must never be read as 1."""
    found = connection.execute(select(_allocator.c.next_seq).where(_allocator.c.name == _SEQ)).scalar()
    return None if found is None else int(found)


def raise_next_seq(connection: Connection, at_least: int) -> None:
    if allocated(connection) is None:
        connection.execute(insert(_allocator).values(name=_SEQ, next_seq=at_least))
    connection.execute(update(_allocator).where(_allocator.c.next_seq < at_least).values(next_seq=at_least))


def leap(connection: Connection, over: int) -> None:
    """Skip a range of sequences, which the home that this one was copied from will allocate."""
    base = next_seq(connection)
    if base + over > _LAST_SEQ:
        raise StateError(
            f"cannot skip {over} sequences: {base} is the next one and {_LAST_SEQ} the last. This home can be "
            "moved, but not copied any more"
        )
    raise_next_seq(connection, base + over)


def reserve(connection: Connection, dataset: str, segments: Sequence[tuple[str, int]], *, above: int = 0) -> Flush:
    """Reserve a range for the (name, rows) segments, higher than `above`, the floor of the lake's table.

    The attempt is counted here, so that a crash counts as an attempt.
    """
    base = max(next_seq(connection), above + 1)
    flush_id, now = str(uuid.uuid4()), streams.now()
    attempts = attempts_of(connection, dataset)
    reserved, start = [], base
    for name, rows in segments:
        reserved.append(ReservedSegment(name, start, rows, attempts.get(name, 0) + 1))
        start += rows
    flush = Flush(flush_id, dataset, base - 1, start - 1, tuple(reserved))
    _insert_flush(connection, flush)
    _forget_segments(connection, dataset, [segment.name for segment in reserved])
    connection.execute(
        insert(_segments),
        [
            {
                "dataset": dataset,
                "name": segment.name,
                "flush_id": flush_id,
                "seq_base": segment.base,
                "row_count": segment.rows,
                "status": "reserved",
                "attempts": segment.attempts,
                "updated_at": now,
            }
            for segment in reserved
        ],
    )
    return flush


def reserve_blocks(connection: Connection, dataset: str, size: int, *, above: int = 0) -> Flush:
    """Reserve `size` sequences, higher than `above`, for rows without a segment. Some may stay unused."""
    base = max(next_seq(connection), above + 1)
    if base + size > _LAST_SEQ:
        raise StateError(f"{dataset}: cannot reserve {size} sequences: {base} is the next one and {_LAST_SEQ} the last")
    flush = Flush(str(uuid.uuid4()), dataset, base - 1, base - 1 + size, ())
    _insert_flush(connection, flush)
    return flush


def _insert_flush(connection: Connection, flush: Flush) -> None:
    connection.execute(
        insert(_flushes).values(
            id=flush.id,
            dataset=flush.dataset,
            seq_after=flush.after,
            seq_last=flush.last,
            status="reserved",
            reserved_at=streams.now(),
        )
    )
    raise_next_seq(connection, flush.last + 1)


def unfinished(connection: Connection, dataset: str | None = None) -> list[Flush]:
    """Return the flushes that are reserved and neither committed nor burnt, oldest first."""
    chosen = select(_flushes).where(_flushes.c.status == "reserved").order_by(_flushes.c.seq_after)
    if dataset is not None:
        chosen = chosen.where(_flushes.c.dataset == dataset)
    return [
        Flush(row.id, row.dataset, row.seq_after, row.seq_last, _segments_of(connection, row.id))
        for row in connection.execute(chosen).all()
    ]


def unlanded(connection: Connection, dataset: str) -> set[str]:
    """Return the ids of flushes that are not recorded as committed: reserved and burnt ones."""
    chosen = select(_flushes.c.id).where(_flushes.c.dataset == dataset, _flushes.c.status != "committed")
    return set(connection.execute(chosen).scalars())


def burn(connection: Connection, flush: Flush, *, blamed: Iterable[str] | None = None) -> None:
    """Record that a flush was not committed: its range stays unused and its segments are waiting again.

    The attempt counts only for the `blamed` segments. None means that the cause is unknown, so it counts for all.
    """
    now = streams.now()
    _finish(connection, flush, status="burnt", finished_at=now)
    sources.discard(connection, flush.id)
    takeovers.discard(connection, flush.id)
    if blamed is not None:
        unblamed = [segment.name for segment in flush.segments if segment.name not in set(blamed)]
        for name in unblamed:
            connection.execute(
                update(_segments)
                .where(_segments.c.flush_id == flush.id, _segments.c.name == name)
                .values(attempts=_segments.c.attempts - 1)
            )
    connection.execute(
        update(_segments)
        .where(_segments.c.flush_id == flush.id)
        .values(status="waiting", flush_id=None, seq_base=None, updated_at=now)
    )


def record(connection: Connection, flush: Flush, outcome: Outcome) -> None:
    """Record that a flush was committed, or had no rows: finish its segments and raise its high water."""
    now = streams.now()
    _finish(
        connection,
        flush,
        status="committed",
        finished_at=now,
        rows_written=outcome.rows_written,
        rows_duplicate=outcome.rows_duplicate,
        rows_rejected=outcome.rows_rejected,
    )
    connection.execute(
        update(_segments).where(_segments.c.flush_id == flush.id).values(status="committed", updated_at=now)
    )
    raise_high_water(connection, flush.dataset, outcome.high_water)
    sources.promote(connection, flush.id)
    takeovers.promote(connection, flush.id)
    horizon = (datetime.now(UTC) - _REMEMBER).isoformat()
    connection.execute(delete(_segments).where(_segments.c.status == "committed", _segments.c.updated_at < horizon))
    connection.execute(delete(_flushes).where(_flushes.c.status != "reserved", _flushes.c.finished_at < horizon))


def mark_committed(connection: Connection, dataset: str, names: Iterable[str]) -> None:
    """Mark segments whose rows are in the lake, when the state is rebuilt."""
    unique = list(dict.fromkeys(names))
    _forget_segments(connection, dataset, unique)
    if unique:
        values = {"dataset": dataset, "row_count": 0, "status": "committed", "attempts": 0, "updated_at": streams.now()}
        connection.execute(insert(_segments), [{**values, "name": name} for name in unique])


def committed_segments(connection: Connection, dataset: str, names: Iterable[str]) -> set[str]:
    """Return those of the named segments whose rows are in the lake, so that only their files remain."""
    found = connection.execute(
        select(_segments.c.name).where(_segments.c.dataset == dataset, _segments.c.status == "committed")
    ).scalars()
    return set(found) & set(names)


def attempts_of(connection: Connection, dataset: str) -> dict[str, int]:
    found = connection.execute(
        select(_segments.c.name, _segments.c.attempts).where(
            _segments.c.dataset == dataset, _segments.c.status == "waiting"
        )
    )
    return {row.name: row.attempts for row in found}


def high_water(connection: Connection, dataset: str | None = None) -> dict[str, dict[str, int]]:
    chosen = select(_high_water)
    if dataset is not None:
        chosen = chosen.where(_high_water.c.dataset == dataset)
    found: dict[str, dict[str, int]] = {}
    for row in connection.execute(chosen):
        found.setdefault(row.dataset, {})[row.source] = row.seq
    return found


def recorded_through(connection: Connection, dataset: str) -> int:
    """Return the highest recorded sequence of the dataset, or 0."""
    return max(high_water(connection, dataset).get(dataset, {}).values(), default=0)


def raise_high_water(connection: Connection, dataset: str, by_source: Mapping[str, int]) -> None:
    known = high_water(connection, dataset).get(dataset, {})
    for source, seq in by_source.items():
        if source not in known:
            connection.execute(insert(_high_water).values(dataset=dataset, source=source, seq=seq))
        elif seq > known[source]:
            connection.execute(
                update(_high_water)
                .where(_high_water.c.dataset == dataset, _high_water.c.source == source)
                .values(seq=seq)
            )


def lower_high_water(connection: Connection, dataset: str, floor: int) -> None:
    """Lower the high water to the floor of a lake that was rolled back, after the user accepted the loss.

    Sequences are not reused. The import checkpoints are forgotten, so that imports can read the lost rows again.
    """
    sources.forget(connection, dataset)
    connection.execute(
        update(_high_water).where(_high_water.c.dataset == dataset, _high_water.c.seq > floor).values(seq=floor)
    )


def burnt_ids(connection: Connection, dataset: str) -> set[str]:
    """Return the ids of flushes that are recorded as not committed."""
    chosen = select(_flushes.c.id).where(_flushes.c.dataset == dataset, _flushes.c.status == "burnt")
    return set(connection.execute(chosen).scalars())


def last_flush_at(connection: Connection, dataset: str | None = None) -> datetime | None:
    chosen = select(func.max(_flushes.c.finished_at)).where(_flushes.c.status == "committed")
    if dataset is not None:
        chosen = chosen.where(_flushes.c.dataset == dataset)
    found = connection.execute(chosen).scalar()
    return datetime.fromisoformat(found) if found else None


def _finish(connection: Connection, flush: Flush, **values: object) -> None:
    """Change the status of a reserved flush, once: a committed flush is never burnt, and vice versa."""
    finished = connection.execute(
        update(_flushes).where(_flushes.c.id == flush.id, _flushes.c.status == "reserved").values(**values)
    )
    if finished.rowcount != 1:
        raise StateError(f"flush {flush.id} of {flush.dataset} is not reserved any more")


def _segments_of(connection: Connection, flush_id: str) -> tuple[ReservedSegment, ...]:
    found = connection.execute(select(_segments).where(_segments.c.flush_id == flush_id).order_by(_segments.c.seq_base))
    return tuple(ReservedSegment(row.name, row.seq_base, row.row_count, row.attempts) for row in found)


def _forget_segments(connection: Connection, dataset: str, names: Sequence[str]) -> None:
    for name in names:
        connection.execute(delete(_segments).where(_segments.c.dataset == dataset, _segments.c.name == name))
