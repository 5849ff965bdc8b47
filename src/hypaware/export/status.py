"""The status of every stream, read in one transaction, and whether a round has anything to do.

The streams are those of the config (each sink, its datasets, the sources that the lake has of them) and those that only
the state still knows. The latter are `removed`: nothing is delivered to them unless the config lists them again.

Reads the state, and the metadata of the lake for streams that lag; needs no Spark and no network.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from hypaware.config import Config
from hypaware.errors import HypError, StateError
from hypaware.export import sink_registry
from hypaware.export.sink_registry import next_round_at
from hypaware.home import Home
from hypaware.home.identity import Identity
from hypaware.spool import reader
from hypaware.state import flushes, snapshot
from hypaware.state.snapshot import DeliveryRecords
from hypaware.state.streams import HISTORY_LOST, Stream, StreamKey

if TYPE_CHECKING:
    from hypaware.state.store import StateStore

FAILED_RETRY_DELAY = timedelta(minutes=5)
HELD_RETRY_DELAY = timedelta(hours=1)


@dataclass(frozen=True)
class PendingIntent:
    """A pending intent: its range (after, last] and how many of its chunks are done."""

    after: int
    last: int
    chunks_total: int
    chunks_acked: int


@dataclass(frozen=True)
class StreamState:
    key: StreamKey
    high_water: int
    address: str | None
    """The configured address; None if the stream was removed from the config or its kind of sink is broken."""
    stream: Stream | None = None
    """None before its first round."""
    pending: PendingIntent | None = None
    dead_letters: int = 0
    removed: bool = False
    error: HypError | None = None
    """Why a configured stream has no address."""

    @property
    def watermark(self) -> int | None:
        """None only if an earlier state may have delivered rows and the record of them was lost."""
        if self.stream is None:
            return 0
        if self.stream.watermark is None:
            return None if self.stream.history == HISTORY_LOST else 0
        return self.stream.watermark

    @property
    def held(self) -> str | None:
        """Why the stream is held for the user; the stream's `last_error` has the message."""
        return self.stream.held if self.stream else None

    @property
    def points_elsewhere(self) -> bool:
        return self.stream is not None and self.address is not None and self.stream.address != self.address

    @property
    def is_idle(self) -> bool:
        """Whether all rows of the lake are delivered to the configured address and no intent is pending."""
        if self.removed:
            return True
        known = self.stream is not None and self.stream.watermark == self.high_water
        return known and not (self.points_elsewhere or self.pending or self.held or self.error)

    def due_at(self, now: datetime, *, config_changed: bool = False) -> datetime | None:
        """Return the time from which a round makes sense, or None if there is nothing to do.

        A held or failed stream is retried now and then, and at once if the config changed. A time that the destination
        asked for is always respected.
        """
        if self.is_idle or self.error:
            return None
        if (stream := self.stream) is None:
            return now
        times = [now]
        if stream.retry_at is not None:
            times.append(stream.retry_at)
        updated = stream.updated_at or now
        if stream.held is not None and not config_changed:
            times.append(updated + HELD_RETRY_DELAY)
        elif stream.last_error is not None and stream.retry_at is None and not config_changed:
            times.append(updated + FAILED_RETRY_DELAY)
        # A record from the future: the clock was set back, so these times cannot be trusted.
        return max(times) if updated <= now else now


@dataclass(frozen=True)
class SinkAddress:
    address: str | None
    error: HypError | None = None


def read_stream_states(
    home: Home, config: Config, store: StateStore, sinks: Collection[str] | None = None
) -> list[StreamState]:
    """Return the streams of the given sinks, or of all sinks, including those that the config no longer has."""
    with store.reading() as connection:
        records = snapshot.read_deliveries(connection)
    if records.identity is None:
        raise StateError(f"the state {store.path} has no identity")
    return derive_stream_states(home, config, records, sinks)


