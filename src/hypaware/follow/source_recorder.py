"""Record the new part of one source: pin it, append its rows to the spool, then store its checkpoint.

The checkpoint is that of the import, so an import finds nothing left to do, and the other way round. Both hold the
lock on the sources while they read and change it. The steps, each durable before the next:

1. the pin, next to the old checkpoint: what is going to be read;
2. the rows, in the spool;
3. the new checkpoint, without the pin.

A process that dies after step 1 has recorded some of the rows or none. Whoever reads the source next reads exactly the
pinned part again and makes the same rows, which the flush drops by key.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hypaware import faults
from hypaware.backfill.request import ImportRequest
from hypaware.backfill.source_rows import ImportContext, SourcePiece, SourceReport
from hypaware.backfill.survey import clip_to_retention, encode_path, pin_source
from hypaware.clients.client import Source
from hypaware.clients.reader import SourceSnapshot
from hypaware.errors import HypError
from hypaware.home.locks import locked
from hypaware.iceberg import metadata
from hypaware.lake import tombstones
from hypaware.model import datasets
from hypaware.model.datasets import Dataset, Row, hash_row_key
from hypaware.spool.writer import Spool
from hypaware.state import flushes, titles
from hypaware.state.flushes import SourceCheckpoint, SourcePin
from hypaware.state.store import StateStore

if TYPE_CHECKING:
    from hypaware.lake.build import Reject

MAX_NEW_BYTES = 32 << 20
"""A larger new part is left to the import, which reads it with all cores."""
_ROWS_PER_APPEND = 200
_after_pin = faults.crash_point("follow.pin.after-commit", "the part of a source that will be recorded is stored")
_after_append = faults.crash_point("follow.append.after-fsync", "rows of a source are in the spool, others are not yet")
_before_checkpoint = faults.crash_point(
    "follow.checkpoint.before-commit", "all rows of a source are in the spool, its checkpoint is the old one"
)
_after_checkpoint = faults.crash_point("follow.checkpoint.after-commit", "rows and checkpoint of a source are durable")


class SourceBusy(Exception):
    """Another process is reading the sources, or an interrupted import has to be finished first."""


class LeftToImport(Exception):
    """The source is recorded by the next import: it has a large new part, or rows that are rejected."""


@dataclass(frozen=True)
class RecordedSource:
    rows: int = 0
    held: frozenset[str] = frozenset()
    """Messages that are held back now."""


@dataclass
class _SourceResult:
    rejects: list[Reject] = field(default_factory=list)
    reports: list[Any] = field(default_factory=list)
    withdrawn: list[range] = field(default_factory=list)


@dataclass(frozen=True)
class SourceRecorder:
    """Records the sources of one provider and dataset."""

    spool: Spool
    store: StateStore
    request: ImportRequest
    context: ImportContext
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    @property
    def dataset(self) -> Dataset:
        return datasets.get(self.context.dataset)

    def record(self, source: Source, released: frozenset[str] = frozenset()) -> RecordedSource:
        """Record the new part of a source. `released` messages are not held back any longer.

        Raise SourceBusy or LeftToImport if it cannot be recorded now, OSError if the file cannot be read, and HypError
        if the rows or the checkpoint cannot be stored.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.spool.home.sources_lock, wait=False))
            except BlockingIOError:
                raise SourceBusy from None
            return self._record(source, released)

    def _record(self, source: Source, released: frozenset[str]) -> RecordedSource:
        path = encode_path(source.path)
        checkpoint = self._load_checkpoint(path)
        snapshot = self._pin(source.path, checkpoint, released)
        if snapshot is None:
            return RecordedSource(held=frozenset(checkpoint.held) if checkpoint else frozenset())
        if snapshot.size - snapshot.consumed > MAX_NEW_BYTES:
            raise LeftToImport(f"{path} has {snapshot.size - snapshot.consumed:,} new bytes")
        max_rows = snapshot.size if source.max_rows is None else source.max_rows
        result, rows, recorded = _SourceResult(), list[Row](), 0
        writer = _RowWriter(self, checkpoint or _empty_checkpoint(self.context, path), snapshot)
        for _, row in SourcePiece(self.context, 0, max_rows, snapshot).rows(self.dataset, result):
            rows.append(row)
            if len(rows) >= _ROWS_PER_APPEND:
                recorded += writer.append(rows)
                rows = []
        (report,) = result.reports
        if report.checkpoint is None:
            _raise_failure(report)
        if result.rejects:
            # The import keeps them, with their reasons.
            raise LeftToImport(f"{path} has rows that do not fit the dataset: {result.rejects[0].reason}")
        recorded += writer.append(rows)
        _before_checkpoint()
        with self.store.transaction() as connection:
            flushes.store_checkpoint(connection, report.checkpoint)
            is_purged = tombstones.read_tombstones(self.spool.home).purge_filter.has_session
            kept = (each for each in report.titles if each.session_id and not is_purged(each.session_id))
            titles.write_titles(connection, self.context.provider, kept)
        _after_checkpoint()
        return RecordedSource(recorded, frozenset(report.checkpoint.held))

    def _load_checkpoint(self, path: str) -> SourceCheckpoint | None:
        key = (self.context.provider, self.context.dataset, path, self.context.machine)
        with self.store.reading() as connection:
            if flushes.has_pending_checkpoint(connection, *key):
                raise SourceBusy
            found = flushes.load_checkpoint(connection, *key)
        return self.context.policy.drop_stale({path: found}).get(path) if found else None

    def _pin(self, path: Path, checkpoint: SourceCheckpoint | None, released: frozenset[str]) -> SourceSnapshot | None:
        retained_from = metadata.read_retention_start(self.spool.home, self.context.dataset)
        window = clip_to_retention(self.request.window, retained_from)
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(path)
        return pin_source(path, status, checkpoint, window, self.now(), released) if status.st_size else None


