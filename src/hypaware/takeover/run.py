"""Takeover of a cache (job `import-cache`): every row of an installed dataset, once, and the watermarks.

The cache is only read. Rows in this home's own spool are committed first, so that the key index knows them. Everything
that can be refused is refused before anything is written. A dataset is one flush and one commit, whatever its size:

    survey · watermarks · reserve · build · record pending watermarks · commit · secure · record

A process killed before the commit leaves a burnt range and nothing else. After a kill behind the commit, the next
engine records rows, checkpoints and watermarks together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hypaware import faults, telemetry
from hypaware.config import Config
from hypaware.engine.jobs import JobContext
from hypaware.export.stream_locks import lock_streams
from hypaware.iceberg import metadata
from hypaware.lake import commit, health
from hypaware.lake.build import BuildSettings
from hypaware.lake.flush import flush_datasets
from hypaware.lake.prepare import PreparedFlush, plan_build, prepare_flush
from hypaware.lake.table import LakeBackend, OpenTable, commit_lock
from hypaware.model import datasets
from hypaware.model.datasets import Dataset
from hypaware.spool.segments import SegmentUnreadable
from hypaware.state import flushes, streams
from hypaware.state.flushes import Flush, SourceCheckpoint
from hypaware.state.home_opener import OpenHome, open_home
from hypaware.state.streams import PendingWatermark, StreamKey
from hypaware.takeover import watermarks
from hypaware.takeover.cache import PROVIDER, CacheSurvey
from hypaware.takeover.plan import DatasetPlan, TakeoverRequest, plan_takeover
from hypaware.takeover.report import DatasetTakeoverReport, PieceReport, SourceTally, TakeoverReport
from hypaware.takeover.rows import RowNumbering, TakeoverPiece, TakeoverTask, TakeoverTerms, build_pieces, number_rows
from hypaware.takeover.table import CacheDamaged
from hypaware.takeover.watermarks import StreamPosition

_before_pend = faults.crash_point(
    "takeover.pend.before-commit", "the rows of a takeover are built, nothing else is recorded"
)
_after_pend = faults.crash_point(
    "takeover.pend.after-commit", "the watermarks of a takeover are recorded, no row is committed"
)
_TASK_BYTES = 16 << 20


def import_cache(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Run the job. args: `dir`, `sinks` (original → ours), `same`, `other`, `state_dirs`, `skip_unreadable`."""
    # Imported here: the crash points of this module are listed without Spark.
    from hypaware.lake.spark_table import SparkLake, trim_snapshots

    opened = open_home(context.home)
    if opened.rebuilt:
        context.note(opened.rebuilt)
    with closing(opened.store):
        report = take_over_cache(_takeover_context(context, opened), TakeoverRequest.from_args(args))
        for each in report.datasets:
            if each.flush_id is not None:
                lake = SparkLake(context.home, context.spark, opened.identity, context.check_cancelled)
                with commit_lock(each.dataset, context.check_cancelled):
                    trim_snapshots(context, lake.table(datasets.get(each.dataset)), each.dataset)
    return report.as_json()


def _takeover_context(context: JobContext, opened: OpenHome) -> TakeoverContext:
    from hypaware.lake.spark_table import SparkLake

    def flush(dataset: Dataset) -> None:
        if health.has_pending_rows(context.home, [dataset.name]):
            try:
                flush_datasets(context, [dataset.name])
            except SegmentUnreadable as error:
                context.note(error.message)

    def lake(dataset: Dataset, survey: CacheSurvey) -> LakeBackend:
        def watch(done: int, files: int, rows: int) -> None:
            total = len(survey.due) + len(survey.spools)
            message = f"importing {dataset.name}"
            context.progress(message, done, survey.bytes, unit="bytes", files=files, files_total=total, rows=rows)

        spark_lake = SparkLake(context.home, context.spark, opened.identity, context.check_cancelled, watch)
        spark_lake.warm_up()
        return spark_lake

    def report_progress(dataset: Dataset, number: int, total: int) -> None:
        context.check_cancelled()
        if number % 100 == 0:
            context.progress(f"reading footers of {dataset.name}", number, total, unit="files")

    return TakeoverContext(opened, context.config, flush, lake, report_progress, context.check_cancelled)


