"""Reprojection: project the lake's raw exchanges again with the current decoders, and add the rows that the lake lacks.

Exchanges are read in the order in which they were stored, across all sources. This is the order in which they ended,
and the one that decoders need: a request is read after those whose history it repeats, even if a client's session has
two sources. Every exchange is read, including those before the window: their history is then known, and a request in
the window gives only its new messages. The window therefore selects rows, but never changes their ids.

Runs keep no state. If a run is killed, the next flush commits its rows from the spool, and the next run finds them by
their ids.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import tee
from typing import Any

from hypaware import faults
from hypaware.clients.reader import TimeWindow
from hypaware.config import Config
from hypaware.engine.jobs import JobContext
from hypaware.engine.session import ScratchFolder
from hypaware.gateway.projection.conversation import ConversationCache
from hypaware.gateway.projection.projector import Projection
from hypaware.gateway.raw_exchanges import PartLookup, reproject_exchanges
from hypaware.home import Home, durable_files
from hypaware.home.session_context import find_session_columns
from hypaware.iceberg import metadata
from hypaware.lake import health, tombstones
from hypaware.lake.flush import flush_datasets
from hypaware.lake.key_lookup import ExistingKeys
from hypaware.lake.read import LakeRowReader
from hypaware.model import canonical
from hypaware.model.columns import format_timestamp
from hypaware.model.datasets import GATEWAY, SEQ, Row, RowRejected, coerce_row, hash_row_key
from hypaware.model.privacy_class import PrivacyClass
from hypaware.model.row_counts import RowCounts
from hypaware.model.schemas import AI_GATEWAY_EXCHANGES, AI_GATEWAY_MESSAGES
from hypaware.privacy.policy import PrivacyPolicy
from hypaware.spool.writer import Spool
from hypaware.state import flushes
from hypaware.state.home_opener import OpenHome, open_home
from hypaware.state.location import has_state

_before_append = faults.crash_point(
    "reproject.append.before-append", "rows are projected from raw exchanges, none is stored"
)
_before_flush = faults.crash_point("reproject.flush.before-flush", "all rows are in the spool, none is in the lake")
_after_append = faults.crash_point(
    "reproject.append.after-append", "some rows are in the spool, others are not projected yet"
)
_CACHE_KIB = 16 << 10
_PAGE_ROWS = 2_000
_ROWS_AT_ONCE = 64
BATCH_ROWS = 5_000


@dataclass
class ReprojectionReport:
    dry_run: bool
    exchanges: int = 0
    """Exchanges of this gateway, on this machine, in the window."""
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


def run_reprojection(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Run the job `reproject`. args: `since`, `until` (canonical UTC text, or None)."""
    names = (AI_GATEWAY_EXCHANGES.name, AI_GATEWAY_MESSAGES.name)
    if due := [name for name in names if health.has_pending_rows(context.home, [name])]:
        flush_datasets(context, due)
    report = ReprojectionReport(dry_run=False)

    def progress(number: int, total: int) -> None:
        context.check_cancelled()
        if number % 100 == 0:
            context.progress("reading raw exchanges", number, total, unit="exchanges", rows=report.rows_projected)

    opened = open_home(context.home)
    window = TimeWindow(args.get("since"), args.get("until"))
    with closing(opened.store):
        added = append_missing(opened, context.config, window, report, progress)
    if added:
        _before_flush()
        (flushed,) = flush_datasets(context, [AI_GATEWAY_MESSAGES.name])
        report.add_flush(added, flushed.rows)
    return report.as_json()


def append_missing(
    opened: OpenHome,
    config: Config,
    window: TimeWindow,
    report: ReprojectionReport,
    progress: Callable[[int, int], None],
) -> int:
    """Return the number of appended rows. The spool must have been flushed before, or its rows count as missing.

    The flush drops the few duplicates within a run.
    """
    added = 0
    with Spool(opened.home) as spool:
        for batch in project_batches(opened, config, window, report, progress):
            keyed = _with_keys(batch, opened)
            # Other jobs flush and compact the lake during the run, so its current keys are read each time.
            existing = ExistingKeys(opened.home, AI_GATEWAY_MESSAGES, opened.gateway_id)
            present = existing.committed({key for _, key in keyed if key})
            missing = [row for row, key in keyed if key not in present]
            report.rows.duplicate += len(batch) - len(missing)
            if missing:
                _before_append()
                added += spool.append_coerced(AI_GATEWAY_MESSAGES.name, missing)
                _after_append()
    return added


def preview_reprojection(
    home: Home, config: Config, window: TimeWindow, progress: Callable[[str, int, int], None]
) -> dict[str, Any]:
    """Count the rows that a run would add, in this process, without Spark or changes.

    Only a flush can match a live row with its native row, so such rows count as written here.
    """
    report = ReprojectionReport(dry_run=True)
    if not has_state(home) or metadata.find_table(home, AI_GATEWAY_EXCHANGES.name) is None:
        return report.as_json()
    health.check_tables(home)
    opened, recorded = open_home(home), tombstones.read_tombstones(home)
    is_purged = recorded.purge_filter.predicate(AI_GATEWAY_MESSAGES)
    existing = ExistingKeys(home, AI_GATEWAY_MESSAGES, opened.gateway_id)
    with closing(opened.store):
        for batch in project_batches(opened, config, window, report, partial(progress, "reading")):
            keyed = _with_keys([row for row in batch if is_purged is None or not is_purged(row)], opened)
            purged_keys = recorded.find({key for _, key in keyed if key is not None})
            keys = [key for _, key in keyed if key not in purged_keys]
            duplicates = existing.duplicates([(key, number) for number, key in enumerate(keys) if key is not None])
            report.rows.purged += len(batch) - len(keys)
            report.rows.duplicate += len(duplicates)
            report.rows.written += len(keys) - len(duplicates)
    return report.as_json()


