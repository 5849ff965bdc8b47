"""What the raw exchanges give today and the lake has not: into the spool, batch by batch.

Nothing is remembered between runs. Killed at any point, the rows that wait in the spool are flushed by whoever flushes
next, and the next run finds them by their ids.
"""

from __future__ import annotations

from collections.abc import Callable

from hypaware import faults
from hypaware.backfill.pinned import Window
from hypaware.backfill.present import Present
from hypaware.config import Config
from hypaware.lake.build import row_key
from hypaware.model.datasets import Row
from hypaware.model.messages import AI_GATEWAY_MESSAGES
from hypaware.opening import OpenHome
from hypaware.reprojection import parts_file, stored
from hypaware.reprojection.outcome import Outcome
from hypaware.reprojection.projecting import Terms, batches
from hypaware.spool.writer import Spool

_before_append = faults.point("reprojection.append.before-append", "rows are made of raw exchanges, none is stored")
before_flush = faults.point("reprojection.flush.before-flush", "all rows wait in the spool, none is in the lake")
_after_append = faults.point("reprojection.append.after-append", "some rows wait in the spool, others are not made yet")


def add(opened: OpenHome, config: Config, window: Window, outcome: Outcome, progress: Callable[[int], None]) -> int:
    """How many rows wait in the spool now. What waited before was flushed, or it would be taken for missing."""
    home, own = opened.home, opened.gateway_id
    terms = Terms.of(home, config, own, window)
    added = 0
    with parts_file.opened(home) as parts, Spool(home) as spool:
        read = stored.rows(home, stored.recorded(opened.store))
        for batch in batches(read, terms, parts, outcome, progress):
            fresh = _missing(opened, batch)
            outcome.rows_duplicate += len(batch) - len(fresh)
            if fresh:
                _before_append()
                added += spool.append_coerced(AI_GATEWAY_MESSAGES.name, fresh)
                _after_append()
    return added


def _missing(opened: OpenHome, rows: list[Row]) -> list[Row]:
    """Those that the lake has not; the few that come twice in a run are left to the flush.

    The lake as it is now: others flush and compact meanwhile.
    """
    keyed = [(row, row_key(AI_GATEWAY_MESSAGES, row, opened.gateway_id)) for row in rows]
    there = Present(opened.home, AI_GATEWAY_MESSAGES, opened.gateway_id).committed({key for _, key in keyed if key})
    return [row for row, key in keyed if key not in there]
