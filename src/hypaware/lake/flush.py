"""Flush: commit spooled segments to the lake. A flush may be killed at any point; it is finished or undone later.

    recover · reserve · build · drop duplicates · commit · fsync · record · remove segments

@ref flush#reserve
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from hypaware import durable, faults, telemetry
from hypaware.errors import Retryable
from hypaware.home import Home
from hypaware.lake import isolate, late_facts, recover
from hypaware.lake.build import BuildTask
from hypaware.lake.committer import Lake, LakeTable
from hypaware.lake.landing import Landing
from hypaware.lake.prepare import Ready, RowsAtFault, prepare
from hypaware.lake.slices import Slice
from hypaware.model.datasets import Dataset
from hypaware.spool import reader, repair, segments
from hypaware.spool.segments import Segment
from hypaware.state import flushes
from hypaware.state.flushes import Flush, Outcome
from hypaware.state.store import Store

_after_reserve = faults.point("lake.reserve.after-commit", "a sequence range is reserved, nothing is built")

_MAX_SEGMENTS = 200
_SLICE_BYTES = 8 << 20
_WAIT_FOR_PRODUCERS = 5.0


@dataclass(frozen=True)
class Limits:
    """The maximum size of one flush; a larger spool takes several."""

    max_rows: int = 100_000
    max_bytes: int = 128 << 20


@dataclass
class Report:
    dataset: str
    segments: int = 0
    rows_written: int = 0
    rows_duplicate: int = 0
    rows_rejected: int = 0
    rows_settled: int = 0
    rows_purged: int = 0
    seq_after: int | None = None
    seq_last: int | None = None
    flush_id: str | None = None
    still_active: list[str] = field(default_factory=list)

    @property
    def done(self) -> int:
        """Rows that this flush has dealt with."""
        excluded = self.rows_rejected + self.rows_purged
        return self.rows_written + self.rows_duplicate + self.rows_settled + excluded

    def add(self, flush: Flush, outcome: Outcome) -> None:
        self.segments += len(flush.segments)
        self.rows_written += outcome.rows_written
        self.rows_duplicate += outcome.rows_duplicate
        self.rows_rejected += outcome.rows_rejected
        self.rows_purged += outcome.rows_purged
        self.rows_settled += outcome.rows_settled
        self.seq_after = flush.after if self.seq_after is None else self.seq_after
        self.seq_last = flush.last
        self.flush_id = flush.id


def _quiet(*_: object) -> None:
    return None


@dataclass(frozen=True)
class Flusher:
    home: Home
    store: Store
    lake: Lake
    limits: Limits = Limits()
    progress: Callable[[str, int, int], None] = _quiet
    check_cancelled: Callable[[], None] = _quiet

    def flush(self, dataset: Dataset, wait: float = _WAIT_FOR_PRODUCERS, *, skip_deferred: bool = False) -> Report:
        """Commit all rows of a dataset that are in the spool now, except for deferred ones if `skip_deferred`."""
        try:
            return self._flush(dataset, wait, skip_deferred)
        except OSError as error:
            message = f"{dataset.name}: {error}; the rows remain in the spool and the next flush retries them"
            raise Retryable(message, kind="flush_failed") from error

    def _flush(self, dataset: Dataset, wait: float, skip_deferred: bool) -> Report:
        report = Report(dataset.name)
        folder = segments.folder(self.home, dataset.name)
        folder.create()
        unsealed = repair.wait_until_sealed(folder, wait)
        report.still_active = [path.name for path in unsealed]
        session = Landing(self.home, self.store, self.lake)
        with session.open_table(dataset) as target:
            # Only segments that exist now: constant producers must not keep this flush from ending.
            now = time.time()
            due = {
                segment.name: segment.rows
                for segment in self._waiting(dataset.name)
                if not (skip_deferred and segment.is_deferred(now))
            }
            total = sum(due.values())
            while chosen := self._choose([each for each in self._waiting(dataset.name) if each.name in due]):
                self.check_cancelled()
                self._flush_once(session, target, dataset.name, chosen, report)
                self.progress(f"committing {dataset.name}", report.done, max(total, report.done))
        return report

    def _flush_once(self, session: Landing, target: Ready, dataset: str, chosen: list[Segment], report: Report) -> None:
        with telemetry.span("cache.flush", component="lake", operation="flush", hyp_dataset=dataset) as span:
            started = time.monotonic()
            sizes = [(segment.name, segment.rows) for segment in chosen]
            with self.store.transaction() as connection:
                flush = flushes.reserve(connection, dataset, sizes, above=target.table.floor)
            _after_reserve()
            try:
                paths = {segment.name: segment.path for segment in chosen}
                prepared = prepare(self.home, self.lake, target, flush, _tasks(self.home, target.table, flush, paths))
            except RowsAtFault as error:
                # The segments stay in the spool. After the second failure, the next try isolates the poison rows.
                recover.burn(self.home, self.store, target.table, flush, blamed=error.segments)
                span.status("degraded")
                return
            except Exception:
                recover.burn(self.home, self.store, target.table, flush, blamed=())
                raise
            outcome = session.commit(target, flush, prepared)
            report.add(flush, outcome)
            telemetry.record("hyp_flush_seconds", time.monotonic() - started, hyp_dataset=dataset)
            telemetry.gauge("hyp_spool_bytes", reader.waiting(self.home, dataset).bytes, hyp_dataset=dataset)
            span.set(row_count=outcome.rows_written, rows_rejected=outcome.rows_rejected)
            telemetry.count("hyp_rows_written", outcome.rows_written, hyp_dataset=dataset)
            telemetry.count("hyp_rows_rejected", outcome.rows_rejected, hyp_dataset=dataset)

    def _waiting(self, dataset: str) -> list[Segment]:
        """Return the uncommitted sealed segments, oldest first. Remove the files of committed ones."""
        sealed = segments.sealed_segments(segments.folder(self.home, dataset))
        with self.store.reading() as connection:
            committed = flushes.committed_segments(connection, dataset, [segment.name for segment in sealed])
        for segment in sealed:
            if segment.name in committed:
                durable.remove(segment.path)
        return [segment for segment in sealed if segment.name not in committed]

    def _choose(self, waiting: list[Segment]) -> list[Segment]:
        """Return the oldest segments that fit into one flush. One that failed twice comes last, alone."""
        if not waiting:
            return []
        with self.store.reading() as connection:
            attempts = flushes.attempts_of(connection, waiting[0].dataset)
        trusted = [segment for segment in waiting if attempts.get(segment.name, 0) < isolate.PATIENCE]
        if not trusted:
            return [_counted(waiting[0])]
        chosen: list[Segment] = []
        rows = size = 0
        for segment in map(_counted, trusted[:_MAX_SEGMENTS]):
            rows, size = rows + segment.rows, size + segment.bytes
            if chosen and (rows > self.limits.max_rows or size > self.limits.max_bytes):
                break
            chosen.append(segment)
        return chosen


def _tasks(home: Home, table: LakeTable, flush: Flush, paths: dict[str, Path]) -> list[BuildTask]:
    """Split segments into tasks of about equal bytes; large segments are divided, small ones share a task."""
    groups: list[list[Slice]] = [[]]
    filled = 0
    for segment in flush.segments:
        path = paths[segment.name]
        size = path.stat().st_size
        slices = max(1, min(segment.rows, -(-size // _SLICE_BYTES)))
        for start, stop in pairwise(segment.rows * part // slices for part in range(slices + 1)):
            if filled >= _SLICE_BYTES:
                groups.append([])
                filled = 0
            groups[-1].append(Slice(segment.name, path, segment.base, start, stop))
            filled += size // slices
    field_ids = dict(table.field_ids)
    own = table.gateway_id
    facts = late_facts.read(home) if any(segments.may_wait(segment.name) for segment in flush.segments) else {}
    return [
        BuildTask(flush.dataset, tuple(group), flush.id, table.data_root, field_ids, own_gateway=own, facts=facts)
        for group in groups
        if group
    ]


def _counted(segment: Segment) -> Segment:
    """Return the segment with its actual row count: sequences are reserved for rows, not for the count in its name."""
    try:
        return replace(segment, rows=segments.count_lines(segment.path))
    except OSError:
        return segment  # the build reports it and blames only this segment
