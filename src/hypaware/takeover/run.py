"""The job `import-cache`, as an engine runs it."""

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
    """args: `dir`, `sinks` (theirs → ours), `same`, `other`, `state_dirs`, `skip_unreadable`. Result: the document."""
    opened = open_home(context.home)
    if opened.rebuilt:
        context.note(opened.rebuilt)
    with closing(opened.store):
        outcome = take_over(_means(context, opened), Request.of(args))
        for each in outcome.datasets:
            if each.flush_id is not None:
                _trim(context, opened, datasets.get(each.dataset))
    return outcome.as_json()


def _means(context: JobContext, opened: OpenHome) -> Means:
    def flush(dataset: Dataset) -> None:
        if pending.waits(context.home, [dataset.name]):
            lake_jobs.flush_datasets(context, [dataset.name])

    def lake(dataset: Dataset, found: Survey) -> SparkLake:
        def watch(done: int, files: int, rows: int) -> None:
            total = len(found.due) + len(found.spools)
            message = f"taking over {dataset.name}"
            context.progress(message, done, found.bytes, unit="bytes", files=files, files_total=total, rows=rows)

        made = SparkLake(context.home, context.spark, opened.identity, context.check_cancelled, watch)
        made.warm_up()
        return made

    def told(dataset: Dataset, number: int, total: int) -> None:
        context.check_cancelled()
        if number % 100 == 0:
            context.progress(f"looking at {dataset.name}", number, total, unit="files")

    return Means(opened, context.config, flush, lake, told, context.check_cancelled)


def _trim(context: JobContext, opened: OpenHome, dataset: Dataset) -> None:
    lake = SparkLake(context.home, context.spark, opened.identity, context.check_cancelled)
    with changing(dataset.name, context.check_cancelled):
        lake_jobs.trim(context, lake.table(dataset), dataset.name)
