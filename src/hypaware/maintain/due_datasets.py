"""Which datasets are due for maintenance, from files and state alone, without starting Spark.

If none is due, `idle_report` is the report of `hyp maintain`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hypaware.config import Config
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.lake import health, snapshots
from hypaware.maintain import compact_plan, retention_plan
from hypaware.maintain.context import MaintenanceReport
from hypaware.maintain.retention_plan import describe_holds
from hypaware.model import datasets
from hypaware.model.datasets import Dataset

if TYPE_CHECKING:
    from hypaware.state.store import StateStore


def find_due_datasets(
    home: Home, config: Config, store: StateStore, now: datetime, only: str | None = None
) -> list[str]:
    """Return the datasets with work to do, limited to the step `only` as in the job `maintain`."""
    found = []
    for entry in metadata.list_tables(home):
        # A table whose plugin is not installed is left alone.
        if entry.name not in datasets.list_names():
            continue
        table = metadata.read_metadata(entry.metadata)
        # A single pending settlement is enough for a compaction.
        needs_compaction = only != "expire" and bool(
            health.list_settlements(home, entry.name) or compact_plan.plan_compaction(metadata.iter_cached_files(table))
        )
        needs_expiry = only != "compact" and (
            snapshots.is_expiry_due(table)
            or retention_plan.is_retention_due(home, config, store, datasets.get(entry.name), now)
        )
        if needs_compaction or needs_expiry:
            found.append(entry.name)
    return found


def idle_report(
    home: Home, config: Config, store: StateStore, wanted: Sequence[Dataset], now: datetime, only: str | None
) -> dict[str, Any]:
    """Return the report. It includes rows held for a sink."""
    reports = []
    for dataset in wanted:
        report = MaintenanceReport(dataset.name)
        entry = metadata.find_table(home, dataset.name)
        assert entry is not None
        files = list(metadata.iter_cached_files(metadata.read_metadata(entry.metadata)))
        report.set_before(files)
        report.set_after(files)
        plan = retention_plan.plan_retention(home, config, store, dataset, now)
        if only != "compact" and plan.held:
            report.rows_held = plan.rows_held
            report.held = [held.as_json() for held in plan.held]
            report.reasons.append(describe_holds(plan.held))
        report.rows_without_time = plan.rows_without_time
        reports.append(report.as_json())
    return {"datasets": reports}
