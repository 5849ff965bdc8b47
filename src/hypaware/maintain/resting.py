"""The report on datasets for which nothing is due, from metadata and state, without running the job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hypaware.config import Config
from hypaware.home import Home
from hypaware.lake import metadata
from hypaware.maintain import holds
from hypaware.maintain.report import Report
from hypaware.maintain.retention_words import waiting
from hypaware.model.datasets import Dataset

if TYPE_CHECKING:
    from hypaware.state.store import Store


def at_rest(
    home: Home, config: Config, store: Store, wanted: Sequence[Dataset], now: datetime, only: str | None
) -> dict[str, Any]:
    """Return the report. It includes rows held for a sink."""
    reports = []
    for dataset in wanted:
        report = Report(dataset.name)
        entry = metadata.entry(home, dataset.name)
        assert entry is not None
        files = list(metadata.remembered_files(metadata.read(entry.metadata)))
        report.set_before(files)
        report.set_after(files)
        plan = holds.plan(home, config, store, dataset, now)
        if only != "compact" and plan.held:
            report.rows_held = sum(held.rows for held in plan.held)
            report.held = [held.as_json() for held in plan.held]
            report.reasons.append(waiting(plan.held))
        report.rows_without_time = plan.rows_without_time
        reports.append(report.as_json())
    return {"datasets": reports}
