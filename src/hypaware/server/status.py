"""What `hyp server status` shows: the machines and their lag, rows per day, batches not yet flushed, and storage.

It reads the state, the metadata of the tables and the sizes of files. It starts no engine, and needs no running server.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from hypaware.home import Home
from hypaware.home.storage import list_files
from hypaware.iceberg import metadata
from hypaware.state import ledger, received
from hypaware.state.home_opener import open_home
from hypaware.state.ledger import DEFAULT_TENANT, GatewayRecord
from hypaware.state.received import ReceivedDay, UncommittedBatches

DEFAULT_DAYS = 7


@dataclass(frozen=True)
class MachineStatus:
    gateway_id: str
    host: str | None
    label: str | None
    last_seen_at: str
    lag_seconds: float
    """The age of its oldest batch that was accepted and is not in the lake; 0 if all are."""
    uncommitted_rows: int
    rows_by_day: dict[str, int]


@dataclass(frozen=True)
class DatasetStorage:
    dataset: str
    rows: int
    live_bytes: int
    """The data files that queries read."""
    stored_bytes: int
    """Everything below the table: older snapshots, metadata and files that await removal too."""


@dataclass(frozen=True)
class ServerStatus:
    machines: tuple[MachineStatus, ...]
    days: tuple[dict[str, Any], ...]
    """(day, machines, rows, bytes) of each day on which something arrived, oldest first."""
    uncommitted: dict[str, Any]
    """(segments, rows, bytes, lag_seconds) of the batches that wait for a flush."""
    storage: tuple[DatasetStorage, ...]
    stored_bytes: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def read_server_status(home: Home, *, days: int = DEFAULT_DAYS, now: datetime | None = None) -> ServerStatus:
    """Return the status of the servers of a home or of a shared lake. The home must exist."""
    now = now or datetime.now(UTC)
    since = (now - timedelta(days=days - 1)).date().isoformat()
    with closing(open_home(home).store) as store, store.reading() as connection:
        gateways = ledger.list_gateways(connection, DEFAULT_TENANT)
        delivered = received.list_days(connection, DEFAULT_TENANT, since)
        waiting = received.summarize_uncommitted(connection, DEFAULT_TENANT)
    storage = tuple(_measure_tables(home))
    segment_bytes = sum(each.bytes for each in waiting)
    return ServerStatus(
        machines=tuple(_describe_machines(gateways, delivered, waiting, now)),
        days=tuple(_sum_days(delivered)),
        uncommitted={
            "segments": sum(each.segments for each in waiting),
            "rows": sum(each.rows for each in waiting),
            "bytes": segment_bytes,
            "lag_seconds": max((_age(each.oldest_at, now) for each in waiting), default=0.0),
        },
        storage=storage,
        stored_bytes=sum(each.stored_bytes for each in storage) + segment_bytes,
    )


def _describe_machines(
    gateways: list[GatewayRecord], delivered: list[ReceivedDay], waiting: list[UncommittedBatches], now: datetime
) -> Iterator[MachineStatus]:
    by_gateway = {each.gateway_id: each for each in waiting}
    for gateway in gateways:
        held = by_gateway.get(gateway.gateway_id)
        yield MachineStatus(
            gateway.gateway_id,
            gateway.host,
            gateway.label,
            gateway.last_seen_at,
            lag_seconds=_age(held.oldest_at, now) if held else 0.0,
            uncommitted_rows=held.rows if held else 0,
            rows_by_day={each.day: each.rows for each in delivered if each.gateway_id == gateway.gateway_id},
        )


def _sum_days(delivered: list[ReceivedDay]) -> Iterator[dict[str, Any]]:
    for day in sorted({each.day for each in delivered}):
        found = [each for each in delivered if each.day == day]
        rows, size = sum(each.rows for each in found), sum(each.bytes for each in found)
        yield {"day": day, "machines": len(found), "rows": rows, "bytes": size}


def _measure_tables(home: Home) -> Iterator[DatasetStorage]:
    for entry in metadata.list_tables(home):
        live = list(metadata.iter_live_files(metadata.read_metadata(entry.metadata)))
        stored = sum(size for folder in metadata.table_folders(home, entry.name) for _, size in list_files(folder))
        yield DatasetStorage(entry.name, sum(file.rows for file in live), sum(file.bytes for file in live), stored)


def _age(at: str, now: datetime) -> float:
    """Return the age in seconds; 0 if the clock was set back since."""
    return max(0.0, (now - datetime.fromisoformat(at)).total_seconds())
