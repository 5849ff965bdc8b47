"""What gateways have delivered to this server: the ids of their batches, and the ranges that they covered.

A batch is known by its id, so that the same one sent again is not stored again. Ids are forgotten once their sender
says that it has seen them acknowledged. Ranges are kept for ever, merged: they tell how far each stream has come, and
that a batch under a new id holds rows that are here already. A gap between ranges is what its sender gave up for now
(a dead letter), and may be filled later. Each incarnation of a gateway has its own numbers, so it has its own ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection, Table, and_, bindparam, delete, insert, select, update

from hypaware.state import tables

_batches, _delivered = tables.batches, tables.delivered
MAX_HOLES = 1_000
_SENDER = ("tenant", "gateway_id", "incarnation", "dataset")
_STREAM = (*_SENDER, "source")


@dataclass(frozen=True)
class Sender:
    """One life of a gateway, as far as one dataset goes."""

    tenant: str
    gateway_id: str
    incarnation: str
    dataset: str


@dataclass(frozen=True)
class Range:
    """Sequences of the sender's own, in (after, last]."""

    after: int
    last: int


@dataclass(frozen=True)
class Delivery:
    """The part of a stream that a batch says it is."""

    source: str
    range: Range


@dataclass(frozen=True)
class Batch:
    sender: Sender
    id: str
    delivery: Delivery | None
    """None from a client that knows nothing of ranges: its batches are known by their ids alone, for ever."""
    rows: int
    content_sha: str
    segment: str | None
    """None if it held no rows."""


@dataclass(frozen=True)
class Covered:
    """Everything up to `last` is here, but for the holes."""

    last: int
    holes: tuple[Range, ...] = ()


def _key(table: Table, names: Iterable[str]) -> Any:
    # Names of their own: an UPDATE or DELETE must not take them for new values.
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
    """Whatever the incarnation: for a client that does not say which one it asks about."""
    values = {name: value for name, value in _of(sender).items() if name != "of_incarnation"}
    return connection.execute(_KNOWN_IN_ANY_LIFE, {**values, "of_batch_id": batch_id}).first() is not None


def overlaps(connection: Connection, sender: Sender, delivery: Delivery) -> bool:
    """Whether any row of the range may be here already."""
    asked = {"since": delivery.range.after, "until": delivery.range.last}
    return connection.execute(_OVERLAPS, {**_of(sender, delivery.source), **asked}).first() is not None


def ranges(connection: Connection, sender: Sender, source: str) -> list[Range]:
    """Lowest first; no two of them touch."""
    return [Range(*row) for row in connection.execute(_RANGES, _of(sender, source))]


def enter(connection: Connection, batch: Batch) -> None:
    """The batch is stored. Its range must not overlap what was delivered before."""
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
            "stored_at": datetime.now(UTC).isoformat(),
        },
    )
    if delivery:
        _cover(connection, batch.sender, delivery)


def forget(connection: Connection, sender: Sender, source: str, acked_to: int) -> None:
    """The sender will never ask again about batches of this stream that end at or below the sequence."""
    connection.execute(_FORGET, {**_of(sender, source), "acked_to": acked_to})


def known_segments(connection: Connection, dataset: str, names: Sequence[str]) -> set[str]:
    """Those of the named segments that hold batches of the ledger."""
    chosen = select(_batches.c.segment).where(_batches.c.dataset == dataset, _batches.c.segment.in_(names))
    return set(connection.execute(chosen).scalars())


def covered(delivered: Sequence[Range], asked: Range | None = None) -> Covered:
    """How far a stream has come and what is missing below; with `asked`, of the missing only what lies within it.

    At most MAX_HOLES holes are told. Where there are more, `last` stops before the first untold one: a sender that
    goes on from there meets it again.
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
    """The server whose ledger this is; None in a state that was made anew since, and has lost it."""
    return connection.execute(select(tables.meta.c.value).where(tables.meta.c.key == _KEEPER)).scalar()


def keep(connection: Connection, server_id: str) -> None:
    connection.execute(delete(tables.meta).where(tables.meta.c.key == _KEEPER))
    connection.execute(insert(tables.meta).values(key=_KEEPER, value=server_id))


def _cover(connection: Connection, sender: Sender, delivery: Delivery) -> None:
    """Chunks come in order, so most ranges lengthen the one before; one that fills a gap also joins the one behind."""
    stream, after, last = _of(sender, delivery.source), delivery.range.after, delivery.range.last
    behind = connection.execute(_BEGINS_AT, {**stream, "of_seq_after": last}).scalar()
    if behind is not None:
        connection.execute(_DROP, {**stream, "of_seq_after": last})
        last = behind
    lengthened = connection.execute(_LONGER_BY, {**stream, "since": after, "until": last})
    if lengthened.rowcount == 0:
        connection.execute(
            _NEW_RANGE, {**_plain(sender), "source": delivery.source, "seq_after": after, "seq_last": last}
        )


def _plain(sender: Sender) -> dict[str, Any]:
    return {name: getattr(sender, name) for name in _SENDER}


def _of(sender: Sender, source: str | None = None) -> Mapping[str, Any]:
    values = {f"of_{name}": value for name, value in _plain(sender).items()}
    return values if source is None else {**values, "of_source": source}
