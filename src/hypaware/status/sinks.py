"""The sinks: what each stream has delivered and how far it lags, from the state, the config and the lake's files.

`export.standing` implements the same rules; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from hypaware.errors import HypError
from hypaware.export import configured, schedule
from hypaware.status import memory, words
from hypaware.status.diagnostic import Diagnostic, Found, error, info, reason_of, warning
from hypaware.status.lag import Lag, between
from hypaware.status.lake import Lake
from hypaware.status.memory import StreamName
from hypaware.status.view import View

_LOST = "lost"
# A sink is reported as behind after two rounds of its schedule, but not before this.
_BEHIND = timedelta(hours=1)


@dataclass(frozen=True)
class Stream:
    name: StreamName
    watermark: int | None
    """None if the delivery record was lost."""
    high_water: int
    lag: Lag
    lag_seconds: float | None
    row: dict[str, Any]
    """The stream's row in the state; empty before its first round."""
    pending: dict[str, int] | None
    dead_letters: int
    points_elsewhere: bool
    removed: bool

    @property
    def held(self) -> str | None:
        return self.row.get("held") or ("elsewhere" if self.points_elsewhere else None)

    def as_json(self) -> dict[str, Any]:
        return {
            "dataset": self.name[1],
            "source": self.name[2],
            "watermark": self.watermark,
            "high_water": self.high_water,
            "lag_rows": self.lag.rows,
            "lag_exact": self.lag.exact,
            "lag_seconds": self.lag_seconds,
            "exported_rows": self.row.get("exported_rows", 0),
            "updated_at": self.row.get("updated_at"),
            "pending": self.pending,
            "last_success_at": self.row.get("last_success_at"),
            "last_error": self.row.get("last_error"),
            "held": self.held,
            "retry_at": self.row.get("retry_at"),
            "dead_letters": self.dead_letters,
        }


@dataclass(frozen=True)
class Sink:
    name: str
    kind: str | None
    address: str | None
    schedule: str | None
    next_round: str | None
    error: str | None
    streams: tuple[Stream, ...]

    @property
    def removed(self) -> bool:
        return self.kind is None

    @property
    def lag(self) -> Lag:
        return sum((stream.lag for stream in self.streams if not stream.removed), Lag())

    @property
    def status(self) -> str:
        """removed, unusable, held, failing, behind or delivered."""
        current = [stream for stream in self.streams if not stream.removed]
        if self.removed or self.error:
            return "removed" if self.removed else "unusable"
        if any(stream.held for stream in current):
            return "held"
        if any(stream.row.get("last_error") for stream in current):
            return "failing"
        return "behind" if self.lag.rows else "delivered"

    def as_json(self) -> dict[str, Any]:
        seconds = [each.lag_seconds for each in self.streams if each.lag_seconds is not None]
        return {
            "sink": self.name,
            "kind": self.kind,
            "address": self.address,
            "schedule": self.schedule,
            "status": self.status,
            "lag_rows": self.lag.rows,
            "lag_exact": self.lag.exact,
            "lag_seconds": max(seconds, default=0.0),
            "exported_rows": sum(each.row.get("exported_rows", 0) for each in self.streams),
            "last_success_at": max((each.row.get("last_success_at") or "" for each in self.streams), default="")
            or None,
            "next_round": self.next_round,
            "dead_letters": sum(each.dead_letters for each in self.streams),
            "error": self.error,
            "streams": [each.as_json() for each in self.streams],
        }


def look(view: View, lake: Lake) -> Found[list[Sink]]:
    with_streams = {name[0] for name in view.state.streams}
    sinks = [_sink(view, lake, name) for name in sorted(view.config.sinks.keys() | with_streams)]
    return Found(sinks, tuple(each for sink in sinks for each in _diagnostics(view, sink)))


