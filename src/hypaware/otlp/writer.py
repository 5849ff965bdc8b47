"""The telemetry writer: turns the records of a request into rows and stores them, on the thread of the request.

    read → coerce → apply the privacy policy → redact → spool

All rows of a request are durable when `write` returns, or none. A record that does not fit its dataset is rejected, and
the exporter learns the number and a reason. The records of a session that the user ignores, by `hyp session ignore` or
by the policy of its folder, leave nothing but a count. Telemetry does not name the folder: the notes of the client's
hook do, or else the rows of the session that are already in the index.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from hypaware import faults, plugins
from hypaware.clients.client import Client
from hypaware.config import Config
from hypaware.model.datasets import Row, RowRejected, coerce_row
from hypaware.model.privacy_class import PrivacyClass
from hypaware.otlp.records import RecordReader
from hypaware.otlp.wire import OtlpSignal
from hypaware.privacy.policy import PrivacyPolicy
from hypaware.privacy.redact import Redaction, load_marker_key, redact_row
from hypaware.privacy.withheld_sessions import list_session_folders
from hypaware.spool.writer import Spool

_before_append = faults.crash_point("otlp.store.before-append", "a request is decoded; none of its rows is stored")
_after_append = faults.crash_point("otlp.store.after-append", "the rows are durable; the exporter has no answer")


@dataclass(frozen=True)
class StoredRequest:
    """What became of the records of one request."""

    rows: int
    ignored: int
    rejected: int
    reason: str


@dataclass(frozen=True)
class TelemetryCounts:
    """What became of all records since the daemon started: counts and names only."""

    requests: int = 0
    rows: int = 0
    ignored: int = 0
    rejected: int = 0
    by_dataset: Mapping[str, int] = field(default_factory=dict)
    redacted: Mapping[str, int] = field(default_factory=dict)
    """Rule → how many secrets it found."""
    last_rows_at: datetime | None = None


class TelemetryWriter:
    def __init__(self, spool: Spool, config: Config) -> None:
        self._spool, self._home = spool, spool.home
        self._lock = threading.Lock()
        self._key = load_marker_key(self._home)
        self._clients = {
            service: client.name
            for client in plugins.load_declarations(plugins.CLIENTS, Client)
            for service in client.service_names
        }
        self.counts = TelemetryCounts()
        self.update_config(config)

    def update_config(self, config: Config) -> None:
        """Apply a changed config to requests that arrive from now on."""
        rules_off = frozenset(config.redaction.rules_off)
        self._redaction = Redaction(self._key, rules_off) if config.redaction.kept else None
        self._privacy = PrivacyPolicy.from_config(self._home, config.privacy, remember=True)

    def write(self, signal: OtlpSignal, request: Any) -> StoredRequest:
        """Store a request. Its rows are durable when this returns.

        Raise Retryable if the spool cannot accept rows, OtlpProblem if the request has too many records.
        """
        now = datetime.now(UTC)
        rows: list[Row] = []
        rejected: Counter[str] = Counter()
        secrets: Counter[str] = Counter()
        ignored = 0
        is_ignored: dict[str | None, bool] = {}
        redaction = self._redaction
        for record in RecordReader(self._key, now, self._clients.get).read(request):
            if record.problem is not None:
                rejected[record.problem] += 1
                continue
            try:
                row = coerce_row(signal.dataset, record.row, self._spool.gateway_id)
            except RowRejected as reason:
                rejected[str(reason)] += 1
                continue
            session = row.get("session_id")
            if session not in is_ignored:
                is_ignored[session] = self._is_ignored(session)
            if is_ignored[session]:
                ignored += 1
                continue
            if redaction is not None:
                row, found = redact_row(signal.dataset, row, redaction)
                secrets.update(found)
            rows.append(row)
        _before_append()
        self._spool.append_coerced(signal.dataset.name, rows)
        _after_append()
        stored = StoredRequest(len(rows), ignored, rejected.total(), next(iter(rejected), ""))
        self._count(signal.dataset.name, stored, secrets, now)
        return stored

    def _is_ignored(self, session: str | None) -> bool:
        with self._lock:
            privacy = self._privacy
            if privacy.class_of(None, session) is PrivacyClass.IGNORE:
                return True
            folders = list_session_folders(self._home, session) if session else []
            return any(privacy.class_of(folder, session) is PrivacyClass.IGNORE for folder in folders)

    def _count(self, dataset: str, stored: StoredRequest, secrets: Counter[str], now: datetime) -> None:
        with self._lock:
            counts = self.counts
            self.counts = replace(
                counts,
                requests=counts.requests + 1,
                rows=counts.rows + stored.rows,
                ignored=counts.ignored + stored.ignored,
                rejected=counts.rejected + stored.rejected,
                by_dataset=dict(Counter(counts.by_dataset) + Counter({dataset: stored.rows})),
                redacted=dict(Counter(counts.redacted) + secrets),
                last_rows_at=now if stored.rows else counts.last_rows_at,
            )
