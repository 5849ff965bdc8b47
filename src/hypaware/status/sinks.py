"""What is delivered to each sink, and what is not: by the state, the config and the lake's files.

A stream is (sink, dataset, source). `export.standing` has the same rules; a test holds the two together.
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
# A sink whose schedule is rare has two rounds before anybody is told.
_BEHIND = timedelta(hours=1)


@dataclass(frozen=True)
class Stream:
    name: StreamName
    watermark: int | None
    """None where an earlier state may have delivered rows and nobody remembers which."""
    high_water: int
    lag: Lag
    lag_seconds: float | None
    row: dict[str, Any]
    """As the state has it; empty while it has never had a round."""
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
    trouble: str | None
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
        if self.removed or self.trouble:
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
            "error": self.trouble,
            "streams": [each.as_json() for each in self.streams],
        }


def look(view: View, lake: Lake) -> Found[list[Sink]]:
    remembered = {name[0] for name in view.memory.streams}
    found = [_sink(view, lake, name) for name in sorted(view.config.sinks.keys() | remembered)]
    return Found(found, tuple(each for sink in found for each in _diagnostics(view, sink)))


def _sink(view: View, lake: Lake, name: str) -> Sink:
    declared = view.config.sinks.get(name)
    address, trouble = _address(view, name) if declared else (None, None)
    datasets = declared.datasets if declared else ()
    names = {key for key in view.memory.streams if key[0] == name} | {
        (name, dataset, source) for dataset in datasets for source in view.memory.high_water.get(dataset, {})
    }
    streams = tuple(_stream(view, lake, key, address, removed=key[1] not in datasets) for key in sorted(names))
    return Sink(
        name,
        declared.kind if declared else None,
        address,
        declared.schedule if declared else None,
        schedule.next_round(declared.schedule, view.now).isoformat().replace("+00:00", "Z") if declared else None,
        trouble,
        streams,
    )


def _address(view: View, sink: str) -> tuple[str | None, str | None]:
    """Where the config says that its rows go, or why nothing can tell. A home without a state has none yet."""
    if view.memory.identity is None:
        return None, None
    try:
        return configured.address(view.home, view.config, view.memory.identity, sink), None
    except HypError as trouble:
        return None, reason_of(trouble)


def _stream(view: View, lake: Lake, name: StreamName, address: str | None, *, removed: bool) -> Stream:
    row = view.memory.streams.get(name, {})
    _, dataset, source = name
    watermark = row.get("watermark")
    if watermark is None and row.get("history") != _LOST:
        watermark = 0
    high_water = view.memory.high_water.get(dataset, {}).get(source, 0)
    found = Stream(
        name=name,
        watermark=watermark,
        high_water=high_water,
        lag=Lag(),
        lag_seconds=0.0,
        row=row,
        pending=view.memory.pending.get(name),
        dead_letters=view.memory.letters[name],
        points_elsewhere=bool(row and address is not None and row["address"] != address),
        removed=removed,
    )
    after = watermark or 0
    if after >= high_water or removed:
        return found
    table = lake.tables.get(dataset)
    lag = between(table.files, source, after, high_water) if table else Lag()
    if not lag.rows:
        return found
    oldest = words.moment(memory.first_commit_above(view.home, dataset, after))
    return replace(found, lag=lag, lag_seconds=max(0.0, (view.now - oldest).total_seconds()) if oldest else None)


def _diagnostics(view: View, sink: Sink) -> Iterator[Diagnostic]:
    letters = sum(each.dead_letters for each in sink.streams)
    if letters:
        what = words.count(letters, "dead letter waits", "dead letters wait")
        yield warning(
            "dead_letters", f"{sink.name}: {what} for you: rows that it refused", "hyp export dead-letters list"
        )
    current = [stream for stream in sink.streams if not stream.removed]
    if sink.status == "unusable":
        yield error("sink_unusable", f"{sink.name}: {sink.trouble}", "hyp config show", "hyp plugin list")
    elif sink.status == "held":
        held = next(stream for stream in current if stream.held)
        why = held.row.get("last_error") or "it points elsewhere than before"
        yield warning(
            "sink_held",
            f"{sink.name} waits for your word: {why}",
            f"hyp export adopt {sink.name}",
            f"hyp export resend {sink.name}",
        )
    elif sink.status == "failing":
        failed = next(stream for stream in current if stream.row.get("last_error"))
        yield warning("sink_failing", f"{sink.name}: {failed.row['last_error']}", f"hyp export {sink.name}")
    elif any(each.lag_seconds is None or each.lag_seconds > _patience(view, sink) for each in current):
        rows = f"{'' if sink.lag.exact else 'up to '}{words.count(sink.lag.rows, 'row')}"
        yield warning("sink_behind", f"{sink.name} has not had {rows} yet", f"hyp export {sink.name}")
    if sink.removed and any(each.pending for each in sink.streams):
        yield info(
            "sink_removed", f"{sink.name} is gone from the config with a delivery under way", "hyp export status"
        )


def _patience(view: View, sink: Sink) -> float:
    """Two rounds of its schedule, and an hour at least."""
    assert sink.schedule is not None
    first = schedule.next_round(sink.schedule, view.now)
    return max(_BEHIND, 2 * (schedule.next_round(sink.schedule, first) - first)).total_seconds()
