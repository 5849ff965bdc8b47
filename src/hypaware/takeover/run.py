"""Takeover of a cache (job `import-cache`): every row of an installed dataset, once, and the watermarks.

The cache is only read. Rows in this home's own spool are committed first, so that the key index knows them. Everything
that can be refused is refused before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from hypaware.config import Config
from hypaware.engine.jobs import JobContext
from hypaware.export.stream_locks import lock_streams
from hypaware.iceberg import metadata
from hypaware.lake import commit, health, jobs
from hypaware.lake.locks import commit_lock
from hypaware.lake.spark_table import SparkLake
from hypaware.lake.table import LakeBackend
from hypaware.model import datasets
from hypaware.model.datasets import Dataset
from hypaware.state import sources
from hypaware.state.home_opener import OpenHome, open_home
from hypaware.state.sources import SourceCheckpoint
from hypaware.state.streams import StreamKey
from hypaware.takeover.cache import PROVIDER, CacheSurvey
from hypaware.takeover.dataset_import import import_dataset, start_report
from hypaware.takeover.plan import DatasetPlan, TakeoverRequest, plan_takeover
from hypaware.takeover.report import DatasetTakeoverReport, TakeoverReport
from hypaware.takeover.rows import TakeoverTerms


def import_cache(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Run the job. args: `dir`, `sinks` (original → ours), `same`, `other`, `state_dirs`, `skip_unreadable`."""
    opened = open_home(context.home)
    if opened.rebuilt:
        context.note(opened.rebuilt)
    with closing(opened.store):
        report = take_over_cache(_takeover_context(context, opened), TakeoverRequest.from_args(args))
        for each in report.datasets:
            if each.flush_id is not None:
                lake = SparkLake(context.home, context.spark, opened.identity, context.check_cancelled)
                with commit_lock(each.dataset, context.check_cancelled):
                    jobs.trim_snapshots(context, lake.table(datasets.get(each.dataset)), each.dataset)
    return report.as_json()


def _takeover_context(context: JobContext, opened: OpenHome) -> TakeoverContext:
    def flush(dataset: Dataset) -> None:
        if health.has_pending_rows(context.home, [dataset.name]):
            jobs.flush_datasets(context, [dataset.name])

    def lake(dataset: Dataset, survey: CacheSurvey) -> SparkLake:
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
            return sources.load_checkpoints(connection, PROVIDER, dataset)

    plan = plan_takeover(
        request, opened.home, context.config, opened.identity, load_checkpoints, context.on_progress, dry_run=False
    )
    for each in plan.datasets:
        plan.report.datasets.append(_take_dataset(context, request, each, plan.report))
    return plan.report


def _take_dataset(
    context: TakeoverContext,
    request: TakeoverRequest,
    plan: DatasetPlan,
    report: TakeoverReport,
) -> DatasetTakeoverReport:
    dataset, survey, claims = plan.dataset, plan.survey, plan.claims
    if not (survey.due or survey.spools or claims):
        # Without new rows Spark is not started.
        return start_report(survey)
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
        imported, new_watermarks = import_dataset(
            target, survey, claims, terms, skip_unreadable=request.skip_unreadable
        )
    for position, seq in new_watermarks.items():
        report.set_watermark(position.key.sink, dataset.name, position.key.source, seq)
    for reason in imported.unreadable:
        report.add_not_taken(f"{dataset.name}, in part", reason)
    return imported
