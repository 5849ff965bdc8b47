"""The ledger of a server: the batches that gateways delivered, and the ranges of sequences that they cover.

Batches are recorded by id, so that a batch that is sent again is not stored again. Ids are forgotten once the sender
confirms that it has seen the acknowledgement. Ranges are kept forever, merged: they are the watermark of each stream,
and they show that a batch under a new id contains rows that were already stored. A gap between ranges is a chunk that
the sender has set aside as a dead letter, and may be filled later. Each incarnation of a gateway has its own sequences,
and therefore its own ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection, Table, and_, bindparam, delete, insert, select, update

from hypaware.state import streams, tables

_batches, _delivered = tables.batches, tables.delivered
MAX_HOLES = 1_000
_SENDER = ("tenant", "gateway_id", "incarnation", "dataset")
_STREAM = (*_SENDER, "source")


@dataclass(frozen=True)
class Sender:
    """One incarnation of a gateway, for one dataset."""

    tenant: str
    gateway_id: str
    incarnation: str
    dataset: str


@dataclass(frozen=True)
class Range:
    """The sender's sequences (after, last]."""

    after: int
    last: int


@dataclass(frozen=True)
class Delivery:
    """The part of a stream that a batch contains."""

    source: str
    range: Range


@dataclass(frozen=True)
class Batch:
    sender: Sender
    id: str
    delivery: Delivery | None
    """None from a client without ranges. Its batches are identified by their ids alone, which are kept forever."""
    rows: int
    content_sha: str
    segment: str | None
    """None if the batch had no rows."""


@dataclass(frozen=True)
class Covered:
    """Everything up to `last` was stored, except for the holes."""

    last: int
    holes: tuple[Range, ...] = ()


def _key(table: Table, names: Iterable[str]) -> Any:
    # Prefixed names, so that an UPDATE or DELETE does not treat them as new values.
    return and_(*(table.c[name] == bindparam(f"of_{name}") for name in names))


_KNOWN = select(_batches.c.batch_id).where(_key(_batches, (*_SENDER, "batch_id")))
_KNOWN_IN_ANY_LIFE = select(_batches.c.batch_id).where(_key(_batches, ("tenant", "gateway_id", "dataset", "batch_id")))
_OVERLAPS = (
    select(_delivered.c.seq_after)
    .where(_key(_delivered, _STREAM))
    .where(_delivered.c.seq_after < bindparam("until"), _delivered.c.seq_last > bindparam("since"))
    .limit(1)
)
_RANGES = (
    select(_delivered.c.seq_after, _delivered.c.seq_last)
    .where(_key(_delivered, _STREAM))
    .order_by(_delivered.c.seq_after)
)
_LONGER_BY = (
    update(_delivered)
    .where(_key(_delivered, _STREAM), _delivered.c.seq_last == bindparam("since"))
    .values(seq_last=bindparam("until"))
)
_BEGINS_AT = select(_delivered.c.seq_last).where(_key(_delivered, (*_STREAM, "seq_after")))
_DROP = delete(_delivered).where(_key(_delivered, (*_STREAM, "seq_after")))
_FORGET = delete(_batches).where(_key(_batches, _STREAM), _batches.c.seq_last <= bindparam("acked_to"))
_ENTER, _NEW_RANGE = insert(_batches), insert(_delivered)
_KEEPER = "ledger_keeper"


def is_known(connection: Connection, sender: Sender, batch_id: str) -> bool:
    return connection.execute(_KNOWN, {**_of(sender), "of_batch_id": batch_id}).first() is not None


def is_known_in_any_life(connection: Connection, sender: Sender, batch_id: str) -> bool:
    """Look the batch up under every incarnation, for a client that does not name one."""
    values = {name: value for name, value in _of(sender).items() if name != "of_incarnation"}
    return connection.execute(_KNOWN_IN_ANY_LIFE, {**values, "of_batch_id": batch_id}).first() is not None