def _sink(view: View, lake: Lake, name: str) -> Sink:
    declared = view.config.sinks.get(name)
    address, problem = _address(view, name) if declared else (None, None)
    datasets = declared.datasets if declared else ()
    names = {key for key in view.state.streams if key[0] == name} | {
        (name, dataset, source) for dataset in datasets for source in view.state.high_water.get(dataset, {})
    }
    streams = tuple(_stream(view, lake, key, address, removed=key[1] not in datasets) for key in sorted(names))
    return Sink(
        name,
        declared.kind if declared else None,
        address,
        declared.schedule if declared else None,
        schedule.next_round(declared.schedule, view.now).isoformat().replace("+00:00", "Z") if declared else None,
        problem,
        streams,
    )


def _address(view: View, sink: str) -> tuple[str | None, str | None]:
    """Return the configured destination, or why it cannot be determined. Both are None in a home without a state."""
    if view.state.identity is None:
        return None, None
    try:
        return configured.address(view.home, view.config, view.state.identity, sink), None
    except HypError as exception:
        return None, reason_of(exception)


def _stream(view: View, lake: Lake, name: StreamName, address: str | None, *, removed: bool) -> Stream:
    row = view.state.streams.get(name, {})
    _, dataset, source = name
    watermark = row.get("watermark")
    if watermark is None and row.get("history") != _LOST:
        watermark = 0
    high_water = view.state.high_water.get(dataset, {}).get(source, 0)
    stream = Stream(
        name=name,
        watermark=watermark,
        high_water=high_water,
        lag=Lag(),
        lag_seconds=0.0,
        row=row,
        pending=view.state.pending.get(name),
        dead_letters=view.state.dead_letters[name],
        points_elsewhere=bool(row and address is not None and row["address"] != address),
        removed=removed,
    )
    after = watermark or 0
    if after >= high_water or removed:
        return stream
    table = lake.tables.get(dataset)
    lag = between(table.files, source, after, high_water) if table else Lag()
    if not lag.rows:
        return stream
    oldest = words.moment(memory.first_commit_above(view.home, dataset, after))
    return replace(stream, lag=lag, lag_seconds=max(0.0, (view.now - oldest).total_seconds()) if oldest else None)


def _diagnostics(view: View, sink: Sink) -> Iterator[Diagnostic]:
    letters = sum(each.dead_letters for each in sink.streams)
    if letters:
        count = words.count(letters, "dead letter")
        yield warning(
            "dead_letters", f"{sink.name}: {count} (rows that the sink rejected)", "hyp export dead-letters list"
        )
    current = [stream for stream in sink.streams if not stream.removed]
    if sink.status == "unusable":
        yield error("sink_unusable", f"{sink.name}: {sink.error}", "hyp config show", "hyp plugin list")
    elif sink.status == "held":
        held = next(stream for stream in current if stream.held)
        why = held.row.get("last_error") or "its destination has changed"
        yield warning(
            "sink_held",
            f"{sink.name} is held until you decide: {why}",
            f"hyp export adopt {sink.name}",
            f"hyp export resend {sink.name}",
        )
    elif sink.status == "failing":
        failed = next(stream for stream in current if stream.row.get("last_error"))
        yield warning("sink_failing", f"{sink.name}: {failed.row['last_error']}", f"hyp export {sink.name}")
    elif any(each.lag_seconds is None or each.lag_seconds > _max_lag_seconds(view, sink) for each in current):
        rows = f"{'' if sink.lag.exact else 'up to '}{words.count(sink.lag.rows, 'row')}"
        yield warning("sink_behind", f"{sink.name} is {rows} behind", f"hyp export {sink.name}")
    if sink.removed and any(each.pending for each in sink.streams):
        yield info("sink_removed", f"{sink.name} was removed from the config during a delivery", "hyp export status")


def _max_lag_seconds(view: View, sink: Sink) -> float:
    """Return two rounds of the sink's schedule, but at least an hour."""
    assert sink.schedule is not None
    first = schedule.next_round(sink.schedule, view.now)
    return max(_BEHIND, 2 * (schedule.next_round(sink.schedule, first) - first)).total_seconds()
