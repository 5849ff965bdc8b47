"""The records of a server: its ledger, its gateways and its tokens.

The ledger holds the batches that gateways delivered, and the ranges of sequences that they cover.

Batches are recorded by id, so that a batch that is sent again is not stored again. Ids are forgotten once the sender
confirms that it has seen the acknowledgement. Ranges are kept forever, merged: they are the watermark of each stream,
and they show that a batch under a new id contains rows that were already stored. A gap between ranges is a chunk that
the sender has set aside as a dead letter, and may be filled later. Each incarnation of a gateway has its own sequences,
and therefore its own ranges.

A gateway id is bound to the secret that it was first enrolled with or, for a client without a secret, to the owner of
the bootstrap token. Only `release_gateway` removes the binding. The state stores hashes of secrets and tokens, never
the values.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from hypaware.state import received
from hypaware.state.received import ReceivedSegment
from hypaware.state.schema import get_meta, set_meta, utc_now

if TYPE_CHECKING:
    from hypaware.state.store import Connection

MAX_HOLES = 1_000
DEFAULT_TENANT = "default"
_OWNER_KEY = "ledger_keeper"
_OF_SENDER = "tenant = :tenant AND gateway_id = :gateway_id AND incarnation = :incarnation AND dataset = :dataset"
_OF_GATEWAY = "tenant = :tenant AND gateway_id = :gateway_id"
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
    bytes: int = 0
    """The size of the segment."""
    location: str | None = None
    """Where the segment is, if it is an object: its key below the root of the shared lake."""


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
    """Return whether any row of the range may be stored already."""
    sql = f"SELECT 1 FROM delivered WHERE {_OF_STREAM} AND seq_after < :last AND seq_last > :after LIMIT 1"
    return connection.value(sql, _range_columns(sender, delivery)) is not None


def delivered_ranges(connection: Connection, sender: BatchSender, source: str) -> list[SequenceRange]:
    """Return the delivered ranges, lowest first. No two of them are adjacent."""
    sql = f"SELECT seq_after AS after, seq_last AS last FROM delivered WHERE {_OF_STREAM} ORDER BY seq_after"
    return [SequenceRange(**row) for row in connection.rows(sql, {**asdict(sender), "source": source})]


def record_batch(connection: Connection, batch: ReceivedBatch) -> None:
    """Record a stored batch. Its range must not overlap the ranges delivered before."""
    values = {"batch_id": batch.id, "row_count": batch.rows, "content_sha": batch.content_sha, "stored_at": utc_now()}
    if delivery := batch.delivery:
        after, last = delivery.range.after, delivery.range.last
        values |= {"source": delivery.source, "seq_after": after, "seq_last": last}
        _add_range(connection, batch.sender, delivery)
    connection.insert("batches", {**asdict(batch.sender), **values, "segment": batch.segment})
    if batch.segment is not None:
        sender, segment = batch.sender, ReceivedSegment(batch.segment, batch.rows, batch.bytes, batch.location)
        received.add_segment(connection, sender.tenant, sender.gateway_id, sender.dataset, segment)


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
        ends = {"seq_after": delivery.range.after, "seq_last": stream["last"]}
        connection.insert("delivered", {**asdict(sender), "source": delivery.source, **ends})


def forget_acknowledged(connection: Connection, sender: BatchSender, source: str, acked_to: int) -> None:
    """Forget batches that end at or below the sequence. The sender will not ask about them again."""
    sql = f"DELETE FROM batches WHERE {_OF_STREAM} AND seq_last <= :acked_to"
    connection.execute(sql, {**asdict(sender), "source": source, "acked_to": acked_to})


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
    gaps = [SequenceRange(low.last, high.after) for low, high in pairwise([SequenceRange(0, 0), *delivered])]
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


@dataclass(frozen=True)
class GatewayRecord:
    gateway_id: str
    host: str | None
    label: str | None
    bound_by: str | None
    """`secret`, `token`, or None if the gateway was released."""
    first_seen_at: str
    last_seen_at: str


@dataclass(frozen=True)
class GatewayClaim:
    """A request to use a gateway id."""

    tenant: str
    gateway_id: str
    owner: str
    """The owner of the bootstrap token."""
    secret_hash: str | None = None
    label: str | None = None
    host: str | None = None


@dataclass(frozen=True)
class ServerToken:
    id: str
    label: str | None
    created_at: str
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None
    use: Literal["enrol", "view"] = "enrol"
    """What the token is for: to enrol machines, or to look at the page. Never both."""

    def refusal(self, now: datetime) -> str | None:
        """Return why the token cannot be used any more, or None."""
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is not None and datetime.fromisoformat(self.expires_at) <= now:
            return "expired"
        return None


_TOKEN_COLUMNS = ", ".join(field.name for field in fields(ServerToken))


def bind_gateway(connection: Connection, claim: GatewayClaim) -> bool:
    """Bind the id to the first client that claims it, and return whether the claim is accepted.

    A client that was bound by its token and now has a secret is bound by its secret from then on.
    """
    known = connection.row(f"SELECT secret_hash, owner FROM gateways WHERE {_OF_GATEWAY}", asdict(claim))
    now = utc_now()
    if known is None:
        connection.insert("gateways", {**asdict(claim), "first_seen_at": now, "last_seen_at": now})
        return True
    if known["secret_hash"] is not None:
        if claim.secret_hash is None or not hmac.compare_digest(known["secret_hash"], claim.secret_hash):
            return False
    elif known["owner"] is not None and known["owner"] != claim.owner:
        return False
    connection.execute(
        "UPDATE gateways SET secret_hash = :secret_hash, owner = :owner, label = :label,"
        f" host = coalesce(:host, host), last_seen_at = :now WHERE {_OF_GATEWAY}",
        {**asdict(claim), "now": now},
    )
    return True


def touch_gateways(connection: Connection, tenant: str, hosts: Mapping[str, str | None]) -> None:
    """Update the time at which gateways were last seen. A host that is None stays unchanged."""
    now = utc_now()
    for gateway_id, host in hosts.items():
        connection.execute(
            f"UPDATE gateways SET last_seen_at = :now, host = coalesce(:host, host) WHERE {_OF_GATEWAY}",
            {"tenant": tenant, "gateway_id": gateway_id, "host": host, "now": now},
        )


def list_gateways(connection: Connection, tenant: str) -> list[GatewayRecord]:
    rows = connection.rows(
        "SELECT gateway_id, host, label, CASE WHEN secret_hash <> '' THEN 'secret' WHEN owner <> '' THEN 'token' END"
        " AS bound_by, first_seen_at, last_seen_at FROM gateways WHERE tenant = ? ORDER BY gateway_id",
        (tenant,),
    )
    return [GatewayRecord(**row) for row in rows]


def release_gateway(connection: Connection, tenant: str, gateway_id: str) -> bool:
    """Release an id, so that the next client that claims it gets it. Its deliveries stay recorded."""
    sql = f"UPDATE gateways SET secret_hash = NULL, owner = NULL WHERE {_OF_GATEWAY}"
    return bool(connection.execute(sql, {"tenant": tenant, "gateway_id": gateway_id}))


def add_token(connection: Connection, token: ServerToken, token_hash: str) -> None:
    connection.insert("server_tokens", {**asdict(token), "hash": token_hash})


def find_token(connection: Connection, token_hash: str) -> ServerToken | None:
    found = connection.row(f"SELECT {_TOKEN_COLUMNS} FROM server_tokens WHERE hash = ?", (token_hash,))
    return ServerToken(**found) if found else None


def list_tokens(connection: Connection) -> list[ServerToken]:
    """Return all tokens, oldest first."""
    rows = connection.rows(f"SELECT {_TOKEN_COLUMNS} FROM server_tokens ORDER BY created_at, id")
    return [ServerToken(**row) for row in rows]


def revoked_token_ids(connection: Connection) -> frozenset[str]:
    return frozenset(connection.values("SELECT id FROM server_tokens WHERE revoked_at IS NOT NULL"))


def revoke_tokens(connection: Connection, id_or_label: str) -> list[str]:
    """Revoke the token with that id, or else all tokens with that label, and return their ids."""
    ids = connection.values(
        "SELECT id FROM server_tokens WHERE (id = :named OR label = :named) AND revoked_at IS NULL ORDER BY created_at",
        {"named": id_or_label},
    )
    if id_or_label in ids:
        ids = [id_or_label]
    for token_id in ids:
        connection.execute("UPDATE server_tokens SET revoked_at = ? WHERE id = ?", (utc_now(), token_id))
    return ids


def touch_token(connection: Connection, token_id: str) -> None:
    connection.execute("UPDATE server_tokens SET last_used_at = ? WHERE id = ?", (utc_now(), token_id))
