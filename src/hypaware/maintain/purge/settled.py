"""Apply pending settlements before purging, so that rows are found under their final ids.

The files that held the rows before must be removed, too. Native rows that a settlement returns to the spool are there
before the purge flushes it.
"""

from __future__ import annotations

from datetime import UTC, datetime

from hypaware.errors import Retryable
from hypaware.lake import metadata, turns
from hypaware.maintain import compact
from hypaware.maintain.purge.purging import Gone, Purging
from hypaware.maintain.report import Report
from hypaware.maintain.settling import Pending
from hypaware.maintain.work import Work
from hypaware.model import datasets
from hypaware.model.datasets import Dataset


def settle_all(context: Purging, removed_rows: Gone) -> None:
    """Apply the settlements of all tables."""
    present = {entry.name for entry in metadata.entries(context.home)}
    for dataset in datasets.all():
        if dataset.match_rules is not None and dataset.name in present:
            with turns.keeping(dataset.name, context.check_cancelled):
                settle(context, dataset, removed_rows)


def settle(context: Purging, dataset: Dataset, removed_rows: Gone) -> None:
    """Apply the settlements of one table. The caller holds `turns.keeping`."""
    pending = Pending.read(context.home, dataset)
    entry = metadata.entry(context.home, dataset.name)
    if not pending or entry is None:
        return
    live = metadata.remembered_files(metadata.read(entry.metadata))
    replaced = {file.path for file in live if pending.affects(file)}
    arguments = (context.home, context.config, context.store, context.lake, dataset, datetime.now(UTC))
    maintenance = Work(
        *arguments, progress=context.progress, note=context.note, check_cancelled=context.check_cancelled
    )
    report = Report(dataset.name)
    compact.settle(maintenance, report)
    if report.errors:
        raise Retryable(report.errors[0], kind="purge_failed")
    removed_rows.replaced |= replaced
