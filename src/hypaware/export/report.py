"""The reports of rounds, for commands and telemetry: of a round, an idle round and a dry run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hypaware import telemetry
from hypaware.config import Config
from hypaware.export import status
from hypaware.export.status import StreamState
from hypaware.home import Home
from hypaware.state.streams import StreamKey

if TYPE_CHECKING:
    from hypaware.export.privacy_gate import GateReport
    from hypaware.state.store import StateStore

OK, PARTIAL, FAILED, HELD = "ok", "partial", "failed", "held"


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

    def add_gate_report(self, gate_report: GateReport) -> None:
        """Count the withheld rows and redactions of rows that were delivered or passed."""
        rules = gate_report.rules
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
        body: dict[str, Any] = {
            "dataset": self.key.dataset,
            "source": self.key.source,
            "after": self.after,
            "last": self.last,
            "rows": self.rows,
            "bytes": self.bytes,
            "chunks": self.chunks,
            "dead_letters": self.dead_letters,
            "withheld": self.withheld,
            "redacted": dict(sorted(self.redacted.items())),
        }
        if self.error:
            body["error"] = self.error
        return body


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
        body: dict[str, Any] = {
            "sink": self.sink,
            "status": self.status,
            "streams": [stream.as_json() for stream in self.streams],
        }
        if self.error:
            body["error"] = self.error
        return body


def idle_report(sinks: Sequence[str], idle_streams: Sequence[StreamState]) -> dict[str, Any]:
    """Return the report of a round whose streams have nothing to deliver."""
    reports = {sink: SinkReport(sink) for sink in sinks}
    for state in idle_streams:
        if not state.removed:
            reports[state.key.sink].streams.append(_stream_report(state, 0))
    return {"sinks": [report.as_json() for report in reports.values()]}


def dry_run_report(
    home: Home, config: Config, store: StateStore | None, sinks: Sequence[str], now: datetime
) -> dict[str, Any]:
    """Return the report of a dry run, from state and metadata. No row is read, so bytes and chunks are 0."""
    reports = {sink: SinkReport(sink) for sink in sinks}
    for found in status.read_statuses(home, config, store, now, sinks) if store else ():
        state = found.state
        if state.removed:
            continue
        report = reports[state.key.sink]
        report.streams.append(_stream_report(state, found.lag_rows))
        if state.error:
            report.error = state.error.as_json()
    return {"sinks": [report.as_json() for report in reports.values()]}


def _stream_report(state: StreamState, rows: int) -> StreamReport:
    report = StreamReport(state.key, after=state.watermark, last=state.high_water, rows=rows)
    if state.held is not None and state.stream is not None:
        report.held, report.error = True, {"kind": "held", "message": state.stream.last_error or state.held}
    return report
