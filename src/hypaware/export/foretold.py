"""Reports of rounds that are not run: the round is idle (`at_rest`), or it is a dry run (`would_deliver`)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hypaware.config import Config
from hypaware.export import status
from hypaware.export.report import SinkReport, StreamReport
from hypaware.export.standing import Standing
from hypaware.home import Home

if TYPE_CHECKING:
    from hypaware.state.store import Store


def at_rest(sinks: Sequence[str], idle_streams: Sequence[Standing]) -> dict[str, Any]:
    """Return the report of a round whose streams have nothing to deliver."""
    reports = {sink: SinkReport(sink) for sink in sinks}
    for state in idle_streams:
        if not state.removed:
            reports[state.key.sink].streams.append(_report(state, 0))
    return {"sinks": [report.as_json() for report in reports.values()]}


def would_deliver(
    home: Home, config: Config, store: Store | None, sinks: Sequence[str], now: datetime
) -> dict[str, Any]:
    """Return the report of a dry run, from state and metadata. No row is read, so bytes and chunks are 0."""
    reports = {sink: SinkReport(sink) for sink in sinks}
    for found in status.report(home, config, store, now, sinks) if store else ():
        state = found.state
        if state.removed:
            continue
        report = reports[state.key.sink]
        report.streams.append(_report(state, found.lag_rows))
        if state.error:
            report.error = state.error.as_json()
    return {"sinks": [report.as_json() for report in reports.values()]}


def _report(state: Standing, rows: int) -> StreamReport:
    report = StreamReport(state.key, after=state.watermark, last=state.high_water, rows=rows)
    if state.held is not None and state.stream is not None:
        report.held, report.error = True, {"kind": "held", "message": state.stream.last_error or state.held}
    return report
