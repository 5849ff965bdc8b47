"""How long rows are kept: days of UTC, each kept or dropped as a whole."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from hypaware.config import Config
from hypaware.model.datasets import Dataset


def days_kept(config: Config, dataset: Dataset) -> int:
    """0 is for ever."""
    configured = config.retention.datasets.get(dataset.name)
    if configured is not None:
        return configured
    return config.retention.default_days if dataset.retention_days is None else dataset.retention_days


def first_day_kept(config: Config, dataset: Dataset, now: datetime) -> date | None:
    """Rows of earlier days are due. The day that lies so long back is kept whole. None: everything is kept."""
    if not (days := days_kept(config, dataset)):
        return None
    try:
        return now.astimezone(UTC).date() - timedelta(days=days)
    except OverflowError:
        return None


def days_after(day: date, days: int) -> date:
    """Or the last day that there is."""
    try:
        return day + timedelta(days=days)
    except OverflowError:
        return date.max
