"""The job `maintain`: retention, then compaction, then expiry, one dataset after another; or a rebuild.

args: `dataset` (all with a table if null), `dry_run`, `force`, `only` (`"compact"`, `"expire"` or null), `rebuild`,
`readmit`, `budget` (seconds, null for no limit). Result: the documented report of `hyp maintain`. A dry run takes the
same steps in the process of the command, without Spark and without changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn

from hypaware.config import Config
from hypaware.config.shared_lake import find_shared_lake
from hypaware.engine.jobs import JobContext
from hypaware.errors import Cancelled, HypError, NotReady
from hypaware.home import Home
from hypaware.iceberg import fsync, metadata
from hypaware.iceberg.metadata import DataFile
from hypaware.lake.spark_table import SparkLake, list_stored_datasets
from hypaware.lake.table import maintenance_lock
from hypaware.maintain import compact, expire, rebuild, retention
from hypaware.maintain.context import MaintenanceContext, MaintenanceReport
from hypaware.model import datasets
from hypaware.model.datasets import Dataset
from hypaware.state.home_opener import open_home

if TYPE_CHECKING:
    from hypaware.state.store import StateStore

STEPS = {
    "compact": (compact.compact_dataset,),
    "expire": (retention.apply_retention, expire.expire_dataset),
    None: (retention.apply_retention, compact.compact_dataset, expire.expire_dataset),
}


def run_maintenance(context: JobContext, args: dict[str, Any], now: datetime | None = None) -> dict[str, Any]:
    if args.get("rebuild") and find_shared_lake(context.home) is not None:
        raise NotReady(
            "a rebuild does not support a shared lake yet (lake.catalog): restore the database or the bucket",
            kind="shared_lake_unsupported",
        )
    present = list_stored_datasets(context.home)
    wanted = [datasets.get(args["dataset"])] if args.get("dataset") else list(datasets.list_all())
    deadline = time.monotonic() + args["budget"] if args.get("budget") else None
    reports = []
    opened = open_home(context.home)
    with closing(opened.store):
        for dataset in wanted:
            has_files = args.get("rebuild") and metadata.table_folders(context.home, dataset.name)
            if dataset not in present and not has_files:
                continue
            maintenance = MaintenanceContext(
                context.home,
                context.config,
                opened.store,
                SparkLake(context.home, context.spark, opened.identity, context.check_cancelled),
                dataset,
                now or datetime.now(UTC),
                force=bool(args.get("force")),
                dry_run=bool(args.get("dry_run")),
                deadline=deadline,
                progress=context.progress,
                note=context.note,
                check_cancelled=context.check_cancelled,
            )
            reports.append(run_steps(maintenance, _steps(args)))
    return {"datasets": reports}


def dry_run_report(
    home: Home,
    config: Config,
    store: StateStore,
    wanted: Sequence[Dataset],
    args: dict[str, Any],
    now: datetime,
    note: Callable[[str], None],
) -> dict[str, Any]:
    """Run the steps dry for datasets that have a table and return the report; `args` as in the job."""
    force = bool(args.get("force"))
    contexts = [
        MaintenanceContext(home, config, store, _NoLake(), dataset, now, force=force, dry_run=True, note=note)
        for dataset in wanted
    ]
    return {"datasets": [run_steps(context, _steps(args)) for context in contexts]}


def _steps(args: dict[str, Any]) -> tuple[Any, ...]:
    if args.get("rebuild"):
        return (rebuild.rebuild_dataset,)
    return (retention.readmit_days,) if args.get("readmit") else STEPS[args.get("only")]


def run_steps(context: MaintenanceContext, steps: tuple[Any, ...]) -> dict[str, Any]:
    """Run the steps and return the report; a failed step is reported and the next one runs."""
    report, effects = MaintenanceReport(context.dataset.name), context.effects
    with maintenance_lock(context.dataset.name, context.check_cancelled):
        files = _readable_files(context)
        report.files_before, report.bytes_before = len(files), sum(file.bytes for file in files)
        try:
            if rebuild.rebuild_dataset not in steps:
                # No other step may touch a table whose contents are unknown.
                fsync.require_intact(context.home, context.dataset.name)
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
        files = effects.remaining(_readable_files(context))
        report.files_after = len(files) + effects.files_added
        report.bytes_after = sum(file.bytes for file in files) + effects.bytes_added
    return report.as_json()


def _readable_files(context: MaintenanceContext) -> list[DataFile]:
    """Return the table's files, or none if a damaged table, which a rebuild repairs, cannot be read."""
    try:
        return context.files()
    except Exception:
        return []


class _NoLake:
    def table(self, dataset: Dataset) -> NoReturn:
        raise AssertionError("a dry run changes no table")

    def run(self, tasks: object) -> NoReturn:
        raise AssertionError("a dry run runs no tasks")

    def start(self, tasks: object, watch: object = None) -> NoReturn:
        raise AssertionError("a dry run runs no tasks")