def _with_keys(rows: list[Row], opened: OpenHome) -> list[tuple[Row, bytes | None]]:
    return [(row, hash_row_key(AI_GATEWAY_MESSAGES, row, opened.gateway_id)) for row in rows]


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
        return find_session_columns(home.root, session)

    def read_own_exchanges() -> Iterator[Row]:
        for row in _read_exchanges(opened):
            if row[GATEWAY] == opened.gateway_of_rows:
                yield row
            elif window.contains(row["ts_start"]):
                report.skipped["another_gateway"] += 1

    unknown = PrivacyClass.parse(config.privacy.unknown_folder)
    privacy = PrivacyPolicy(home, config.privacy.folders, unknown, find_cwd=lambda session: facts(session).get("cwd"))
    first_day = metadata.read_retention_start(home, AI_GATEWAY_MESSAGES.name)
    entry = metadata.find_table(home, AI_GATEWAY_EXCHANGES.name)
    files = metadata.iter_cached_files(metadata.read_metadata(entry.metadata)) if entry else ()
    total = sum(file.rows for file in files)
    conversations, batch = ConversationCache(), list[Row]()
    exchanges, copies = tee(read_own_exchanges())
    with _open_parts_file(home) as parts:
        projections = reproject_exchanges(copies, facts=facts, conversations=conversations, parts=parts)
        for number, (exchange, projection) in enumerate(zip(exchanges, projections, strict=True)):
            wanted = window.contains(exchange["ts_start"])
            report.exchanges += wanted
            # The current privacy rules apply to the session and its folder.
            session = projection.session_id or exchange.get("session_id")
            cwd = next((row["cwd"] for row in projection.rows if row.get("cwd")), None)
            if privacy.class_of(cwd, session) is PrivacyClass.IGNORE:
                conversations.rollback(projection.changes)
                report.skipped["ignored"] += wanted
            elif wanted:
                batch += _keep_rows(exchange, projection, opened.gateway_of_rows, first_day, report)
            progress(number, total)
            if len(batch) >= BATCH_ROWS:
                yield batch
                batch = []
    if batch:
        yield batch


def _keep_rows(
    exchange: Row, projection: Projection, gateway_id: str, first_day: str | None, report: ReprojectionReport
) -> list[Row]:
    """Return the rows of the exchange. Rows older than `first_day`, the first that retention keeps, stay out."""
    report.skipped += projection.skipped
    if session := projection.session_id or exchange.get("session_id"):
        report.sessions.add(session)
    changes = projection.changes
    # The first exchanges of the conversation may no longer be stored. The history that the request repeats was recorded
    # at the time, under the ids that it gets now; or it was skipped, because it belongs to the conversation that this
    # one was forked from. It is unknown which.
    lacks_beginning = bool(exchange.get("decoded")) and changes is not None and changes.is_new and not changes.is_fork
    kept = []
    for row in projection.rows:
        if lacks_beginning and canonical.loads(row["attributes"])["gateway"].get("time_source") == "request":
            report.skipped["earlier_history"] += 1
            continue
        report.rows_projected += 1
        try:
            stored = coerce_row(AI_GATEWAY_MESSAGES, row, gateway_id)
        except RowRejected:
            report.rows.rejected += 1
            continue
        if first_day is not None and stored["date"] < first_day:
            report.skipped["before_retention"] += 1
        else:
            kept.append(stored)
    return kept


def _read_exchanges(opened: OpenHome) -> Iterator[Row]:
    """Yield the exchanges that are recorded now, in producer form. Later ones are left to the next run."""
    name = AI_GATEWAY_EXCHANGES.name
    with opened.store.reading() as connection:
        recorded = flushes.load_high_water(connection, name).get(name, {})
    sources = [_read_source(opened.home, source, last) for source, last in sorted(recorded.items())]
    for _, row in heapq.merge(*sources, key=lambda found: found[0]):
        yield row


def _read_source(home: Home, source: str, last: int) -> Iterator[tuple[int, Row]]:
    after = 0
    while after < last:
        found = LakeRowReader(home).page(AI_GATEWAY_EXCHANGES.name, source, after, last, _PAGE_ROWS)
        after = found.reached
        for batch in found.rows.to_batches(max_chunksize=_ROWS_AT_ONCE):
            for row in batch.to_pylist():
                seq = row.pop(SEQ)
                texts = {name: format_timestamp(value) for name, value in row.items() if isinstance(value, datetime)}
                yield seq, {name: value for name, value in (row | texts).items() if value is not None}


class PartsFile:
    """Parts of request bodies by session and day, on disk, because a day of work may not fit into memory."""

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
    """Open a temporary file under `engine/tmp`. If the run is killed, the next engine removes it."""
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
