"""Which datasets are due for maintenance, from files and state alone, without starting Spark."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from hypaware.home import Home
from hypaware.lake import expiry, metadata, settlement_files
from hypaware.lake.metadata import Metadata
from hypaware.maintain import compact_plan, retention
from hypaware.model import datasets

if TYPE_CHECKING:
    from hypaware.config import Config
    from hypaware.state.store import Store


def all_due(home: Home, config: Config, store: Store, now: datetime, only: str | None = None) -> list[str]:
    """Return the datasets with work to do, limited to the step `only` as in the job `maintain`."""
    found = []
    for entry in metadata.entries(home):
        # A table whose plugin is not installed is left alone.
        if entry.name not in datasets.names():
            continue
        table = metadata.read(entry.metadata)
        needs_compaction = only != "expire" and _is_compaction_due(home, entry.name, table)
        needs_expiry = only != "compact" and (
            expiry.is_due(table) or retention.is_due(home, config, store, datasets.get(entry.name), now)
        )
        if needs_compaction or needs_expiry:
            found.append(entry.name)
    return found


def _is_compaction_due(home: Home, dataset: str, table: Metadata) -> bool:
    """Return whether compaction is due. A single pending settlement is enough."""
    return bool(settlement_files.files(home, dataset) or compact_plan.due(metadata.remembered_files(table)))
