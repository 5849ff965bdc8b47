"""`hyp export status`, and the question that comes before every round: is there anything to do?

Told from the state, and where a stream lags from the lake's metadata; without Spark and without a network.
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
    standing: Standing
    lag_rows: int
    lag_seconds: float | None
    """Age of the oldest commit that is not delivered; None where there is one and nobody remembers when."""
    next_round: datetime | None

    def as_json(self) -> dict[str, Any]:
        standing, stream, pending = self.standing, self.standing.stream, self.standing.pending
        body: dict[str, Any] = {
            "sink": standing.key.sink,
            "dataset": standing.key.dataset,
            "source": standing.key.source,
            "watermark": standing.watermark,
            "high_water": standing.high_water,
            "lag_rows": self.lag_rows,
            "lag_seconds": self.lag_seconds,
            "exported_rows": stream.exported_rows if stream else 0,
            "updated_at": stream.updated_at if stream else None,
            "pending": None,
            "last_success_at": stream.last_success_at if stream else None,
            "last_error": stream.last_error if stream else None,
            "held": standing.held,
            "retry_at": stream.retry_at if stream else None,
            "next_round": self.next_round,
            "dead_letters": standing.dead_letters,
            "address": standing.address,
            "delivered_to": stream.address if stream else None,
        }
        if pending:
            body["pending"] = {
                "after": pending.after,
                "last": pending.last,
                "chunks_total": pending.chunks_total,
                "chunks_acked": pending.chunks_acked,
            }
        if standing.trouble:
            body["last_error"] = standing.trouble.message
        if standing.removed:
            body["removed"] = True
        return body


def report(
    home: Home, config: Config, store: Store, now: datetime, sinks: Sequence[str] | None = None
) -> list[StreamStatus]:
    return [_status(home, config, store, standing, now) for standing in standings(home, config, store, sinks)]


def idle(home: Home, config: Config, store: Store, sinks: Sequence[str]) -> list[Standing] | None:
    """The streams of the sinks if a round of them has nothing to do; None if it has, or might have.

    Nothing is new: no row behind a watermark, no intent under way, no row in the spool, no flush left unfinished; and
    nothing is wrong: every stream is where the config says, and none is held.
    """
    chosen = {dataset for sink in sinks for dataset in config.sinks[sink].datasets}
    if any(reader.waiting(home, dataset).segments for dataset in chosen):
        return None
    with store.reading() as connection:
        if any(flush.dataset in chosen for flush in flushes.unfinished(connection)):
            return None
    found = standings(home, config, store, sinks)
    return found if all(standing.is_settled for standing in found) else None


def due_at(
    home: Home, config: Config, store: Store, sink: str, now: datetime, *, anew: bool = False
) -> datetime | None:
    """From when on a round of the sink makes sense; None while it has nothing to do.

    Rows in the spool do not count: they are delivered when a flush has committed them. Raises what is wrong with the
    sink where its address cannot be told.
    """
    found = standings(home, config, store, [sink])
    for standing in found:
        if standing.trouble:
            raise standing.trouble
    times = [standing.due_at(now, anew=anew) for standing in found]
    return min((time for time in times if time is not None), default=None)


def _status(home: Home, config: Config, store: Store, standing: Standing, now: datetime) -> StreamStatus:
    following = None if standing.removed else next_round(config.sinks[standing.key.sink].schedule, now)
    after = standing.watermark or 0
    if after >= standing.high_water:
        return StreamStatus(standing, 0, 0.0, following)
    # Only here: a lake is opened by those who have rows to count.
    from hypaware.lake.counting import rows_between

    lag = rows_between(home, standing.key.dataset, standing.key.source, after, standing.high_water)
    if not lag:
        return StreamStatus(standing, 0, 0.0, following)
    with store.reading() as connection:
        oldest = _first_commit_above(connection, standing.key.dataset, after)
    return StreamStatus(standing, lag, None if oldest is None else _age(oldest, now), following)


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
