"""Flush: commit spooled segments to the lake, as an engine job or before another job reads the lake.

A flush may be killed at any point; it is finished or undone later.

@ref flush#reserve
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from hypaware import telemetry
from hypaware.config import FlushConfig
from hypaware.config.shared_lake import find_shared_lake
from hypaware.engine.jobs import JobContext, import_lock
from hypaware.errors import Cancelled, Retryable
from hypaware.home import Home, durable_files, session_context
from hypaware.home.storage import ObjectPath
from hypaware.lake import commit
from hypaware.lake.build import BuildSettings, SegmentSlice, SegmentTask
from hypaware.lake.poison import MAX_SHARED_ATTEMPTS, PoisonRows, isolate_poison, require_built
from hypaware.lake.prepare import plan_build, prepare_flush
from hypaware.lake.table import LakeBackend, OpenTable, commit_lock
from hypaware.model import datasets
from hypaware.model.datasets import Dataset
from hypaware.model.row_counts import RowCounts
from hypaware.spool import reader, segments
from hypaware.spool.received import open_received
from hypaware.spool.segments import Segment, SegmentUnreadable
from hypaware.state import flushes
from hypaware.state.flushes import Flush
from hypaware.state.home_opener import open_home
from hypaware.state.store import StateStore

_MAX_SEGMENTS = 200
_WAIT_FOR_PRODUCERS = 5.0
_SLICE_BYTES = 8 << 20


def run_flush(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Run the job `flush`. args: `dataset` (default: all that have rows), `patient` (skip deferred rows).

    `deferral` is how many seconds rows are deferred, if it is not the default.
    """
    wanted = [args["dataset"]] if args.get("dataset") else list_flushable_datasets(context.home)
    deferral = float(args.get("deferral") or segments.DEFERRAL_SECONDS)
    reports = flush_datasets(context, wanted, skip_deferred=bool(args.get("patient")), deferral=deferral)
    return {"datasets": [report.as_json() for report in reports]}


def list_flushable_datasets(home: Home) -> list[str]:
    """Return the datasets that have a spool, or batches that receivers of a shared lake have accepted."""
    found = segments.list_spooled_datasets(home)
    if find_shared_lake(home) is None:
        return found
    with closing(open_home(home).store) as store:
        received = open_received(home, store)
        return sorted({*found, *(received.list_datasets() if received else ())})


def flush_datasets(
    context: JobContext,
    names: list[str],
    *,
    skip_deferred: bool = False,
    deferral: float = segments.DEFERRAL_SECONDS,
) -> list[FlushReport]:
    """Flush each dataset. An error of one does not stop the others; the first error is raised at the end."""
    # Not at the top: a lake without Spark uses this module too.
    with import_lock:
        from hypaware.lake.spark_table import SparkLake, trim_snapshots

    reports: list[FlushReport] = []
    errors: list[Exception] = []
    spark, opened = context.spark, open_home(context.home)
    if opened.rebuilt:
        context.note(opened.rebuilt)
    with closing(opened.store):
        lake = SparkLake(context.home, spark, opened.identity, context.check_cancelled)
        progress = partial(context.progress, unit="rows")
        flusher = Flusher(context.home, opened.store, lake, context.config.flush, progress, context.check_cancelled)
        for name in list_installed(context, names):
            try:
                with commit_lock(name, context.check_cancelled):
                    report = flusher.flush(datasets.get(name), skip_deferred=skip_deferred, deferral=deferral)
                    if report.rows.written:
                        trim_snapshots(context, lake.table(datasets.get(name)), name)
                for active in report.still_active:
                    context.note(f"{name}: a running process has not sealed {active}; its rows remain in the spool")
                reports.append(report)
            except Cancelled:
                raise
            except Exception as error:
                # Damage shows in many ways; it must not keep the rows of other datasets in the spool.
                errors.append(error)
    if errors:
        raise errors[0]
    return reports


def list_installed(context: JobContext, names: list[str]) -> list[str]:
    """Return the datasets that are installed. Rows of the others stay in the spool until their plugin returns."""
    known = datasets.list_names()
    for name in names:
        if name not in known:
            context.note(f"{name}: this dataset is not installed; its rows remain in {context.home.spool / name}")
    return [name for name in names if name in known]