def overlaps(connection: Connection, sender: Sender, delivery: Delivery) -> bool:
    """Report whether any row of the range may be stored already."""
    bounds = {"since": delivery.range.after, "until": delivery.range.last}
    return connection.execute(_OVERLAPS, {**_of(sender, delivery.source), **bounds}).first() is not None


def ranges(connection: Connection, sender: Sender, source: str) -> list[Range]:
    """Return the delivered ranges, lowest first. No two of them are adjacent."""
    return [Range(*row) for row in connection.execute(_RANGES, _of(sender, source))]


def enter(connection: Connection, batch: Batch) -> None:
    """Record a stored batch. Its range must not overlap the ranges delivered before."""
    delivery = batch.delivery
    connection.execute(
        _ENTER,
        {
            **_plain(batch.sender),
            "batch_id": batch.id,
            "source": delivery.source if delivery else None,
            "seq_after": delivery.range.after if delivery else None,
            "seq_last": delivery.range.last if delivery else None,
            "segment": batch.segment,
            "row_count": batch.rows,
            "content_sha": batch.content_sha,
            "stored_at": streams.now(),
        },
    )
    if delivery:
        _cover(connection, batch.sender, delivery)


def forget(connection: Connection, sender: Sender, source: str, acked_to: int) -> None:
    """Forget batches that end at or below the sequence. The sender will not ask about them again."""
    connection.execute(_FORGET, {**_of(sender, source), "acked_to": acked_to})


def known_segments(connection: Connection, dataset: str, names: Sequence[str]) -> set[str]:
    """Return those of the named segments that contain recorded batches."""
    chosen = select(_batches.c.segment).where(_batches.c.dataset == dataset, _batches.c.segment.in_(names))
    return set(connection.execute(chosen).scalars())


def covered(delivered: Sequence[Range], asked: Range | None = None) -> Covered:
    """Return the coverage of a stream: its last sequence and the holes below it, or only those within `asked`.

    At most MAX_HOLES holes are returned. If there are more, `last` ends before the first omitted one, so that a sender
    that continues from there reaches it.
    """
    if not delivered:
        return Covered(0)
    gaps = [Range(0, delivered[0].after), *(Range(low.last, high.after) for low, high in pairwise(delivered))]
    if asked is not None:
        gaps = [Range(max(gap.after, asked.after), min(gap.last, asked.last)) for gap in gaps]
    gaps = [gap for gap in gaps if gap.after < gap.last]
    last = gaps[MAX_HOLES].after if len(gaps) > MAX_HOLES else delivered[-1].last
    return Covered(last, tuple(gaps[:MAX_HOLES]))


def keeper(connection: Connection) -> str | None:
    """Return the id of the server that the ledger belongs to, or None if the ledger was lost with the state."""
    return connection.execute(select(tables.meta.c.value).where(tables.meta.c.key == _KEEPER)).scalar()


def keep(connection: Connection, server_id: str) -> None:
    connection.execute(delete(tables.meta).where(tables.meta.c.key == _KEEPER))
    connection.execute(insert(tables.meta).values(key=_KEEPER, value=server_id))


def _cover(connection: Connection, sender: Sender, delivery: Delivery) -> None:
    """Add a range. Chunks arrive in order, so most extend the range before; one that fills a gap joins two ranges."""
    stream, after, last = _of(sender, delivery.source), delivery.range.after, delivery.range.last
    next_last = connection.execute(_BEGINS_AT, {**stream, "of_seq_after": last}).scalar()
    if next_last is not None:
        connection.execute(_DROP, {**stream, "of_seq_after": last})
        last = next_last
    extended = connection.execute(_LONGER_BY, {**stream, "since": after, "until": last})
    if extended.rowcount == 0:
        connection.execute(
            _NEW_RANGE, {**_plain(sender), "source": delivery.source, "seq_after": after, "seq_last": last}
        )


def _plain(sender: Sender) -> dict[str, Any]:
    return {name: getattr(sender, name) for name in _SENDER}


def _of(sender: Sender, source: str | None = None) -> Mapping[str, Any]:
    values = {f"of_{name}": value for name, value in _plain(sender).items()}
    return values if source is None else {**values, "of_source": source}
