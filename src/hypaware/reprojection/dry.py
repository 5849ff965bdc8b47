"""Dry run of a reprojection: count the rows that it would add. Runs in this process, without Spark or changes.

Only a flush can match a live row with its native row, so such rows count as written here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

from hypaware.backfill.pinned import Window
from hypaware.backfill.present import Present
from hypaware.config import Config
from hypaware.home import Home
from hypaware.lake import metadata, standing, tombstones
from hypaware.lake.build import row_key
from hypaware.lake.tombstones import Tombstones
from hypaware.model.datasets import Row
from hypaware.model.exchanges import AI_GATEWAY_EXCHANGES
from hypaware.model.messages import AI_GATEWAY_MESSAGES
from hypaware.opening import open_home
from hypaware.reprojection import parts_file, stored
from hypaware.reprojection.outcome import Outcome
from hypaware.reprojection.projecting import Terms, batches

Progress = Callable[[str, int, int], None]


def count(home: Home, config: Config, window: Window, progress: Progress) -> dict[str, Any]:
    outcome = Outcome(dry_run=True)
    if not home.state.is_file() or metadata.entry(home, AI_GATEWAY_EXCHANGES.name) is None:
        return outcome.as_json()
    standing.check_tables(home)
    opened = open_home(home)
    own = opened.gateway_id
    with closing(opened.store) as store:
        through = stored.recorded(store)
    terms, stones = Terms.of(home, config, own, window), tombstones.read(home)
    present, total = Present(home, AI_GATEWAY_MESSAGES, own), stored.count(home)
    with parts_file.opened(home) as parts:
        read = stored.rows(home, through)
        for batch in batches(read, terms, parts, outcome, lambda number: progress("reading", number, total)):
            allowed = _let_in(stones, batch, own)
            missing = _missing(present, allowed, own)
            outcome.rows_purged += len(batch) - len(allowed)
            outcome.rows_duplicate += len(allowed) - len(missing)
            outcome.rows_written += len(missing)
    return outcome.as_json()


def _missing(present: Present, rows: list[Row], own_gateway: str) -> list[Row]:
    """Return the rows that neither the lake nor the spool has, without duplicates."""
    keys = [row_key(AI_GATEWAY_MESSAGES, row, own_gateway) for row in rows]
    duplicates = present.duplicates([(key, number) for number, key in enumerate(keys) if key is not None])
    return [row for number, row in enumerate(rows) if number not in duplicates]


def _let_in(stones: Tombstones, rows: list[Row], own_gateway: str) -> list[Row]:
    """Return the rows that are not purged, as a flush would."""
    is_purged = stones.purge_filter.predicate(AI_GATEWAY_MESSAGES)
    allowed = [row for row in rows if is_purged is None or not is_purged(row)]
    keyed = [(row, row_key(AI_GATEWAY_MESSAGES, row, own_gateway)) for row in allowed]
    purged = stones.find({key for _, key in keyed if key is not None})
    return [row for row, key in keyed if key not in purged]