@dataclass
class FlushReport:
    dataset: str
    segments: int = 0
    rows: RowCounts = field(default_factory=RowCounts)
    seq_after: int | None = None
    seq_last: int | None = None
    flush_id: str | None = None
    still_active: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset,
            "segments": self.segments,
            **self.rows.as_json(),
            "seq_after": self.seq_after,
            "seq_last": self.seq_last,
            "flush_id": self.flush_id,
        }


def _ignore(*_: object) -> None:
    return None


@dataclass(frozen=True)
class Flusher:
    home: Home
    store: StateStore
    lake: LakeBackend
    limits: FlushConfig = field(default_factory=FlushConfig)
    """The maximum size of one flush; a larger spool takes several."""
    progress: Callable[[str, int, int], None] = _ignore
    check_cancelled: Callable[[], None] = _ignore

    def flush(
        self,
        dataset: Dataset,
        wait: float = _WAIT_FOR_PRODUCERS,
        *,
        skip_deferred: bool = False,
        deferral: float = segments.DEFERRAL_SECONDS,
    ) -> FlushReport:
        """Commit all rows of a dataset that are in the spool now, except for deferred ones if `skip_deferred`.

        Raises SegmentUnreadable, after the other segments are committed, if some cannot be read.
        """
        report = FlushReport(dataset.name)
        unreadable: dict[Path, OSError] = {}
        folder = segments.spool_folder(self.home, dataset.name)
        try:
            folder.create()
            try:
                report.still_active = [path.name for path in segments.wait_until_sealed(folder, wait)]
            except SegmentUnreadable as error:
                unreadable.update(error.problems)
            with commit.open_table(self.home, self.store, self.lake, dataset) as target:
                if received := open_received(self.home, self.store):
                    missing = received.find_missing(dataset.name, now=time.time())
                    unreadable.update({path: FileNotFoundError(errno.ENOENT, "no such object") for path in missing})
                # Only segments that exist now: constant producers must not keep this flush from ending.
                now = time.time()
                due = {
                    segment.name: segment.rows
                    for segment in self._uncommitted(dataset.name)
                    if not (skip_deferred and segment.is_deferred(now, deferral))
                }
                total = sum(due.values())
                while chosen := self._choose(
                    [
                        each
                        for each in self._uncommitted(dataset.name)
                        if each.name in due and each.path not in unreadable
                    ],
                    unreadable,
                ):
                    self.check_cancelled()
                    self._flush_once(target, chosen, report)
                    self.progress(f"committing {dataset.name}", report.rows.total, max(total, report.rows.total))
        except OSError as error:
            message = f"{dataset.name}: {error}; the rows remain in the spool and the next flush retries them"
            raise Retryable(message, kind="flush_failed") from error
        if unreadable:
            raise SegmentUnreadable(dataset.name, unreadable)
        return report

    def _flush_once(self, target: OpenTable, chosen: list[Segment], report: FlushReport) -> None:
        dataset = target.dataset.name
        with telemetry.span("cache.flush", component="lake", operation="flush", hyp_dataset=dataset) as span:
            started = time.monotonic()
            try:
                with commit.reserve_segments(target, [(segment.name, segment.rows) for segment in chosen]) as flush:
                    settings = plan_build(target, flush, target.table.gateway_id)
                    tasks = _make_tasks(self.home, flush, settings, {each.name: each.path for each in chosen})
                    if any(segment.attempts > MAX_SHARED_ATTEMPTS for segment in flush.segments):
                        # A suspected segment is flushed alone.
                        built = isolate_poison(self.home, self.lake, flush, tasks)
                    else:
                        built = require_built(dataset, tasks, self.lake.run(tasks))
                    prepared = prepare_flush(target, flush, settings, built)
            except PoisonRows:
                # The segments stay in the spool. After the second failure, the next try isolates the poison rows.
                span.status("degraded")
                return
            outcome = commit.commit_flush(target, flush, prepared)
            report.segments += len(flush.segments)
            report.rows.add(outcome.rows)
            report.seq_after = flush.after if report.seq_after is None else report.seq_after
            report.seq_last, report.flush_id = flush.last, flush.id
            telemetry.record("hyp_flush_seconds", time.monotonic() - started, hyp_dataset=dataset)
            telemetry.gauge("hyp_spool_bytes", reader.summarize_spool(self.home, dataset).bytes, hyp_dataset=dataset)
            span.set(row_count=outcome.rows.written, rows_rejected=outcome.rows.rejected)

    def _uncommitted(self, dataset: str) -> list[Segment]:
        """Return the uncommitted sealed segments, oldest first. Remove the files and objects of committed ones."""
        sealed = segments.list_sealed_segments(segments.spool_folder(self.home, dataset))
        with self.store.reading() as connection:
            committed = flushes.committed_segments(connection, dataset, [segment.name for segment in sealed])
        for segment in sealed:
            if segment.name in committed:
                durable_files.remove_durably(segment.path)
        uncommitted = [segment for segment in sealed if segment.name not in committed]
        if received := open_received(self.home, self.store):
            received.remove_committed(dataset)
            uncommitted = sorted([*uncommitted, *received.list_segments(dataset)], key=lambda each: each.name)
        return uncommitted

    def _choose(self, waiting: list[Segment], unreadable: dict[Path, OSError]) -> list[Segment]:
        """Return the oldest segments that fit into one flush. One that failed twice comes last, alone.

        Those that cannot be read are left out and added to `unreadable`.
        """
        if not waiting:
            return []
        with self.store.reading() as connection:
            attempts = flushes.segment_attempts(connection, waiting[0].dataset)
        trusted = [segment for segment in waiting if attempts.get(segment.name, 0) < MAX_SHARED_ATTEMPTS]
        chosen: list[Segment] = []
        rows = size = 0
        for segment in _readable(trusted, unreadable):
            rows, size = rows + segment.rows, size + segment.bytes
            if chosen and (rows > self.limits.max_rows or size > self.limits.max_bytes):
                break
            chosen.append(segment)
            if len(chosen) == _MAX_SEGMENTS:
                break
        if chosen:
            return chosen
        # The one that failed least: if the engine dies of another one again and again, this one is not held up.
        suspects = sorted(waiting, key=lambda segment: attempts.get(segment.name, 0))[len(trusted) :]
        return list(islice(_readable(suspects, unreadable), 1))


