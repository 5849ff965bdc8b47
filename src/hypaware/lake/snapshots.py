"""Decide which snapshots of a table may be removed. Flushes and `hyp maintain` use the same rule.

The snapshot that was current when the oldest running job started is kept, and so is every snapshot that a reader
outside the engine (PyIceberg, DuckDB) may have opened within the last hour.
"""

from __future__ import annotations

import time

from hypaware.engine import jobs as engine_jobs
from hypaware.iceberg.metadata import TableMetadata, TableSnapshot

GRACE_SECONDS = 3_600.0
# A snapshot is dated before its commit ends: a reader that starts in between gets the previous one.
COMMIT_SECONDS = 10.0
# Many snapshots slow down every commit: above this number the grace period is ten minutes.
CROWDED_SNAPSHOTS = 300
_CROWDED_GRACE_SECONDS = 600.0
# Expiry is a commit too: wait until it removes this many snapshots.
_MIN_EXPIRED = 20
_REPLACING_OPERATIONS = ("replace", "overwrite", "delete")


def expiry_horizon(known: TableMetadata, force: bool = False, coming: int = 0) -> float:
    """Return the time from which on every current snapshot is kept. `force` ignores readers outside the engine."""
    oldest_start = engine_jobs.oldest_job_start() - COMMIT_SECONDS
    if force:
        return oldest_start
    grace = GRACE_SECONDS if len(known.snapshots) + coming <= CROWDED_SNAPSHOTS else _CROWDED_GRACE_SECONDS
    return min(oldest_start, time.time() - grace)


def find_snapshot_at(known: TableMetadata, moment: float) -> TableSnapshot | None:
    """Return the snapshot that was current at a time, or None if all remaining ones are newer."""
    return max(
        (snapshot for snapshot in known.snapshots if snapshot.at <= moment),
        key=lambda snapshot: snapshot.at,
        default=None,
    )


def list_expirable(known: TableMetadata, moment: float, keep: int = 1) -> list[TableSnapshot]:
    """Return the snapshots that were no longer current at a time, except for the newest `keep` snapshots."""
    oldest_kept = find_snapshot_at(known, moment)
    if oldest_kept is None:
        return []
    newest = sorted(known.snapshots, key=lambda snapshot: snapshot.at, reverse=True)[:keep]
    return [
        snapshot
        for snapshot in known.snapshots
        if snapshot.at < oldest_kept.at and snapshot not in newest and snapshot.id != known.current_id
    ]


def is_expiry_due(known: TableMetadata) -> bool:
    """Return whether enough snapshots have expired, or an expired one holds files that can be deleted."""
    moment = expiry_horizon(known)
    old = list_expirable(known, moment)
    if len(old) >= _MIN_EXPIRED:
        return True
    oldest = min((snapshot.at for snapshot in old), default=moment)
    return any(
        oldest < snapshot.at <= moment and snapshot.summary.get("operation") in _REPLACING_OPERATIONS
        for snapshot in known.snapshots
    )
