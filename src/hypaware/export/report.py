"""What a round did, as the commands and the telemetry show it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypaware import telemetry
from hypaware.state.stream_key import StreamKey

if TYPE_CHECKING:
    from hypaware.export.clearance import Audit

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
    """Rows that stay on this machine; the stream has passed them."""
    redacted: Counter[str] = field(default_factory=Counter)
    """Rule → secrets that were replaced in what was delivered."""
    error: dict[str, Any] | None = None
    held: bool = False
    drained: bool = True
    """Whether everything that was there has been delivered; a budget may end a round before."""

    def count(self, audit: Audit) -> None:
        """Of rows that the stream has passed."""
        rules = audit.rules
        self.withheld += len(audit.withheld)
        self.redacted.update(rules)
        if audit.withheld:
            telemetry.count("hyp_sink_rows_withheld_total", len(audit.withheld), sink=self.key.sink)
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