@dataclass(frozen=True)
class TakeoverContext:
    """The callbacks and resources of a takeover."""

    opened: OpenHome
    config: Config
    flush: Callable[[Dataset], None]
    """Commits the rows in the home's own spool."""
    lake: Callable[[Dataset, CacheSurvey], LakeBackend]
    on_progress: Callable[[Dataset, int, int], None]
    """(dataset, files read, files in all); may raise Cancelled."""
    check_cancelled: Callable[[], None]


def take_over_cache(context: TakeoverContext, request: TakeoverRequest) -> TakeoverReport:
    opened = context.opened

    def load_checkpoints(dataset: str) -> Mapping[str, SourceCheckpoint]:
        with opened.store.reading() as connection:
            return flushes.load_checkpoints(connection, PROVIDER, dataset)

    report, plans = plan_takeover(
        request, opened.home, context.config, opened.identity, load_checkpoints, context.on_progress, dry_run=False
    )
    for each in plans:
        report.datasets.append(_take_dataset(context, request, each, report))
    return report


def _take_dataset(
    context: TakeoverContext, request: TakeoverRequest, plan: DatasetPlan, report: TakeoverReport
) -> DatasetTakeoverReport:
    dataset, survey, claims = plan.dataset, plan.survey, plan.claims
    outcome = DatasetTakeoverReport.start(survey)
    if not (survey.due or survey.spools or claims):
        # Without new rows Spark is not started.
        return outcome
    home, store = context.opened.home, context.opened.store
    context.flush(dataset)
    terms = TakeoverTerms(context.opened.gateway_id, metadata.read_retention_start(home, dataset.name))
    lake = context.lake(dataset, survey)
    keys = {StreamKey(each.sink, dataset.name, source) for each in claims for source in survey.sources}
    with (
        lock_streams(home, keys),
        commit_lock(dataset.name, context.check_cancelled),
        commit.open_table(home, store, lake, dataset) as target,
    ):
        new_watermarks = _import_dataset(target, plan, terms, outcome, skip_unreadable=request.skip_unreadable)
    for position, seq in new_watermarks.items():
        stream = (position.key.sink, dataset.name, position.key.source)
        for each in report.watermarks:
            if each.honoured and (each.to, each.dataset, each.source) == stream:
                each.new = seq
    for reason in outcome.unreadable:
        report.add_not_taken(f"{dataset.name}, in part", reason)
    return outcome


def _import_dataset(
    target: OpenTable, plan: DatasetPlan, terms: TakeoverTerms, outcome: DatasetTakeoverReport, *, skip_unreadable: bool
) -> dict[StreamPosition, int]:
    """Import the dataset under the table's lock; return the watermark of each continued stream."""
    survey, claims, name = plan.survey, plan.claims, plan.dataset.name
    # Files with a watermark first: their rows without a sequence were delivered, those of other files were not.
    claimed = {partition for claim in claims for partition in claim.through}
    due = sorted(survey.due, key=lambda file: file.partition.name not in claimed)
    numbering = number_rows(due, survey.spools)
    positions = watermarks.resolve_positions(claims, survey, numbering, target)
    if not survey.due and not survey.spools and not any(each.advances for each in positions):
        return {each: each.seq for each in positions}
    with telemetry.span("cache.flush", component="takeover", operation="import_cache", hyp_dataset=name) as span:
        flush = commit.reserve_import(target, numbering.size)
        with commit.discard_on_error(target, flush):
            pieces = build_pieces(numbering, flush.after, terms)
            settings = plan_build(target, flush, target.table.gateway_id)
            built = target.lake.run(list(_build_tasks(pieces, settings)))
            prepared = prepare_flush(target, flush, settings, built)
            for report in prepared.reports:
                if report.error is not None and not skip_unreadable:
                    raise CacheDamaged(report.error)
            new_watermarks = _record_pending(target, flush, prepared, positions)
        checkpoints = list(_checkpoints(numbering, name, prepared.reports))
        result = commit.commit_flush(target, flush, prepared, checkpoints)
        span.set(row_count=result.rows.written, rows_rejected=result.rows.rejected)
    outcome.add(prepared.reports)
    for file in prepared.files:
        outcome.tallies.setdefault(file.source, SourceTally()).written += file.rows
    outcome.seq_after, outcome.seq_last, outcome.flush_id = flush.after, flush.last, flush.id
    if prepared.purged:
        _count_purged(outcome, prepared, numbering, flush.after)
    return new_watermarks