def _readable(chosen: Iterable[Segment], unreadable: dict[Path, OSError]) -> Iterator[Segment]:
    """Yield each segment with its actual row count: sequences are reserved for rows, not for the count in its name.

    An object is whole: the receiver that created it had counted its rows.
    """
    for segment in chosen:
        if isinstance(segment.path, ObjectPath):
            yield segment
            continue
        try:
            yield replace(segment, rows=segments.count_lines(segment.path))
        except OSError as error:
            unreadable[segment.path] = error


def _make_tasks(home: Home, flush: Flush, settings: BuildSettings, paths: Mapping[str, Path]) -> list[SegmentTask]:
    """Split segments into tasks of about equal bytes; large segments are divided, small ones share a task."""
    groups: list[list[SegmentSlice]] = [[]]
    filled = 0
    for segment in flush.segments:
        path = paths[segment.name]
        size = path.stat().st_size
        slices = max(1, min(segment.rows, -(-size // _SLICE_BYTES)))
        for start, stop in pairwise(segment.rows * part // slices for part in range(slices + 1)):
            if filled >= _SLICE_BYTES:
                groups.append([])
                filled = 0
            groups[-1].append(SegmentSlice(segment.name, path, segment.base, start, stop))
            filled += size // slices
    has_deferrable = any(segments.is_deferrable(segment.name) for segment in flush.segments)
    # Hooks often note these facts after the first exchange, so deferred rows get them when they are built.
    facts = session_context.all_session_columns(home.root) if has_deferrable else {}
    return [SegmentTask(settings, tuple(group), facts) for group in groups if group]
