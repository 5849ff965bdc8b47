"""The job `import-cache`, as the engine runs it."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from hypaware.engine.jobs import JobContext
from hypaware.lake import jobs as lake_jobs
from hypaware.lake import pending
from hypaware.lake.spark_lake import SparkLake
from hypaware.lake.turns import changing
from hypaware.model import datasets
from hypaware.model.datasets import Dataset
from hypaware.opening import OpenHome, open_home
from hypaware.takeover.request import Request
from hypaware.takeover.survey import Survey
from hypaware.takeover.take_over import Means, take_over


def import_cache(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Run the job. args: `dir`, `sinks` (original → ours), `same`, `other`, `state_dirs`, `skip_unreadable`."""
    opened = open_home(context.home)
    if opened.rebuilt:
        context.note(opened.rebuilt)
    with closing(opened.store):
        outcome = take_over(_takeover_context(context, opened), Request.from_args(args))
        for each in outcome.datasets:
            if each.flush_id is not None:
                _trim(context, opened, datasets.get(each.dataset))
    return outcome.as_json()


def _takeover_context(context: JobContext, opened: OpenHome) -> Means:
    def flush(dataset: Dataset) -> None:
        if pending.waits(context.home, [dataset.name]):
            lake_jobs.flush_datasets(context, [dataset.name])

    def lake(dataset: Dataset, survey: Survey) -> SparkLake:
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

    return Means(opened, context.config, flush, lake, report_progress, context.check_cancelled)


def _trim(context: JobContext, opened: OpenHome, dataset: Dataset) -> None:
    lake = SparkLake(context.home, context.spark, opened.identity, context.check_cancelled)
    with changing(dataset.name, context.check_cancelled):
        lake_jobs.trim(context, lake.table(dataset), dataset.name)
