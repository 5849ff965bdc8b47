"""A row is what its native record says, also for whoever looks for it: a purge carries settlements out first.

The files that held such rows as they were must go, too. What settlements give back to the spool is there before the
purge flushes it.
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


def settle_all(purging: Purging, gone: Gone) -> None:
    present = {entry.name for entry in metadata.entries(purging.home)}
    for dataset in datasets.all():
        if dataset.settling is not None and dataset.name in present:
            with turns.keeping(dataset.name, purging.check_cancelled):
                settle(purging, dataset, gone)


def settle(purging: Purging, dataset: Dataset, gone: Gone) -> None:
    """The caller keeps the table."""
    pending = Pending.of(purging.home, dataset)
    entry = metadata.entry(purging.home, dataset.name)
    if not pending or entry is None:
        return
    live = metadata.remembered_files(metadata.read(entry.metadata))
    replaced = {file.path for file in live if pending.concerns(file)}
    asks = (purging.home, purging.config, purging.store, purging.lake, dataset, datetime.now(UTC))
    work = Work(*asks, progress=purging.progress, note=purging.note, check_cancelled=purging.check_cancelled)
    done = Report(dataset.name)
    compact.settle(work, done)
    if done.errors:
        raise Retryable(done.errors[0], kind="purge_failed")
    gone.replaced |= replaced
