"""Project the stored raw exchanges to message rows again, in batches, with the current decoders.

Exchanges are read in the order in which they were stored, across all sources. This is the order in which they ended,
and the one that decoders need: a request is read after those whose history it repeats, even if a client's session has
two sources. Every exchange is read, including those before the window: their history is then known, and a request in
the window gives only its new messages. The window therefore selects rows, but never changes their ids.

Parts of request bodies are kept in a temporary SQLite file in its own folder under `<home>/engine/tmp`, because a day
of work may not fit into memory. Parts are stored by session and day; those of older days are dropped. The folder is
removed at the end of the run; the next engine removes one that a killed run has left.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import tee
from typing import Any

from hypaware.clients.reader import TimeWindow
from hypaware.config import Config
from hypaware.engine.session import ScratchFolder
from hypaware.gateway.projection.conversation import ConversationCache
from hypaware.gateway.projection.projector import Projection, SessionFacts
from hypaware.gateway.raw_exchanges import PartLookup, PartStore, reproject_exchanges
from hypaware.home import Home, durable_files
from hypaware.home.session_context import session_columns
from hypaware.iceberg import metadata
from hypaware.lake import read
from hypaware.model import canonical
from hypaware.model.columns import format_timestamp
from hypaware.model.datasets import GATEWAY, SEQ, Row, RowRejected, coerce_row
from hypaware.model.privacy_class import PrivacyClass
from hypaware.model.row_counts import RowCounts
from hypaware.model.schemas import AI_GATEWAY_EXCHANGES, AI_GATEWAY_MESSAGES
from hypaware.privacy.policy import PrivacyPolicy
from hypaware.state import flushes
from hypaware.state.home_opener import OpenHome
from hypaware.state.store import StateStore

_CACHE_KIB = 16 << 10
_PAGE_ROWS = 2_000
_ROWS_AT_ONCE = 64
BATCH_ROWS = 5_000


@dataclass
class ReprojectionReport:
    dry_run: bool
    exchanges: int = 0
    """Exchanges of this gateway in the window."""
    sessions: set[str] = field(default_factory=set)
    rows_projected: int = 0
    rows: RowCounts = field(default_factory=RowCounts)
    skipped: Counter[str] = field(default_factory=Counter)
    """Exchanges, or parts of them, that gave no rows, by reason."""

    def add_flush(self, added: int, flushed: RowCounts) -> None:
        """Add the counts of a flush. They may include rows of other producers, so each count is capped."""
        rejected = min(added, flushed.rejected)
        purged = min(added - rejected, flushed.purged)
        written = min(added - rejected - purged, flushed.written)
        duplicate = added - rejected - purged - written
        self.rows.add(RowCounts(written, duplicate, rejected, purged=purged))

    def as_json(self) -> dict[str, Any]:
        return {
            "dry_run": self.dry_run,
            "exchanges": self.exchanges,
            "sessions": len(self.sessions),
            "rows_projected": self.rows_projected,
            **self.rows.as_json("written", "duplicate", "purged", "rejected"),
            "skipped": dict(sorted(self.skipped.items())),
        }


@dataclass(frozen=True)
class _Rules:
    """What decides which rows of an exchange are kept."""

    gateway_id: str
    window: TimeWindow
    privacy: PrivacyPolicy
    facts: SessionFacts
    retained_from: str | None
    """The first day that retention keeps; older rows are not added again."""


def project_batches(
    opened: OpenHome,
    config: Config,
    window: TimeWindow,
    report: ReprojectionReport,
    progress: Callable[[int, int], None],
) -> Iterator[list[Row]]:
    """Yield the rows of all recorded exchanges in batches, and count exchanges and rows in the report.

    `progress` receives the number of exchanges read, and of all exchanges.
    """
    home = opened.home

    def facts(session: str) -> Mapping[str, str]:
        return session_columns(home.root, "claude").get(session, {})

    unknown = PrivacyClass.parse(config.privacy.unknown_folder)
    privacy = PrivacyPolicy(home, config.privacy.folders, unknown, find_cwd=lambda session: facts(session).get("cwd"))
    retained_from = metadata.read_retention_start(home, AI_GATEWAY_MESSAGES.name)
    rules = _Rules(opened.gateway_id, window, privacy, facts, retained_from)
    total, batch = _count_exchanges(home), list[Row]()
    with _open_parts_file(home) as parts:
        stored = _read_exchanges(home, opened.store)
        for number, rows in enumerate(_project_exchanges(stored, rules, parts, report)):
            progress(number, total)
            batch += rows
            if len(batch) >= BATCH_ROWS:
                yield batch
                batch = []
    if batch:
        yield batch


def _project_exchanges(
    stored: Iterable[Row], rules: _Rules, parts: PartStore, report: ReprojectionReport
) -> Iterator[list[Row]]:
    conversations = ConversationCache()
    exchanges, read = tee(_own_exchanges(stored, rules, report))
    for exchange, projection in zip(
        exchanges, reproject_exchanges(read, facts=rules.facts, conversations=conversations, parts=parts), strict=True
    ):
        wanted = rules.window.contains(exchange["ts_start"])
        report.exchanges += wanted
        if _is_ignored(exchange, projection, rules.privacy):
            conversations.rollback(projection.changes)
            report.skipped["ignored"] += wanted
            yield []
        elif wanted:
            yield _keep_rows(exchange, projection, rules, report)
        else:
            yield []


def _own_exchanges(stored: Iterable[Row], rules: _Rules, report: ReprojectionReport) -> Iterator[Row]:
    for row in stored:
        if row[GATEWAY] == rules.gateway_id:
            yield row
        elif rules.window.contains(row["ts_start"]):
            report.skipped["another_gateway"] += 1


def _keep_rows(exchange: Row, projection: Projection, rules: _Rules, report: ReprojectionReport) -> list[Row]:
    report.skipped += projection.skipped
    if session := projection.session_id or exchange.get("session_id"):
        report.sessions.add(session)
    kept = []
    lacks_beginning = bool(exchange.get("decoded")) and _has_no_beginning(projection)
    for row in projection.rows:
        if lacks_beginning and _is_history(row):
            report.skipped["earlier_history"] += 1
            continue
        report.rows_projected += 1
        try:
            stored = coerce_row(AI_GATEWAY_MESSAGES, row, rules.gateway_id)
        except RowRejected:
            report.rows.rejected += 1
            continue
        if rules.retained_from is not None and stored["date"] < rules.retained_from:
            report.skipped["before_retention"] += 1
        else:
            kept.append(stored)
    return kept


def _has_no_beginning(projection: Projection) -> bool:
    """Tell whether the first exchanges of the conversation may no longer be stored.

    The history that the request repeats was recorded at the time, under the ids that it gets now; or it was skipped,
    because it belongs to the conversation that this one was forked from. It is unknown which.
    """
    changes = projection.changes
    return changes is not None and changes.is_new and not changes.is_fork


def _is_history(row: Row) -> bool:
    """Tell whether the message is older than its exchange."""
    gateway = canonical.loads(row["attributes"])["gateway"]
    return bool(gateway.get("time_source") == "request")


def _is_ignored(exchange: Row, projection: Projection, privacy: PrivacyPolicy) -> bool:
    """Apply the current privacy rules to the session and its folder."""
    session: Any = projection.session_id or exchange.get("session_id")
    cwd = next((row["cwd"] for row in projection.rows if row.get("cwd")), None)
    return privacy.class_of(cwd, session) is PrivacyClass.IGNORE


def _count_exchanges(home: Home) -> int:
    """Count the stored exchanges, including those that are not recorded yet."""
    entry = metadata.find_table(home, AI_GATEWAY_EXCHANGES.name)
    return sum(file.rows for file in metadata.iter_cached_files(metadata.read_metadata(entry.metadata))) if entry else 0


def _read_exchanges(home: Home, store: StateStore) -> Iterator[Row]:
    """Yield the exchanges that are recorded now, in producer form. Later ones are left to the next run."""
    name = AI_GATEWAY_EXCHANGES.name
    with store.reading() as connection:
        recorded = flushes.load_high_water(connection, name).get(name, {})
    sources = [_read_source(home, source, last) for source, last in sorted(recorded.items())]
    for _, row in heapq.merge(*sources, key=lambda found: found[0]):
        yield row


def _read_source(home: Home, source: str, last: int) -> Iterator[tuple[int, Row]]:
    after = 0
    while after < last:
        found = read.read_page_after(home, AI_GATEWAY_EXCHANGES.name, source, after, last, _PAGE_ROWS)
        after = found.reached
        for batch in found.rows.to_batches(max_chunksize=_ROWS_AT_ONCE):
            for row in batch.to_pylist():
                seq = row.pop(SEQ)
                yield seq, {name: _to_producer_value(value) for name, value in row.items() if value is not None}


def _to_producer_value(value: Any) -> Any:
    return format_timestamp(value) if isinstance(value, datetime) else value


class PartsFile:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._days: set[str] = set()
        db.execute(
            "CREATE TABLE parts (day TEXT, session TEXT, name TEXT, text TEXT, PRIMARY KEY (day, session, name))"
            " WITHOUT ROWID"
        )

    def add(self, session: str, day: str, parts: Mapping[str, str]) -> None:
        self._db.executemany(
            "INSERT OR IGNORE INTO parts VALUES (?, ?, ?, ?)",
            [(day, session, name, text) for name, text in parts.items()],
        )
        if day not in self._days:
            self._days.add(day)
            # An exchange that spans midnight may follow exchanges of the next day: keep two days.
            for old in sorted(self._days)[:-2]:
                self._db.execute("DELETE FROM parts WHERE day = ?", (old,))
                self._days.remove(old)

    def lookup(self, session: str, day: str) -> PartLookup:
        def lookup(name: str) -> str | None:
            query = "SELECT text FROM parts WHERE day = ? AND session = ? AND name = ?"
            found = self._db.execute(query, (day, session, name)).fetchone()
            return found[0] if found else None

        return lookup


@contextmanager
def _open_parts_file(home: Home) -> Iterator[PartsFile]:
    parent = home.engine / "tmp"
    durable_files.make_dir(parent)
    scratch = ScratchFolder.create(parent)
    try:
        with closing(sqlite3.connect(scratch.path / "parts.db", isolation_level=None)) as db:
            for pragma in ("journal_mode=OFF", "synchronous=OFF", "temp_store=MEMORY", f"cache_size=-{_CACHE_KIB}"):
                db.execute(f"PRAGMA {pragma}").close()
            # One transaction that is never committed: the file is not read after this run.
            db.execute("BEGIN")
            yield PartsFile(db)
    finally:
        scratch.remove()
