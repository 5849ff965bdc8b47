"""The report of a round that is not run: nothing is new (`at_rest`), or it is only asked for (`would_deliver`)."""

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


def at_rest(sinks: Sequence[str], resting: Sequence[Standing]) -> dict[str, Any]:
    """Of streams that have nothing to do."""
    reports = {sink: SinkReport(sink) for sink in sinks}
    for standing in resting:
        if not standing.removed:
            reports[standing.key.sink].streams.append(_report(standing, 0))
    return {"sinks": [report.as_json() for report in reports.values()]}


def would_deliver(
    home: Home, config: Config, store: Store | None, sinks: Sequence[str], now: datetime
) -> dict[str, Any]:
    """Counted from the state and the lake's metadata; bytes and chunks are known only when rows are read."""
    reports = {sink: SinkReport(sink) for sink in sinks}
    for found in status.report(home, config, store, now, sinks) if store else ():
        standing = found.standing
        if standing.removed:
            continue
        report = reports[standing.key.sink]
        report.streams.append(_report(standing, found.lag_rows))
        if standing.trouble:
            report.error = standing.trouble.as_json()
    return {"sinks": [report.as_json() for report in reports.values()]}


def _report(standing: Standing, rows: int) -> StreamReport:
    report = StreamReport(standing.key, after=standing.watermark, last=standing.high_water, rows=rows)
    if standing.held is not None and standing.stream is not None:
        report.held, report.error = True, {"kind": "held", "message": standing.stream.last_error or standing.held}
    return report
