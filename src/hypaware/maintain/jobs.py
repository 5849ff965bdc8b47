"""The job `maintain`: retention, then compaction, then expiry, one dataset after another; or a rebuild.

args: `dataset` (all with a table if null), `dry_run`, `force`, `only` (`"compact"`, `"expire"` or null), `rebuild`,
`budget` (seconds, null for no limit). Result: the documented report of `hyp maintain`.
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
    """Run the job."""
    present = known_datasets(context.home)
    wanted = [datasets.get(args["dataset"])] if args.get("dataset") else list(datasets.all())
    deadline = time.monotonic() + args["budget"] if args.get("budget") else None
    steps = (rebuild.run,) if args.get("rebuild") else STEPS[args.get("only")]
    reports = []
    opened = open_home(context.home)
    with closing(opened.store):
        for dataset in wanted:
            if dataset not in present and not (args.get("rebuild") and generation.folders(context.home, dataset.name)):
                continue
            report = Report(dataset.name)
            run_steps(_context_for(context, opened, dataset, args, deadline, now or datetime.now(UTC)), steps, report)
            reports.append(report.as_json())
    return {"datasets": reports}


def _context_for(
    context: JobContext, opened: OpenHome, dataset: Dataset, args: dict[str, Any], deadline: float | None, now: datetime
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
        deadline=deadline,
        progress=lambda message, done, total: context.progress(message, done, total),
        note=context.note,
        check_cancelled=context.check_cancelled,
    )


def run_steps(context: Work, steps: Any, report: Report) -> None:
    """Run the steps; a failed step is reported and the next one runs."""
    with turns.keeping(context.dataset.name, context.check_cancelled):
        report.set_before(_readable(context))
        try:
            if rebuild.run not in steps:
                context.refuse_damaged()
        except HypError as error:
            report.errors.append(error.message)
            steps = ()
        for step in steps:
            try:
                step(context, report)
            except Cancelled:
                raise
            except HypError as error:
                report.errors.append(error.message)
        if context.dry_run:
            effects = context.effects
            report.set_dry_run(effects.remaining(_readable(context)), effects.files_added, effects.bytes_added)
        else:
            report.set_after(_readable(context))


def _readable(context: Work) -> list[DataFile]:
    """Return the table's files, or none if a damaged table, which a rebuild repairs, cannot be read."""
    try:
        return context.files()
    except Exception:
        return []