def _record_pending(
    target: OpenTable, flush: Flush, prepared: PreparedFlush, positions: Sequence[StreamPosition]
) -> dict[StreamPosition, int]:
    high_water = prepared.outcome().high_water
    _before_pend()
    with target.store.transaction() as connection:
        committed = flushes.load_high_water(connection, flush.dataset).get(flush.dataset, {})
        new_watermarks = {
            each: each.watermark(flush.after, max(high_water.get(source, 0), committed.get(source, 0)))
            for each in positions
            for source in (each.key.source,)
        }
        wanted = [
            PendingWatermark(each.key, each.address, seq) for each, seq in new_watermarks.items() if each.advances
        ]
        streams.add_pending_watermarks(connection, flush.id, wanted)
    _after_pend()
    return new_watermarks


def _build_tasks(pieces: Sequence[TakeoverPiece], settings: BuildSettings) -> Iterator[TakeoverTask]:
    """Group neighbouring pieces into tasks, so that each output file holds few days and a short range of sequences."""
    batch: list[TakeoverPiece] = []
    for ordinal, piece in enumerate(pieces, 1):
        batch.append(piece)
        size = sum(each.size for each in batch)
        if size >= _TASK_BYTES or ordinal == len(pieces):
            yield TakeoverTask(settings, tuple(batch))
            batch = []


def _checkpoints(numbering: RowNumbering, dataset: str, reports: Sequence[PieceReport]) -> Iterator[SourceCheckpoint]:
    """Yield the checkpoint of each file that was read."""
    readable = {report.mark: report for report in reports if report.error is None}
    read = [
        (file.mark, file.data_file.bytes, file.data_file.bytes, "")
        for file, positions in numbering.files
        if file.mark in readable or not len(positions)
    ]
    read += [
        (spool.name, spool.size, report.consumed, report.taken_hash)
        for spool, _ in numbering.spools
        if (report := readable.get(spool.name)) is not None
    ]
    for path, size, end, digest in read:
        yield SourceCheckpoint(
            PROVIDER, dataset, path, 0, size, 0, end, digest, held=(), quiet=True, left_out=(), since=None, until=None
        )


def _count_purged(outcome: DatasetTakeoverReport, prepared: PreparedFlush, numbering: RowNumbering, after: int) -> None:
    """Count purged rows by the source of their file; in a spool, by the source of most of its rows."""
    purged = pa.array(sorted(prepared.purged), pa.int64())
    for file, positions in numbering.files:
        count = pc.sum(pc.is_in(pc.add(positions, after), value_set=purged)).as_py()
        if count:
            outcome.tallies[min(file.sources)].purged += count
    tallies = {report.mark: report.tallies for report in prepared.reports}
    bounds = [*(first for _, first in numbering.spools), numbering.size + 1]
    for (spool, first), end in zip(numbering.spools, bounds[1:], strict=True):
        count = sum(after + first <= seq < after + end for seq in prepared.purged)
        if count:
            tallies_of_file = tallies[spool.name]
            outcome.tallies[max(tallies_of_file, key=lambda source: tallies_of_file[source].found)].purged += count
