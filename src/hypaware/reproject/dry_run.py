"""Dry run of a reprojection: count the rows that it would add. Runs in this process, without Spark or changes.

Only a flush can match a live row with its native row, so such rows count as written here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

from hypaware.clients.reader import TimeWindow
from hypaware.config import Config
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.lake import health, tombstones
from hypaware.lake.key_lookup import ExistingKeys
from hypaware.lake.row_keys import hash_row_key
from hypaware.lake.tombstones import Tombstones
from hypaware.model.datasets import Row
from hypaware.model.schemas import AI_GATEWAY_EXCHANGES, AI_GATEWAY_MESSAGES
from hypaware.reproject.projection import ReprojectionReport, project_batches
from hypaware.state.home_opener import open_home


def preview_reprojection(
    home: Home, config: Config, window: TimeWindow, progress: Callable[[str, int, int], None]
) -> dict[str, Any]:
    report = ReprojectionReport(dry_run=True)
    if not home.state.is_file() or metadata.find_table(home, AI_GATEWAY_EXCHANGES.name) is None:
        return report.as_json()
    health.check_tables(home)
    opened, recorded = open_home(home), tombstones.read_tombstones(home)
    existing = ExistingKeys(home, AI_GATEWAY_MESSAGES, opened.gateway_id)
    with closing(opened.store):
        for batch in project_batches(opened, config, window, report, partial(progress, "reading")):
            allowed = _drop_purged(recorded, batch, opened.gateway_id)
            missing = _find_missing(existing, allowed, opened.gateway_id)
            report.rows.purged += len(batch) - len(allowed)
            report.rows.duplicate += len(allowed) - len(missing)
            report.rows.written += len(missing)
    return report.as_json()


def _find_missing(existing: ExistingKeys, rows: list[Row], own_gateway: str) -> list[Row]:
    """Return the rows that neither the lake nor the spool has, without duplicates."""
    keys = [hash_row_key(AI_GATEWAY_MESSAGES, row, own_gateway) for row in rows]
    duplicates = existing.duplicates([(key, number) for number, key in enumerate(keys) if key is not None])
    return [row for number, row in enumerate(rows) if number not in duplicates]


def _drop_purged(recorded: Tombstones, rows: list[Row], own_gateway: str) -> list[Row]:
    """Return the rows that are not purged, as a flush would."""
    is_purged = recorded.purge_filter.predicate(AI_GATEWAY_MESSAGES)
    allowed = [row for row in rows if is_purged is None or not is_purged(row)]
    keyed = [(row, hash_row_key(AI_GATEWAY_MESSAGES, row, own_gateway)) for row in allowed]
    purged = recorded.find({key for _, key in keyed if key is not None})
    return [row for row, key in keyed if key not in purged]
