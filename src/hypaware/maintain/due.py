"""Whether maintenance is due, told from files and state alone: no Spark is started to learn that nothing is to do."""

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
    """The datasets for which anything is, or the part `only`, as the job `maintain` knows it."""
    found = []
    for entry in metadata.entries(home):
        # A table whose plugin is gone waits for that, not for us.
        if entry.name not in datasets.names():
            continue
        table = metadata.read(entry.metadata)
        compaction = only != "expire" and _compaction(home, entry.name, table)
        rest = only != "compact" and (
            expiry.is_due(table) or retention.is_due(home, config, store, datasets.get(entry.name), now)
        )
        if compaction or rest:
            found.append(entry.name)
    return found


def _compaction(home: Home, dataset: str, table: Metadata) -> bool:
    """Rows that wait to be settled count, however few."""
    return bool(settlement_files.files(home, dataset) or compact_plan.due(metadata.remembered_files(table)))
