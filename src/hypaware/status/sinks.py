"""The sinks in a status: the deliveries and the lag of each stream.

The lag is counted from the data files' statistics alone. For a file that a range of sequences covers only partly, the
count is the number of sequences inside the range. It is exact if the file has one row per sequence, and an upper bound
otherwise. `hyp export status` reads such files and counts exactly, but needs a library that is too slow to import here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from hypaware import text
from hypaware.export.sink_registry import next_round_at
from hypaware.export.status import StreamState, derive_stream_states, find_address
from hypaware.iceberg.metadata import DataFile
from hypaware.state import flushes
from hypaware.state.location import open_store
from hypaware.status.diagnostics import Diagnostic, PartStatus, StatusInput, error, info, warning
from hypaware.status.storage import LakeStatus
from hypaware.text import summarize_error

# A sink is reported as behind after two rounds of its schedule, but not before this.
_BEHIND = timedelta(hours=1)


@dataclass(frozen=True)
class RowLag:
    rows: int = 0
    exact: bool = True

    def __add__(self, other: RowLag) -> RowLag:
        return RowLag(self.rows + other.rows, self.exact and other.exact)


def count_between(files: Iterable[DataFile], source: str, after: int, last: int) -> RowLag:
    """Count the rows of the source in (after, last]."""
    total = RowLag()
    for file in files:
        lowest, highest = file.min_seq, file.max_seq
        if file.source != source or file.sequenced == 0:
            continue
        if lowest is None or highest is None:
            total += RowLag(file.sequenced, exact=False)
        elif after < lowest and highest <= last:
            total += RowLag(file.sequenced)
        elif highest > after and lowest <= last:
            inside = min(highest, last) - max(lowest - 1, after)
            total += RowLag(min(file.sequenced, inside), exact=file.sequenced == highest - lowest + 1)
    return total


@dataclass(frozen=True)
class SinkStream:
    state: StreamState
    lag: RowLag = RowLag()
    lag_seconds: float | None = 0.0

    @property
    def held(self) -> str | None:
        return self.state.held or ("elsewhere" if self.state.points_elsewhere else None)

    @property
    def last_error(self) -> str | None:
        return self.state.stream.last_error if self.state.stream else None

    def as_json(self) -> dict[str, Any]:
        state, stream = self.state, self.state.stream
        return {
            "dataset": state.key.dataset,
            "source": state.key.source,
            "watermark": state.watermark,
            "high_water": state.high_water,
            "lag_rows": self.lag.rows,
            "lag_exact": self.lag.exact,
            "lag_seconds": self.lag_seconds,
            "exported_rows": stream.exported_rows if stream else 0,
            "updated_at": _iso(stream.updated_at) if stream else None,
            "pending": asdict(state.pending) if state.pending else None,
            "last_success_at": _iso(stream.last_success_at) if stream else None,
            "last_error": self.last_error,
            "held": self.held,
            "retry_at": _iso(stream.retry_at) if stream else None,
            "dead_letters": state.dead_letters,
        }


def _iso(time: datetime | None) -> str | None:
    return time.isoformat() if time else None


@dataclass(frozen=True)
class SinkStatus:
    name: str
    kind: str | None
    address: str | None
    schedule: str | None
    next_round: str | None
    error: str | None
    streams: tuple[SinkStream, ...]

    @property
    def removed(self) -> bool:
        return self.kind is None

    @property
    def lag(self) -> RowLag:
        return sum((stream.lag for stream in self.streams if not stream.state.removed), RowLag())

    @property
    def status(self) -> str:
        """removed, unusable, held, failing, behind or delivered."""
        current = [stream for stream in self.streams if not stream.state.removed]
        if self.removed or self.error:
            return "removed" if self.removed else "unusable"
        if any(stream.held for stream in current):
            return "held"
        if any(stream.last_error for stream in current):
            return "failing"
        return "behind" if self.lag.rows else "delivered"

    def as_json(self) -> dict[str, Any]:
        streams = [each.as_json() for each in self.streams]
        return {
            "sink": self.name,
            "kind": self.kind,
            "address": self.address,
            "schedule": self.schedule,
            "status": self.status,
            "lag_rows": self.lag.rows,
            "lag_exact": self.lag.exact,
            "lag_seconds": max((each["lag_seconds"] or 0.0 for each in streams), default=0.0),
            "exported_rows": sum(each["exported_rows"] for each in streams),
            "last_success_at": max((each["last_success_at"] or "" for each in streams), default="") or None,
            "next_round": self.next_round,
            "dead_letters": sum(each["dead_letters"] for each in streams),
            "error": self.error,
            "streams": streams,
        }


def inspect_sinks(inputs: StatusInput, lake: LakeStatus) -> PartStatus[list[SinkStatus]]:
    states = derive_stream_states(inputs.home, inputs.config, inputs.state.deliveries)
    by_sink = {name: list(group) for name, group in groupby(states, lambda state: state.key.sink)}
    sinks = [
        _sink_status(inputs, lake, name, by_sink.get(name, [])) for name in sorted(inputs.config.sinks.keys() | by_sink)
    ]
    return PartStatus(sinks, tuple(each for sink in sinks for each in _sink_diagnostics(inputs, sink)))


def _sink_status(inputs: StatusInput, lake: LakeStatus, name: str, states: list[StreamState]) -> SinkStatus:
    streams = tuple(_sink_stream(inputs, lake, state) for state in states)
    if (declared := inputs.config.sinks.get(name)) is None:
        return SinkStatus(name, None, None, None, None, None, streams)
    address, problem = find_address(inputs.home, inputs.config, inputs.state.identity, name)
    return SinkStatus(
        name=name,
        kind=declared.kind,
        address=address,
        schedule=declared.schedule,
        next_round=next_round_at(declared.schedule, inputs.now).isoformat().replace("+00:00", "Z"),
        error=summarize_error(problem) if problem else None,
        streams=streams,
    )


def _sink_stream(inputs: StatusInput, lake: LakeStatus, state: StreamState) -> SinkStream:
    after, table = state.watermark or 0, lake.tables.get(state.key.dataset)
    if after >= state.high_water or state.removed or table is None:
        return SinkStream(state)
    lag = count_between(table.files, state.key.source, after, state.high_water)
    if not lag.rows:
        return SinkStream(state)
    with open_store(inputs.home, read_only=True).reading() as connection:
        oldest = flushes.first_commit_above(connection, state.key.dataset, after)
    return SinkStream(state, lag, max(0.0, (inputs.now - oldest).total_seconds()) if oldest else None)


def _sink_diagnostics(inputs: StatusInput, sink: SinkStatus) -> Iterator[Diagnostic]:
    letters = sum(each.state.dead_letters for each in sink.streams)
    if letters:
        count = text.format_count(letters, "dead letter")
        message = f"{sink.name}: {count} (rows that the sink rejected)"
        yield warning("dead_letters", message, "hyp export dead-letters list")
    current = [stream for stream in sink.streams if not stream.state.removed]
    if sink.status == "unusable":
        yield error("sink_unusable", f"{sink.name}: {sink.error}", "hyp config show", "hyp plugin list")
    elif sink.status == "held":
        held = next(stream for stream in current if stream.held)
        message = f"{sink.name} is held until you decide: {held.last_error or 'its destination has changed'}"
        yield warning("sink_held", message, f"hyp export adopt {sink.name}", f"hyp export resend {sink.name}")
    elif sink.status == "failing":
        failed = next(stream for stream in current if stream.last_error)
        yield warning("sink_failing", f"{sink.name}: {failed.last_error}", f"hyp export {sink.name}")
    elif any(each.lag_seconds is None or each.lag_seconds > _max_lag_seconds(inputs, sink) for each in current):
        rows = f"{'' if sink.lag.exact else 'up to '}{text.format_count(sink.lag.rows, 'row')}"
        yield warning("sink_behind", f"{sink.name} is {rows} behind", f"hyp export {sink.name}")
    if sink.removed and any(each.state.pending for each in sink.streams):
        yield info("sink_removed", f"{sink.name} was removed from the config during a delivery", "hyp export status")


def _max_lag_seconds(inputs: StatusInput, sink: SinkStatus) -> float:
    """Return two rounds of the sink's schedule, but at least an hour."""
    assert sink.schedule is not None
    first = next_round_at(sink.schedule, inputs.now)
    return max(_BEHIND, 2 * (next_round_at(sink.schedule, first) - first)).total_seconds()
