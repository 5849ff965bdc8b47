"""The job `reproject`: append the rows that the lake lacks to the spool, in batches, and flush them. And its dry run.

args: `since`, `until` (canonical UTC text, or None). Result: the document of `ReprojectionReport`. Runs keep no state.
If a run is killed, the next flush commits its rows from the spool, and the next run finds them by their ids.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

from hypaware import faults
from hypaware.clients.reader import TimeWindow
from hypaware.config import Config
from hypaware.engine.jobs import JobContext
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.lake import health, tombstones
from hypaware.lake.dedupe import ExistingKeys
from hypaware.lake.row_keys import hash_row_key
from hypaware.lake.tombstones import Tombstones
from hypaware.model.datasets import Row
from hypaware.model.schemas import AI_GATEWAY_EXCHANGES, AI_GATEWAY_MESSAGES
from hypaware.reproject.projection import ReprojectionReport, project_batches
from hypaware.spool.writer import Spool
from hypaware.state.home_opener import OpenHome, open_home

_before_append = faults.crash_point(
    "reproject.append.before-append", "rows are projected from raw exchanges, none is stored"
)
_before_flush = faults.crash_point("reproject.flush.before-flush", "all rows are in the spool, none is in the lake")
_after_append = faults.crash_point(
    "reproject.append.after-append", "some rows are in the spool, others are not projected yet"
)
_DATASETS = (AI_GATEWAY_EXCHANGES.name, AI_GATEWAY_MESSAGES.name)


def run_reprojection(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    # Imported here, because crash points are listed without Spark.
    from hypaware.lake import jobs

    if due := [name for name in _DATASETS if health.has_pending_rows(context.home, [name])]:
        jobs.flush_datasets(context, due)
    report = ReprojectionReport(dry_run=False)

    def progress(number: int, total: int) -> None:
        context.check_cancelled()
        if number % 100 == 0:
            context.progress("reading raw exchanges", number, total, unit="exchanges", rows=report.rows_projected)

    opened = open_home(context.home)
    window = TimeWindow(args.get("since"), args.get("until"))
    with closing(opened.store):
        added = append_missing(opened, context.config, window, report, progress)
    if added:
        _before_flush()
        (flushed,) = jobs.flush_datasets(context, [AI_GATEWAY_MESSAGES.name])
        report.add_flush(added, flushed.rows)
    return report.as_json()


def append_missing(
    opened: OpenHome,
    config: Config,
    window: TimeWindow,
    report: ReprojectionReport,
    progress: Callable[[int, int], None],
) -> int:
    """Return the number of appended rows. The spool must have been flushed before, or its rows count as missing."""
    added = 0
    with Spool(opened.home) as spool:
        for batch in project_batches(opened, config, window, report, progress):
            missing = _find_missing(opened, batch)
            report.rows.duplicate += len(batch) - len(missing)
            if missing:
                _before_append()
                added += spool.append_coerced(AI_GATEWAY_MESSAGES.name, missing)
                _after_append()
    return added


def _find_missing(opened: OpenHome, rows: list[Row]) -> list[Row]:
    """Return the rows that the lake lacks. The flush drops the few duplicates within a run.

    Reads the current lake each time, because other jobs flush and compact it during the run.
    """
    keyed = [(row, hash_row_key(AI_GATEWAY_MESSAGES, row, opened.gateway_id)) for row in rows]
    present = ExistingKeys(opened.home, AI_GATEWAY_MESSAGES, opened.gateway_id).committed(
        {key for _, key in keyed if key}
    )
    return [row for row, key in keyed if key not in present]


def preview_reprojection(
    home: Home, config: Config, window: TimeWindow, progress: Callable[[str, int, int], None]
) -> dict[str, Any]:
    """Count the rows that a run would add, in this process, without Spark or changes.

    Only a flush can match a live row with its native row, so such rows count as written here.
    """
    report = ReprojectionReport(dry_run=True)
    if not home.state.is_file() or metadata.find_table(home, AI_GATEWAY_EXCHANGES.name) is None:
        return report.as_json()
    health.check_tables(home)
    opened, recorded = open_home(home), tombstones.read_tombstones(home)
    existing = ExistingKeys(home, AI_GATEWAY_MESSAGES, opened.gateway_id)
    with closing(opened.store):
        for batch in project_batches(opened, config, window, report, partial(progress, "reading")):
            allowed = _drop_purged(recorded, batch, opened.gateway_id)
            missing = _find_new(existing, allowed, opened.gateway_id)
            report.rows.purged += len(batch) - len(allowed)
            report.rows.duplicate += len(allowed) - len(missing)
            report.rows.written += len(missing)
    return report.as_json()


def _find_new(existing: ExistingKeys, rows: list[Row], own_gateway: str) -> list[Row]:
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