def derive_stream_states(
    home: Home, config: Config, records: DeliveryRecords, sinks: Collection[str] | None = None
) -> list[StreamState]:
    """Combine the config with what the state records. Without an identity, no stream has an address."""
    known, high_water = records.streams, records.high_water
    wanted = config.sinks.keys() | {key.sink for key in known} if sinks is None else set(sinks)
    where = {sink: find_address(home, config, records.identity, sink) for sink in wanted & config.sinks.keys()}
    configured_keys = {
        StreamKey(sink, dataset, source)
        for sink in where
        for dataset in config.sinks[sink].datasets
        for source in high_water.get(dataset, {})
    }
    known_keys = {key for key in known if key.sink in wanted}
    return [
        StreamState(
            key=key,
            high_water=high_water.get(key.dataset, {}).get(key.source, 0),
            address=where[key.sink].address if key.sink in where else None,
            stream=known.get(key),
            pending=PendingIntent(*records.pending[key]) if key in records.pending else None,
            dead_letters=records.dead_letters[key],
            # Regardless of its source: a lake that was rolled back behind a stream must not hide the stream.
            removed=key.sink not in where or key.dataset not in config.sinks[key.sink].datasets,
            error=where[key.sink].error if key.sink in where else None,
        )
        for key in sorted(configured_keys | known_keys)
    ]


def find_address(home: Home, config: Config, identity: Identity | None, sink: str) -> SinkAddress:
    """Return the configured address of a sink, or the error. Both are None in a home without a state."""
    if identity is None:
        return SinkAddress(None)
    try:
        return SinkAddress(sink_registry.sink_address(home, config, identity, sink))
    except HypError as error:
        return SinkAddress(None, error)


@dataclass(frozen=True)
class StreamStatus:
    state: StreamState
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
            body["pending"] = asdict(pending)
        if state.error:
            body["last_error"] = state.error.message
        if state.removed:
            body["removed"] = True
        return body


def read_statuses(
    home: Home, config: Config, store: StateStore, now: datetime, sinks: Sequence[str] | None = None
) -> list[StreamStatus]:
    return [_stream_status(home, config, store, state, now) for state in read_stream_states(home, config, store, sinks)]


def find_idle_streams(home: Home, config: Config, store: StateStore, sinks: Sequence[str]) -> list[StreamState] | None:
    """Return the streams of the sinks if a round has nothing to do; None if it has or may have.

    Idle means: no row above a watermark, no pending intent, no spooled row and no unfinished flush; and every stream is
    bound to its configured address and none is held.
    """
    datasets = {dataset for sink in sinks for dataset in config.sinks[sink].datasets}
    if any(reader.summarize_spool(home, dataset).segments for dataset in datasets):
        return None
    with store.reading() as connection:
        if any(flush.dataset in datasets for flush in flushes.unfinished_flushes(connection)):
            return None
    found = read_stream_states(home, config, store, sinks)
    return found if all(state.is_idle for state in found) else None


def next_due_time(
    home: Home, config: Config, store: StateStore, sink: str, now: datetime, *, config_changed: bool = False
) -> datetime | None:
    """Return the time from which a round of the sink makes sense, or None if it has nothing to do.

    Spooled rows do not count: they are delivered after a flush has committed them. Raises the HypError of a sink
    without a valid address.
    """
    found = read_stream_states(home, config, store, [sink])
    for state in found:
        if state.error:
            raise state.error
    times = [state.due_at(now, config_changed=config_changed) for state in found]
    return min((time for time in times if time is not None), default=None)


def _stream_status(home: Home, config: Config, store: StateStore, state: StreamState, now: datetime) -> StreamStatus:
    upcoming = None if state.removed else next_round_at(config.sinks[state.key.sink].schedule, now)
    after = state.watermark or 0
    if after >= state.high_water:
        return StreamStatus(state, 0, 0.0, upcoming)
    # Imported here: only a stream that lags needs to open the lake.
    from hypaware.lake.read import count_rows_between

    lag = count_rows_between(home, state.key.dataset, state.key.source, after, state.high_water)
    if not lag:
        return StreamStatus(state, 0, 0.0, upcoming)
    with store.reading() as connection:
        oldest = flushes.first_commit_above(connection, state.key.dataset, after)
    return StreamStatus(state, lag, max(0.0, (now - oldest).total_seconds()) if oldest else None, upcoming)
