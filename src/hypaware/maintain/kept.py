"""The retention period of a dataset, in whole UTC days."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from hypaware.config import Config
from hypaware.model.datasets import Dataset


def days_kept(config: Config, dataset: Dataset) -> int:
    """Return the number of days; 0 means forever."""
    configured = config.retention.datasets.get(dataset.name)
    if configured is not None:
        return configured
    return config.retention.default_days if dataset.retention_days is None else dataset.retention_days


def first_day_kept(config: Config, dataset: Dataset, now: datetime) -> date | None:
    """Return the first day that is kept; rows of earlier days are due. None means that everything is kept."""
    if not (days := days_kept(config, dataset)):
        return None
    try:
        return now.astimezone(UTC).date() - timedelta(days=days)
    except OverflowError:
        return None


def days_after(day: date, days: int) -> date:
    """Add days to a date, up to the last date that Python can represent."""
    try:
        return day + timedelta(days=days)
    except OverflowError:
        return date.max
