"""Sequences, segments and flushes: each step of the flush protocol that the state must remember is one function.

A flush is `reserved`, then `committed` or `burnt`; its range (after, last] is never given out again. A segment is
`waiting` (it has failed before), `reserved` by a flush, or `committed`; one that the state does not know waits too.

@ref flush#sequence
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, delete, func, insert, select, update

from hypaware.errors import StateError
from hypaware.state import sources, tables, takeovers
from hypaware.state.store import StateCorrupt

_segments, _flushes, _high_water, _allocator = tables.segments, tables.flushes, tables.high_water, tables.allocator

_SEQ = "seq"
# Far below what 64 bits hold: no mistake of a single import may end the numbers of a home.
_LAST_SEQ = 2**62
# How long the state remembers segments and flushes that are done, against a segment file that reappears.
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
    """What a flush did, as Record writes it down."""

    high_water: Mapping[str, int]
    rows_written: int
    rows_duplicate: int
    rows_rejected: int
    rows_purged: int = 0
    """Kept out, because they were purged before: told, and not remembered."""
    rows_settled: int = 0
    """Records of things that have a row already, under another id, which they settle: told, and not remembered."""


def next_seq(connection: Connection) -> int:
    found = allocated(connection)
    if found is None:
        raise StateCorrupt("the state has lost its allocator")
    return found


def allocated(connection: Connection) -> int | None:
    """The next sequence; None if the allocator is empty, which must never mean 1."""
    found = connection.execute(select(_allocator.c.next_seq).where(_allocator.c.name == _SEQ)).scalar()
    return None if found is None else int(found)


def raise_next_seq(connection: Connection, at_least: int) -> None:
    if allocated(connection) is None:
        connection.execute(insert(_allocator).values(name=_SEQ, next_seq=at_least))
    connection.execute(update(_allocator).where(_allocator.c.next_seq < at_least).values(next_seq=at_least))


def leap(connection: Connection, over: int) -> None:
    """Leaves so many sequences to another home, which has the same past and gives out its own from here on."""
    base = next_seq(connection)
    if base + over > _LAST_SEQ:
        raise StateError(
            f"no {over} sequences are left to leap over: {base} is the next one, {_LAST_SEQ} the last. This home can "
            "be moved, but not copied any more"
        )
    raise_next_seq(connection, base + over)


def reserve(connection: Connection, dataset: str, segments: Sequence[tuple[str, int]], *, above: int = 0) -> Flush:
    """Takes a range for the (name, rows) segments, higher than `above`: the floor that the lake itself knows.

    The attempt is counted here, so that a crash counts as well.
    """
    base = max(next_seq(connection), above + 1)
    flush_id, now = str(uuid.uuid4()), _now()
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
    """Takes a range of `size` for rows that come from no segment, higher than `above`. It may have gaps in the end."""
    base = max(next_seq(connection), above + 1)
    if base + size > _LAST_SEQ:
        raise StateError(f"{dataset}: a range of {size} sequences does not fit any more: {base} is the next one")
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
            reserved_at=_now(),
        )
    )
    raise_next_seq(connection, flush.last + 1)


def unfinished(connection: Connection, dataset: str | None = None) -> list[Flush]:
    """Flushes that were reserved and neither committed nor burnt, oldest first."""
    chosen = select(_flushes).where(_flushes.c.status == "reserved").order_by(_flushes.c.seq_after)
    if dataset is not None:
        chosen = chosen.where(_flushes.c.dataset == dataset)
    return [
        Flush(row.id, row.dataset, row.seq_after, row.seq_last, _segments_of(connection, row.id))
        for row in connection.execute(chosen).all()
    ]


def unlanded(connection: Connection, dataset: str) -> set[str]:
    """Ids of flushes that are not known to have landed: unfinished and burnt ones, as far as anybody remembers."""
    chosen = select(_flushes.c.id).where(_flushes.c.dataset == dataset, _flushes.c.status != "committed")
    return set(connection.execute(chosen).scalars())


def burn(connection: Connection, flush: Flush, *, guilty: Iterable[str] | None = None) -> None:
    """The flush did not land: its range is given up, its segments wait again.

    The attempt is held against the guilty segments only; None means that nobody knows, so against all.
    """
    now = _now()
    _settle(connection, flush, status="burnt", finished_at=now)
    sources.discard(connection, flush.id)
    takeovers.discard(connection, flush.id)
    if guilty is not None:
        innocent = [segment.name for segment in flush.segments if segment.name not in set(guilty)]
        for name in innocent:
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
    """The flush landed, or had nothing to land: its segments are done and the high water of its sources is raised."""
    now = _now()
    _settle(
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
    """Segments that the lake itself says it holds; used when the state is rebuilt."""
    wanted = list(dict.fromkeys(names))
    _forget_segments(connection, dataset, wanted)
    if wanted:
        values = {"dataset": dataset, "row_count": 0, "status": "committed", "attempts": 0, "updated_at": _now()}
        connection.execute(insert(_segments), [{**values, "name": name} for name in wanted])


def committed_segments(connection: Connection, dataset: str, names: Iterable[str]) -> set[str]:
    """Those of the named segments whose rows are in the lake: only their files are still there."""
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
    """The highest sequence of the dataset that was recorded; 0 if there was none."""
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
    """The lake was rolled back and the user goes on without those rows. Sequences are not given out again for that;
    what imports brought may be there to be read again."""
    sources.forget(connection, dataset)
    connection.execute(
        update(_high_water).where(_high_water.c.dataset == dataset, _high_water.c.seq > floor).values(seq=floor)
    )


def burnt_ids(connection: Connection, dataset: str) -> set[str]:
    """Flushes that did not land, as far back as the state remembers."""
    chosen = select(_flushes.c.id).where(_flushes.c.dataset == dataset, _flushes.c.status == "burnt")
    return set(connection.execute(chosen).scalars())


def last_flush_at(connection: Connection, dataset: str | None = None) -> datetime | None:
    chosen = select(func.max(_flushes.c.finished_at)).where(_flushes.c.status == "committed")
    if dataset is not None:
        chosen = chosen.where(_flushes.c.dataset == dataset)
    found = connection.execute(chosen).scalar()
    return datetime.fromisoformat(found) if found else None


def _settle(connection: Connection, flush: Flush, **values: object) -> None:
    """Once: what was committed is never burnt, what was burnt is never committed."""
    settled = connection.execute(
        update(_flushes).where(_flushes.c.id == flush.id, _flushes.c.status == "reserved").values(**values)
    )
    if settled.rowcount != 1:
        raise StateError(f"flush {flush.id} of {flush.dataset} is no longer reserved, it was settled before")


def _segments_of(connection: Connection, flush_id: str) -> tuple[ReservedSegment, ...]:
    found = connection.execute(select(_segments).where(_segments.c.flush_id == flush_id).order_by(_segments.c.seq_base))
    return tuple(ReservedSegment(row.name, row.seq_base, row.row_count, row.attempts) for row in found)


def _forget_segments(connection: Connection, dataset: str, names: Sequence[str]) -> None:
    for name in names:
        connection.execute(delete(_segments).where(_segments.c.dataset == dataset, _segments.c.name == name))


def _now() -> str:
    return datetime.now(UTC).isoformat()
