"""The status of every stream for `hyp export status`, and the check before each round for anything to do.

Reads the state, and for streams that lag the metadata of the lake; needs no Spark and no network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, func, select

from hypaware.config import Config
from hypaware.export.schedule import next_round
from hypaware.export.standing import Standing, standings
from hypaware.home import Home
from hypaware.spool import reader
from hypaware.state import flushes, tables

if TYPE_CHECKING:
    from hypaware.state.store import Store


@dataclass(frozen=True)
class StreamStatus:
    state: Standing
    lag_rows: int
    lag_seconds: float | None
    """Age of the oldest undelivered commit; None if its time is not recorded."""
    next_round: datetime | None

    def as_json(self) -> dict[str, Any]:
        state, stream, pending = self.state, self.state.stream, self.state.pending
        body: dict[str, Any] = {
            "sink": state.key.sink,
            "dataset": state.key.dataset,
            "source": state.key.source,
            "watermark": state.watermark,
            "high_water": state.high_water,
            "lag_rows": self.lag_rows,
            "lag_seconds": self.lag_seconds,
            "exported_rows": stream.exported_rows if stream else 0,
            "updated_at": stream.updated_at if stream else None,
            "pending": None,
            "last_success_at": stream.last_success_at if stream else None,
            "last_error": stream.last_error if stream else None,
            "held": state.held,
            "retry_at": stream.retry_at if stream else None,
            "next_round": self.next_round,
            "dead_letters": state.dead_letters,
            "address": state.address,
            "delivered_to": stream.address if stream else None,
        }
        if pending:
            body["pending"] = {
                "after": pending.after,
                "last": pending.last,
                "chunks_total": pending.chunks_total,
                "chunks_acked": pending.chunks_acked,
            }
        if state.error:
            body["last_error"] = state.error.message
        if state.removed:
            body["removed"] = True
        return body


def report(
    home: Home, config: Config, store: Store, now: datetime, sinks: Sequence[str] | None = None
) -> list[StreamStatus]:
    return [_status(home, config, store, state, now) for state in standings(home, config, store, sinks)]


def idle(home: Home, config: Config, store: Store, sinks: Sequence[str]) -> list[Standing] | None:
    """Return the streams of the sinks if a round has nothing to do; None if it has or may have.

    Idle means: no row above a watermark, no pending intent, no spooled row and no unfinished flush; and every stream is
    bound to its configured address and none is held.
    """
    datasets = {dataset for sink in sinks for dataset in config.sinks[sink].datasets}
    if any(reader.waiting(home, dataset).segments for dataset in datasets):
        return None
    with store.reading() as connection:
        if any(flush.dataset in datasets for flush in flushes.unfinished(connection)):
            return None
    found = standings(home, config, store, sinks)
    return found if all(state.is_idle for state in found) else None


def due_at(
    home: Home, config: Config, store: Store, sink: str, now: datetime, *, config_changed: bool = False
) -> datetime | None:
    """Return the time from which a round of the sink makes sense, or None if it has nothing to do.

    Spooled rows do not count: they are delivered after a flush has committed them. Raises the HypError of a sink
    without a valid address.
    """
    found = standings(home, config, store, [sink])
    for state in found:
        if state.error:
            raise state.error
    times = [state.due_at(now, config_changed=config_changed) for state in found]
    return min((time for time in times if time is not None), default=None)


def _status(home: Home, config: Config, store: Store, state: Standing, now: datetime) -> StreamStatus:
    upcoming = None if state.removed else next_round(config.sinks[state.key.sink].schedule, now)
    after = state.watermark or 0
    if after >= state.high_water:
        return StreamStatus(state, 0, 0.0, upcoming)
    # Imported here: only a stream that lags needs to open the lake.
    from hypaware.lake.counting import rows_between

    lag = rows_between(home, state.key.dataset, state.key.source, after, state.high_water)
    if not lag:
        return StreamStatus(state, 0, 0.0, upcoming)
    with store.reading() as connection:
        oldest = _first_commit_above(connection, state.key.dataset, after)
    return StreamStatus(state, lag, None if oldest is None else _age(oldest, now), upcoming)


def _first_commit_above(connection: Connection, dataset: str, seq: int) -> datetime | None:
    flush = tables.flushes
    found = connection.execute(
        select(func.min(flush.c.finished_at)).where(
            flush.c.dataset == dataset, flush.c.status == "committed", flush.c.seq_last > seq, flush.c.rows_written > 0
        )
    ).scalar()
    return datetime.fromisoformat(found) if found else None


def _age(since: datetime, now: datetime) -> float:
    return max(0.0, (now - since).total_seconds())
