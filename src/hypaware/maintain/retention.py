"""The status of retention without Spark: for `hyp status`, the daemon, and the command before it starts a job."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hypaware.config import Config
from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.lake import metadata
from hypaware.maintain import clock, holds, kept
from hypaware.maintain.retention_words import warnings
from hypaware.model import datasets
from hypaware.model.datasets import Dataset
from hypaware.state import retention

if TYPE_CHECKING:
    from hypaware.state.store import Store


def is_due(home: Home, config: Config, store: Store, dataset: Dataset, now: datetime) -> bool:
    """Return whether a run would drop rows or has to record a new hold.

    That the first day kept has advanced is no reason for a run: it advances every day.
    """
    if clock.trouble(home, store, dataset, now):
        return False
    plan = holds.plan(home, config, store, dataset, now)
    is_first_run = plan.advances and metadata.retained_from(home, dataset.name) is None
    return bool(plan.to_drop or is_first_run or list(plan.known_holds) != plan.holds)


def retention_standing(home: Home, config: Config, store: Store, now: datetime) -> list[dict[str, Any]]:
    """Return for each dataset with a table: the period, held rows with sinks and dates, and undelivered drops."""
    return [
        _of_dataset(home, config, store, dataset, entry, now)
        for entry in metadata.entries(home)
        if (dataset := _registered(entry.name)) is not None
    ]


def about_to_go(home: Home, config: Config, store: Store, now: datetime) -> list[str]:
    """Return warnings about undelivered rows that will be dropped soon, and about a wrong clock."""
    return [warning for each in retention_standing(home, config, store, now) for warning in each["warnings"]]


def _of_dataset(
    home: Home, config: Config, store: Store, dataset: Dataset, entry: metadata.TableEntry, now: datetime
) -> dict[str, Any]:
    plan = holds.plan(home, config, store, dataset, now)
    files = list(metadata.remembered_files(metadata.read(entry.metadata)))
    messages = warnings(dataset.name, plan.expiring_soon(now))
    if plan.first_day and (warning := clock.trouble(home, store, dataset, now)):
        messages.append(warning)
    with store.reading() as connection:
        drops = retention.drops(connection, dataset.name)
    return {
        "dataset": dataset.name,
        "days": kept.days_kept(config, dataset),
        "first_day_kept": plan.first_day and plan.first_day.isoformat(),
        "rows_due": sum(file.rows for file in plan.to_drop),
        "rows_held": sum(held.rows for held in plan.held),
        "rows_without_time": plan.rows_without_time,
        "held": [held.as_json() for held in plan.held],
        "warnings": messages,
        "dropped_undelivered": [
            drop.as_json() for drop in drops if drop.landed or not holds.is_still_there(drop, files)
        ],
    }


def _registered(name: str) -> Dataset | None:
    """Return the dataset, or None if its plugin is not installed."""
    with suppress(HypError):
        return datasets.get(name)
    return None
