"""The segments that a server has accepted and that are not in the lake yet, and how much each machine has delivered.

A segment is entered in the transaction that enters its batch into the ledger. It is a file in `sealed/`, or an object
of a shared lake with its location. A file is forgotten in the transaction that records its flush. An object is
forgotten after it was removed; until then the record of its flush tells that it is committed. An object without an
entry was never acknowledged. Before such an object is removed, its name is recorded as dropped, so that a slow receiver
cannot enter it any more.

`received_days` counts what a machine has delivered on each day.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypaware.state.schema import utc_now

if TYPE_CHECKING:
    from hypaware.state.store import Connection

_DROPPED = "dropped"
_IS_COMMITTED = (
    "EXISTS (SELECT 1 FROM segments WHERE segments.dataset = received.dataset"
    " AND segments.name = received.segment AND segments.status = 'committed')"
)


@dataclass(frozen=True)
class ReceivedSegment:
    name: str
    rows: int
    bytes: int
    location: str | None
    """The key of the object below the root of the shared lake; None for a file in the home."""


@dataclass(frozen=True)
class ReceivedDay:
    gateway_id: str
    day: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class UncommittedBatches:
    """What a gateway has delivered and no flush has committed yet."""

    gateway_id: str
    segments: int
    rows: int
    bytes: int
    oldest_at: str


def add_segment(connection: Connection, tenant: str, gateway_id: str, dataset: str, segment: ReceivedSegment) -> None:
    """Enter a segment, and count its rows for the machine and the day."""
    now = utc_now()
    machine = {"tenant": tenant, "gateway_id": gateway_id}
    sizes = {"row_count": segment.rows, "byte_count": segment.bytes}
    values = {"dataset": dataset, "segment": segment.name, "location": segment.location, "received_at": now}
    connection.insert("received", {**values, **machine, **sizes})
    today = {**machine, "day": now[:10], **sizes}
    count = (
        "UPDATE received_days SET row_count = row_count + :row_count, byte_count = byte_count + :byte_count"
        " WHERE tenant = :tenant AND gateway_id = :gateway_id AND day = :day"
    )
    if connection.execute(count, today) == 0:
        connection.insert("received_days", today)


def is_finished(connection: Connection, dataset: str, name: str) -> bool:
    """Return whether a flush or `drop_names` already knows the segment, so that it must not be entered."""
    sql = "SELECT 1 FROM segments WHERE dataset = ? AND name = ?"
    return connection.value(sql, (dataset, name)) is not None


def list_objects(connection: Connection, dataset: str, *, committed: bool) -> list[ReceivedSegment]:
    """Return the objects of a dataset, oldest first: those in the lake, which can be removed, or all others."""
    rows = connection.rows(
        "SELECT segment AS name, row_count AS rows, byte_count AS bytes, location FROM received"
        f" WHERE dataset = ? AND location IS NOT NULL AND {'' if committed else 'NOT '}{_IS_COMMITTED}"
        " ORDER BY segment",
        (dataset,),
    )
    return [ReceivedSegment(**row) for row in rows]


def list_datasets(connection: Connection) -> list[str]:
    """Return the datasets that have objects."""
    return sorted(connection.values("SELECT DISTINCT dataset FROM received WHERE location IS NOT NULL"))


def forget_objects(connection: Connection, dataset: str, names: Iterable[str]) -> None:
    """Forget committed objects that were removed. Their names are never used again, so nothing needs a record."""
    for name in names:
        connection.execute("DELETE FROM received WHERE dataset = ? AND segment = ?", (dataset, name))
        connection.execute(
            "DELETE FROM segments WHERE dataset = ? AND name = ? AND status = 'committed'", (dataset, name)
        )


def forget_committed_files(connection: Connection) -> None:
    connection.execute(f"DELETE FROM received WHERE location IS NULL AND {_IS_COMMITTED}")


def drop_names(connection: Connection, dataset: str, names: Collection[str]) -> list[str]:
    """Record that objects without an entry are dropped, and return their names. Those with an entry are kept."""
    dropped = []
    for name in names:
        if connection.value("SELECT 1 FROM received WHERE dataset = ? AND segment = ?", (dataset, name)) is None:
            dropped.append(name)
            if not is_finished(connection, dataset, name):
                values = {"row_count": 0, "status": _DROPPED, "attempts": 0, "updated_at": utc_now()}
                connection.insert("segments", {"dataset": dataset, "name": name, **values})
    return dropped


def summarize_uncommitted(connection: Connection, tenant: str) -> list[UncommittedBatches]:
    rows = connection.rows(
        "SELECT gateway_id, count(*) AS segments, sum(row_count) AS rows, sum(byte_count) AS bytes,"
        f" min(received_at) AS oldest_at FROM received WHERE tenant = ? AND NOT {_IS_COMMITTED}"
        " GROUP BY gateway_id ORDER BY gateway_id",
        (tenant,),
    )
    return [UncommittedBatches(**row) for row in rows]


def list_days(connection: Connection, tenant: str, since: str) -> list[ReceivedDay]:
    """Return what each machine has delivered on each day, from the day `since` (YYYY-MM-DD) on."""
    rows = connection.rows(
        "SELECT gateway_id, day, row_count AS rows, byte_count AS bytes FROM received_days"
        " WHERE tenant = ? AND day >= ? ORDER BY day, gateway_id",
        (tenant, since),
    )
    return [ReceivedDay(**row) for row in rows]
