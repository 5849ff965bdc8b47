"""Append the rows that reprojection gives and the lake lacks to the spool, in batches.

Runs keep no state. If a run is killed, the next flush commits its rows from the spool, and the next run finds them by
their ids.
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

_before_append = faults.point(
    "reprojection.append.before-append", "rows are projected from raw exchanges, none is stored"
)
before_flush = faults.point("reprojection.flush.before-flush", "all rows are in the spool, none is in the lake")
_after_append = faults.point(
    "reprojection.append.after-append", "some rows are in the spool, others are not projected yet"
)


def add(opened: OpenHome, config: Config, window: Window, outcome: Outcome, progress: Callable[[int], None]) -> int:
    """Return the number of appended rows. The spool must have been flushed before, or its rows count as missing."""
    home, own = opened.home, opened.gateway_id
    terms = Terms.of(home, config, own, window)
    added = 0
    with parts_file.opened(home) as parts, Spool(home) as spool:
        read = stored.rows(home, stored.recorded(opened.store))
        for batch in batches(read, terms, parts, outcome, progress):
            missing = _missing(opened, batch)
            outcome.rows_duplicate += len(batch) - len(missing)
            if missing:
                _before_append()
                added += spool.append_coerced(AI_GATEWAY_MESSAGES.name, missing)
                _after_append()
    return added


def _missing(opened: OpenHome, rows: list[Row]) -> list[Row]:
    """Return the rows that the lake lacks. The flush drops the few duplicates within a run.

    Reads the current lake each time, because other jobs flush and compact it during the run.
    """
    keyed = [(row, row_key(AI_GATEWAY_MESSAGES, row, opened.gateway_id)) for row in rows]
    present = Present(opened.home, AI_GATEWAY_MESSAGES, opened.gateway_id).committed({key for _, key in keyed if key})
    return [row for row, key in keyed if key not in present]
