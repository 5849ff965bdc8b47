"""Where retention stands, for those who ask without Spark: status, the daemon, and the command before it begins."""

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
    """Whether a run would drop something, or has to write down what it begins to wait for.

    That the first day kept has moved on is no reason by itself: it moves every day.
    """
    if clock.trouble(home, store, dataset, now):
        return False
    plan = holds.plan(home, config, store, dataset, now)
    first = plan.rises and metadata.retained_from(home, dataset.name) is None
    return bool(plan.gone or first or list(plan.known) != plan.holds)


def retention_standing(home: Home, config: Config, store: Store, now: datetime) -> list[dict[str, Any]]:
    """Of each dataset that has a table: what is kept, what is held by whom since when, what went undelivered."""
    return [
        _of_dataset(home, config, store, dataset, entry, now)
        for entry in metadata.entries(home)
        if (dataset := _registered(entry.name)) is not None
    ]


def about_to_go(home: Home, config: Config, store: Store, now: datetime) -> list[str]:
    """Warnings of rows that will be dropped soon although a sink has not had them; also of a clock that is wrong."""
    return [warning for each in retention_standing(home, config, store, now) for warning in each["warnings"]]


def _of_dataset(
    home: Home, config: Config, store: Store, dataset: Dataset, entry: metadata.TableEntry, now: datetime
) -> dict[str, Any]:
    plan = holds.plan(home, config, store, dataset, now)
    files = list(metadata.remembered_files(metadata.read(entry.metadata)))
    told = warnings(dataset.name, plan.nearly_over(now))
    if plan.first_kept and (trouble := clock.trouble(home, store, dataset, now)):
        told.append(trouble)
    with store.reading() as connection:
        drops = retention.drops(connection, dataset.name)
    return {
        "dataset": dataset.name,
        "days": kept.days_kept(config, dataset),
        "first_day_kept": plan.first_kept and plan.first_kept.isoformat(),
        "rows_due": sum(file.rows for file in plan.gone),
        "rows_held": sum(held.rows for held in plan.held),
        "rows_without_time": plan.rows_without_time,
        "held": [held.as_json() for held in plan.held],
        "warnings": told,
        "dropped_undelivered": [
            drop.as_json() for drop in drops if drop.landed or not holds.is_still_there(drop, files)
        ],
    }


def _registered(name: str) -> Dataset | None:
    """None for a table whose plugin is gone."""
    with suppress(HypError):
        return datasets.get(name)
    return None
