"""The ledger of a server: the batches that gateways delivered, and the ranges of sequences that they cover.

Batches are recorded by id, so that a batch that is sent again is not stored again. Ids are forgotten once the sender
confirms that it has seen the acknowledgement. Ranges are kept forever, merged: they are the watermark of each stream,
and they show that a batch under a new id contains rows that were already stored. A gap between ranges is a chunk that
the sender has set aside as a dead letter, and may be filled later. Each incarnation of a gateway has its own sequences,
and therefore its own ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hypaware.state.schema import get_meta, set_meta, utc_now

if TYPE_CHECKING:
    from hypaware.state.store import Connection

MAX_HOLES = 1_000
_OWNER_KEY = "ledger_keeper"
_OF_SENDER = "tenant = :tenant AND gateway_id = :gateway_id AND incarnation = :incarnation AND dataset = :dataset"
_OF_STREAM = f"{_OF_SENDER} AND source = :source"


@dataclass(frozen=True)
class BatchSender:
    """One incarnation of a gateway, for one dataset."""

    tenant: str
    gateway_id: str
    incarnation: str
    dataset: str


@dataclass(frozen=True)
class SequenceRange:
    """The sender's sequences (after, last]."""

    after: int
    last: int


@dataclass(frozen=True)
class StreamRange:
    """The part of a stream that a batch contains."""

    source: str
    range: SequenceRange


@dataclass(frozen=True)
class ReceivedBatch:
    sender: BatchSender
    id: str
    delivery: StreamRange | None
    """None from a client without ranges. Its batches are identified by their ids alone, which are kept forever."""
    rows: int
    content_sha: str
    segment: str | None
    """None if the batch had no rows."""


@dataclass(frozen=True)
class Coverage:
    """Everything up to `last` was stored, except for the holes."""

    last: int
    holes: tuple[SequenceRange, ...] = ()


def is_known_batch(connection: Connection, sender: BatchSender, batch_id: str) -> bool:
    sql = f"SELECT 1 FROM batches WHERE {_OF_SENDER} AND batch_id = :batch_id"
    return connection.value(sql, {**asdict(sender), "batch_id": batch_id}) is not None


def is_known_in_any_incarnation(connection: Connection, sender: BatchSender, batch_id: str) -> bool:
    """Look the batch up under every incarnation, for a client that does not name one."""
    sql = (
        "SELECT 1 FROM batches WHERE tenant = :tenant AND gateway_id = :gateway_id AND dataset = :dataset"
        " AND batch_id = :batch_id LIMIT 1"
    )
    return connection.value(sql, {**asdict(sender), "batch_id": batch_id}) is not None


def overlaps_delivered(connection: Connection, sender: BatchSender, delivery: StreamRange) -> bool:
    """Report whether any row of the range may be stored already."""
    sql = f"SELECT 1 FROM delivered WHERE {_OF_STREAM} AND seq_after < :last AND seq_last > :after LIMIT 1"
    return connection.value(sql, _range_columns(sender, delivery)) is not None


def delivered_ranges(connection: Connection, sender: BatchSender, source: str) -> list[SequenceRange]:
    """Return the delivered ranges, lowest first. No two of them are adjacent."""
    sql = f"SELECT seq_after AS after, seq_last AS last FROM delivered WHERE {_OF_STREAM} ORDER BY seq_after"
    return [SequenceRange(**row) for row in connection.rows(sql, {**asdict(sender), "source": source})]


def record_batch(connection: Connection, batch: ReceivedBatch) -> None:
    """Record a stored batch. Its range must not overlap the ranges delivered before."""
    delivery = batch.delivery
    connection.insert(
        "batches",
        {
            **asdict(batch.sender),
            "batch_id": batch.id,
            "source": delivery.source if delivery else None,
            "seq_after": delivery.range.after if delivery else None,
            "seq_last": delivery.range.last if delivery else None,
            "segment": batch.segment,
            "row_count": batch.rows,
            "content_sha": batch.content_sha,
            "stored_at": utc_now(),
        },
    )
    if delivery:
        _add_range(connection, batch.sender, delivery)


def _add_range(connection: Connection, sender: BatchSender, delivery: StreamRange) -> None:
    """Add a range. Chunks arrive in order, so most extend the range before; one that fills a gap joins two ranges."""
    stream = _range_columns(sender, delivery)
    next_range = f"delivered WHERE {_OF_STREAM} AND seq_after = :last"
    last = connection.value(f"SELECT seq_last FROM {next_range}", stream)
    if last is not None:
        connection.execute(f"DELETE FROM {next_range}", stream)
        stream["last"] = last
    extend = f"UPDATE delivered SET seq_last = :last WHERE {_OF_STREAM} AND seq_last = :after"
    if connection.execute(extend, stream) == 0:
        connection.insert(
            "delivered",
            {
                **asdict(sender),
                "source": delivery.source,
                "seq_after": delivery.range.after,
                "seq_last": stream["last"],
            },
        )


def forget_acknowledged(connection: Connection, sender: BatchSender, source: str, acked_to: int) -> None:
    """Forget batches that end at or below the sequence. The sender will not ask about them again."""
    connection.execute(
        f"DELETE FROM batches WHERE {_OF_STREAM} AND seq_last <= :acked_to",
        {**asdict(sender), "source": source, "acked_to": acked_to},
    )


def ledger_segments(connection: Connection, dataset: str, names: Sequence[str]) -> set[str]:
    """Return those of the named segments that contain recorded batches."""
    sql = "SELECT DISTINCT segment FROM batches WHERE dataset = ?"
    return set(connection.values(sql, (dataset,))) & set(names)


def compute_coverage(delivered: Sequence[SequenceRange], asked: SequenceRange | None = None) -> Coverage:
    """Return the coverage of a stream: its last sequence and the holes below it, or only those within `asked`.

    At most MAX_HOLES holes are returned. If there are more, `last` ends before the first omitted one, so that a sender
    that continues from there reaches it.
    """
    if not delivered:
        return Coverage(0)
    gaps = [
        SequenceRange(0, delivered[0].after),
        *(SequenceRange(low.last, high.after) for low, high in pairwise(delivered)),
    ]
    if asked is not None:
        gaps = [SequenceRange(max(gap.after, asked.after), min(gap.last, asked.last)) for gap in gaps]
    gaps = [gap for gap in gaps if gap.after < gap.last]
    last = gaps[MAX_HOLES].after if len(gaps) > MAX_HOLES else delivered[-1].last
    return Coverage(last, tuple(gaps[:MAX_HOLES]))


def ledger_owner(connection: Connection) -> str | None:
    """Return the id of the server that the ledger belongs to, or None if the ledger was lost with the state."""
    return get_meta(connection, _OWNER_KEY)


def set_ledger_owner(connection: Connection, server_id: str) -> None:
    set_meta(connection, _OWNER_KEY, server_id)


def _range_columns(sender: BatchSender, delivery: StreamRange) -> dict[str, Any]:
    return {**asdict(sender), "source": delivery.source, **asdict(delivery.range)}
