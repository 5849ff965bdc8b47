"""The sinks and streams that a round is for, whether it has anything to do, the status of each stream, and reports.

The streams are those of the config (each sink, its datasets, the sources that the lake has of them) and those that only
the state still knows. The latter are `removed`: nothing is delivered to them unless the config lists them again.

Reads the state, and the metadata of the lake for streams that lag; needs no Spark and no network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from hypaware import telemetry
from hypaware.config import Config
from hypaware.errors import HypError, StateError
from hypaware.export import sink_registry
from hypaware.export.sink_registry import next_round_at
from hypaware.home import Home
from hypaware.home.identity import Identity
from hypaware.spool import reader
from hypaware.spool.received import open_received
from hypaware.state import flushes, snapshot
from hypaware.state.snapshot import DeliveryRecords
from hypaware.state.streams import HISTORY_LOST, Stream, StreamKey
from hypaware.text import did_you_mean

if TYPE_CHECKING:
    from hypaware.export.rows import GateReport
    from hypaware.state.store import StateStore

OK, PARTIAL, FAILED, HELD = "ok", "partial", "failed", "held"
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

        A held or failed stream is retried now and then, and immediately if the config changed. A time that the
        destination asked for is always respected.
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


def select_sinks(config: Config, names: Iterable[str]) -> list[str]:
    """Return the named sinks, each once, or all sinks if no name is given. Raises HypError for an unknown name."""
    selected = list(dict.fromkeys(names)) or list(config.sinks)
    for name in selected:
        if name not in config.sinks:
            hint = did_you_mean(name, list(config.sinks)) if config.sinks else " The config has no sinks."
            raise HypError(f"unknown sink {name!r}.{hint}", kind="unknown_sink", repair="hyp config show")
    return selected


def read_stream_states(
    home: Home, config: Config, store: StateStore, sinks: Collection[str] | None = None
) -> list[StreamState]:
    """Return the streams of the given sinks, or of all sinks, including those that the config no longer has."""
    with store.reading() as connection:
        records = snapshot.read_deliveries(connection)
    if records.identity is None:
        raise StateError(f"the state {store.database} has no identity")
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
            address=where[key.sink][0] if key.sink in where else None,
            stream=known.get(key),
            pending=PendingIntent(*records.pending[key]) if key in records.pending else None,
            dead_letters=records.dead_letters[key],
            # Regardless of its source: a lake that was rolled back behind a stream must not hide the stream.
            removed=key.sink not in where or key.dataset not in config.sinks[key.sink].datasets,
            error=where[key.sink][1] if key.sink in where else None,
        )
        for key in sorted(configured_keys | known_keys)
    ]


def find_address(
    home: Home, config: Config, identity: Identity | None, sink: str
) -> tuple[str | None, HypError | None]:
    """Return the configured address of a sink, or the error. Both are None in a home without a state."""
    try:
        return (sink_registry.sink_address(home, config, identity, sink) if identity else None), None
    except HypError as error:
        return None, error


@dataclass(frozen=True)
class StreamStatus:
    state: StreamState
    lag_rows: int
    lag_seconds: float | None
    """Age of the oldest undelivered commit; None if its time is not recorded."""
    next_round: datetime | None
    rows_without_sequence: int = 0
    """Rows that another program added to the table. They are not delivered before they have a sequence."""

    def as_json(self) -> dict[str, Any]:
        state, stream, pending = self.state, self.state.stream, self.state.pending
        return {
            "sink": state.key.sink,
            "dataset": state.key.dataset,
            "source": state.key.source,
            "watermark": state.watermark,
            "high_water": state.high_water,
            "lag_rows": self.lag_rows,
            "lag_seconds": self.lag_seconds,
            "rows_without_sequence": self.rows_without_sequence,
            "exported_rows": stream.exported_rows if stream else 0,
            "updated_at": stream.updated_at if stream else None,
            "pending": asdict(pending) if pending else None,
            "last_success_at": stream.last_success_at if stream else None,
            "last_error": state.error.message if state.error else stream and stream.last_error,
            "held": state.held,
            "retry_at": stream.retry_at if stream else None,
            "next_round": self.next_round,
            "dead_letters": state.dead_letters,
            "address": state.address,
            "delivered_to": stream.address if stream else None,
            **({"removed": True} if state.removed else {}),
        }


def read_statuses(
    home: Home, config: Config, store: StateStore, now: datetime, sinks: Sequence[str] | None = None
) -> list[StreamStatus]:
    from hypaware.lake.health import count_unnumbered_rows

    found = []
    unnumbered = cache(partial(count_unnumbered_rows, home))
    for state in read_stream_states(home, config, store, sinks):
        key, after, lag = state.key, state.watermark or 0, 0
        lag_seconds: float | None = 0.0
        if after < state.high_water:
            # Imported here: only a stream that lags needs to open the lake.
            from hypaware.lake.read import count_rows_between

            lag = count_rows_between(home, key.dataset, key.source, after, state.high_water)
        if lag:
            with store.reading() as connection:
                oldest = flushes.first_commit_above(connection, key.dataset, after)
            lag_seconds = max(0.0, (now - oldest).total_seconds()) if oldest else None
        upcoming = None if state.removed else next_round_at(config.sinks[key.sink].schedule, now)
        lacking = unnumbered(key.dataset).get(key.source, 0)
        found.append(StreamStatus(state, lag, lag_seconds, upcoming, lacking))
    return found


def find_idle_streams(home: Home, config: Config, store: StateStore, sinks: Sequence[str]) -> list[StreamState] | None:
    """Return the streams of the sinks if all are idle, and no row is spooled or in an unfinished flush; else None."""
    datasets = {dataset for sink in sinks for dataset in config.sinks[sink].datasets}
    if any(reader.summarize_spool(home, dataset).segments for dataset in datasets):
        return None
    if (objects := open_received(home, store)) and not datasets.isdisjoint(objects.list_datasets()):
        return None
    with store.reading() as connection:
        if any(flush.dataset in datasets for flush in flushes.unfinished_flushes(connection)):
            return None
    found = read_stream_states(home, config, store, sinks)
    return found if all(state.is_idle for state in found) else None


def next_due_time(
    home: Home, config: Config, store: StateStore, sink: str, now: datetime, *, config_changed: bool = False
) -> datetime | None:
    """Return the time from which a round of the sink makes sense, or None. Spooled rows do not count.

    Raises the HypError of a sink without a valid address.
    """
    found = read_stream_states(home, config, store, [sink])
    for state in found:
        if state.error:
            raise state.error
    times = [state.due_at(now, config_changed=config_changed) for state in found]
    return min((time for time in times if time is not None), default=None)


@dataclass
class StreamReport:
    key: StreamKey
    after: int | None = None
    last: int | None = None
    rows: int = 0
    bytes: int = 0
    chunks: int = 0
    dead_letters: int = 0
    withheld: int = 0
    """Rows that the privacy gate excluded; the watermark passes them."""
    redacted: Counter[str] = field(default_factory=Counter)
    """Redaction rule → secrets replaced in the delivered rows."""
    error: dict[str, Any] | None = None
    held: bool = False
    drained: bool = True
    """Whether no row was left to deliver; a budget may end a round earlier."""

    def add_chunk(self, rows: int, sent: int, gate_report: GateReport) -> None:
        """Count a chunk that the destination has, and the bytes of it that were sent."""
        self.chunks += 1
        self.rows += rows
        self.bytes += sent
        self.add_gate_report(gate_report)
        telemetry.count("hyp_sink_exports_total", 1, sink=self.key.sink)
        telemetry.count("hyp_sink_export_bytes", sent, sink=self.key.sink)

    def add_gate_report(self, gate_report: GateReport) -> None:
        """Count the withheld rows and redactions of rows that were delivered or passed."""
        rules: Counter[str] = sum(gate_report.secrets.values(), Counter())
        self.withheld += len(gate_report.withheld)
        self.redacted.update(rules)
        if gate_report.withheld:
            telemetry.count("hyp_sink_rows_withheld_total", len(gate_report.withheld), sink=self.key.sink)
        for rule, count in rules.items():
            telemetry.count("hyp_redactions_total", count, sink=self.key.sink, rule=rule)

    @property
    def status(self) -> str:
        if self.held:
            return HELD
        if self.error:
            return PARTIAL if self.chunks else FAILED
        return PARTIAL if self.dead_letters else OK

    def as_json(self) -> dict[str, Any]:
        names = ("after", "last", "rows", "bytes", "chunks", "dead_letters", "withheld")
        return {
            "dataset": self.key.dataset,
            "source": self.key.source,
            **{name: getattr(self, name) for name in names},
            "redacted": dict(sorted(self.redacted.items())),
            **({"error": self.error} if self.error else {}),
        }


@dataclass
class SinkReport:
    sink: str
    streams: list[StreamReport] = field(default_factory=list)
    error: dict[str, Any] | None = None

    @property
    def status(self) -> str:
        found = {stream.status for stream in self.streams}
        if self.error:
            return FAILED
        if found <= {OK}:
            return OK
        if found <= {OK, HELD}:
            return HELD
        delivered = PARTIAL in found or OK in found or any(stream.chunks for stream in self.streams)
        return PARTIAL if delivered else FAILED

    def as_json(self) -> dict[str, Any]:
        return {
            "sink": self.sink,
            "status": self.status,
            "streams": [stream.as_json() for stream in self.streams],
            **({"error": self.error} if self.error else {}),
        }


def idle_report(sinks: Sequence[str], idle_streams: Sequence[StreamState]) -> dict[str, Any]:
    """Return the report of a round whose streams have nothing to deliver."""
    return _plan_report(sinks, ((state, 0) for state in idle_streams))


def dry_run_report(
    home: Home, config: Config, store: StateStore | None, sinks: Sequence[str], now: datetime
) -> dict[str, Any]:
    """Return the report of a dry run, from state and metadata. No row is read, so bytes and chunks are 0."""
    found = read_statuses(home, config, store, now, sinks) if store else ()
    return _plan_report(sinks, ((each.state, each.lag_rows) for each in found))


def _plan_report(sinks: Sequence[str], planned: Iterable[tuple[StreamState, int]]) -> dict[str, Any]:
    """Return the report for these streams and the rows that each would deliver."""
    reports = {sink: SinkReport(sink) for sink in sinks}
    for state, rows in planned:
        if state.removed:
            continue
        stream = StreamReport(state.key, after=state.watermark, last=state.high_water, rows=rows)
        if state.held is not None and state.stream is not None:
            stream.held, stream.error = True, {"kind": "held", "message": state.stream.last_error or state.held}
        reports[state.key.sink].streams.append(stream)
        if state.error:
            reports[state.key.sink].error = state.error.as_json()
    return {"sinks": [report.as_json() for report in reports.values()]}
