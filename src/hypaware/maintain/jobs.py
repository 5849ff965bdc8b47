"""The job `maintain`: retention, then compaction, then expiry, dataset by dataset; or a rebuild.

args: `dataset` (all that have a table if null), `dry_run`, `force`, `only` (`"compact"`, `"expire"` or null),
`rebuild`, `budget` (seconds, null for no limit). Result: INTERFACE's maintain document.
"""

from __future__ import annotations

import time
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from hypaware.engine.jobs import JobContext
from hypaware.errors import Cancelled, HypError
from hypaware.lake import turns
from hypaware.lake.metadata import DataFile
from hypaware.lake.spark_lake import SparkLake, known_datasets
from hypaware.maintain import compact, expire, generation, rebuild, retain
from hypaware.maintain.report import Report
from hypaware.maintain.work import Work
from hypaware.model import datasets
from hypaware.model.datasets import Dataset
from hypaware.opening import OpenHome, open_home

STEPS = {"compact": (compact.run,), "expire": (retain.run, expire.run), None: (retain.run, compact.run, expire.run)}


def maintain(context: JobContext, args: dict[str, Any], now: datetime | None = None) -> dict[str, Any]:
    present = known_datasets(context.home)
    wanted = [datasets.get(args["dataset"])] if args.get("dataset") else list(datasets.all())
    until = time.monotonic() + args["budget"] if args.get("budget") else None
    steps = (rebuild.run,) if args.get("rebuild") else STEPS[args.get("only")]
    reports = []
    opened = open_home(context.home)
    with closing(opened.store):
        for dataset in wanted:
            if dataset not in present and not (args.get("rebuild") and generation.folders(context.home, dataset.name)):
                continue
            report = Report(dataset.name)
            run_steps(_work(context, opened, dataset, args, until, now or datetime.now(UTC)), steps, report)
            reports.append(report.as_json())
    return {"datasets": reports}


def _work(
    context: JobContext, opened: OpenHome, dataset: Dataset, args: dict[str, Any], until: float | None, now: datetime
) -> Work:
    return Work(
        context.home,
        context.config,
        opened.store,
        SparkLake(context.home, context.spark, opened.identity, context.check_cancelled),
        dataset,
        now,
        force=bool(args.get("force")),
        dry_run=bool(args.get("dry_run")),
        until=until,
        progress=lambda message, done, total: context.progress(message, done, total),
        note=context.note,
        check_cancelled=context.check_cancelled,
    )


def run_steps(work: Work, steps: Any, report: Report) -> None:
    """A step that fails is told, and the next one has its turn."""
    with turns.keeping(work.dataset.name, work.check_cancelled):
        report.before(_readable(work))
        try:
            if rebuild.run not in steps:
                work.refuse_damaged()
        except HypError as trouble:
            report.errors.append(trouble.message)
            steps = ()
        for step in steps:
            try:
                step(work, report)
            except Cancelled:
                raise
            except HypError as trouble:
                report.errors.append(trouble.message)
        if work.dry_run:
            foreseen = work.foreseen
            report.foretell(foreseen.left_of(_readable(work)), foreseen.files_come, foreseen.bytes_come)
        else:
            report.after(_readable(work))


def _readable(work: Work) -> list[DataFile]:
    """A rebuild mends tables that nobody can count."""
    try:
        return work.files()
    except Exception:
        return []