class _RowWriter:
    """Appends the rows of one source to the spool, without purged ones. Stores the pin before the first."""

    def __init__(self, recorder: SourceRecorder, checkpoint: SourceCheckpoint, snapshot: SourceSnapshot) -> None:
        self._recorder = recorder
        self._pinned = replace(checkpoint, pin=_make_pin(snapshot))
        self._is_pinned = checkpoint.pin == self._pinned.pin
        self._stones = tombstones.read_tombstones(recorder.spool.home)

    def append(self, rows: Sequence[Row]) -> int:
        """Return the number of rows that are now durable."""
        dataset, spool = self._recorder.dataset, self._recorder.spool
        kept = self._without_purged(rows, dataset, spool.gateway_id)
        if kept and not self._is_pinned:
            with self._recorder.store.transaction() as connection:
                flushes.store_checkpoint(connection, self._pinned)
            self._is_pinned = True
            _after_pin()
        spool.append_coerced(dataset.name, kept)
        if kept:
            _after_append()
        return len(kept)

    def _without_purged(self, rows: Sequence[Row], dataset: Dataset, gateway_id: str) -> Sequence[Row]:
        is_purged = self._stones.purge_filter.predicate(dataset)
        kept = [row for row in rows if not is_purged(row)] if is_purged else rows
        if not self._stones.has_parts:
            return kept
        hashes = [hash_row_key(dataset, row, gateway_id) for row in kept]
        purged = self._stones.find({each for each in hashes if each is not None})
        return [row for row, key in zip(kept, hashes, strict=True) if key not in purged]


def _make_pin(snapshot: SourceSnapshot) -> SourcePin:
    return SourcePin(snapshot.size, snapshot.mtime_ns, snapshot.quiet, tuple(sorted(snapshot.released)))


def _empty_checkpoint(context: ImportContext, path: str) -> SourceCheckpoint:
    """Return the checkpoint of a source that was never read."""
    nothing = (0, 0, 0, 0, "", (), False, (), None, None)
    return SourceCheckpoint(context.provider, context.dataset, path, *nothing, machine=context.machine)


def _raise_failure(report: SourceReport) -> NoReturn:
    if report.changed == "vanished":
        raise FileNotFoundError(report.path)
    if report.changed:
        # It is read again when its change is noticed.
        raise OSError(f"{report.path}: {report.changed}")
    raise report.fault or HypError(f"the provider failed to read a source: {report.error}", kind="provider_error")
