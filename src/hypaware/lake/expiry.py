"""Decide which snapshots of a table may be removed. Flushes and `hyp maintain` use the same rule.

A snapshot is current until the next one is committed, and a reader keeps using the snapshot that it started with. So
the snapshot that was current when the oldest running job started is kept, and so is every snapshot that a reader
outside the engine (PyIceberg, DuckDB) may have opened within the last hour.
"""

from __future__ import annotations

import time

from hypaware.lake import turns
from hypaware.lake.metadata import Metadata, Snapshot

GRACE = 3_600.0
# A snapshot is dated before its commit ends: a reader that starts in between gets the previous one.
COMMIT_TAKES = 10.0
# Many snapshots slow down every commit: above this number the grace period is ten minutes.
CROWDED = 300
_GRACE_WHEN_CROWDED = 600.0
# Expiry is a commit too: wait until it removes this many snapshots.
_WORTH_A_COMMIT = 20
_REPLACING = ("replace", "overwrite", "delete")


def horizon(known: Metadata, force: bool = False, coming: int = 0) -> float:
    """Return the time from which on every current snapshot is kept.

    `force` ignores readers outside the engine. `coming` is the number of snapshots that will be added before expiry.
    """
    oldest_start = turns.oldest_running() - COMMIT_TAKES
    if force:
        return oldest_start
    grace = GRACE if len(known.snapshots) + coming <= CROWDED else _GRACE_WHEN_CROWDED
    return min(oldest_start, time.time() - grace)


def current_at(known: Metadata, moment: float) -> Snapshot | None:
    """Return the snapshot that was current at a time, or None if all remaining ones are newer."""
    return max(
        (snapshot for snapshot in known.snapshots if snapshot.at <= moment),
        key=lambda snapshot: snapshot.at,
        default=None,
    )


def expirable(known: Metadata, moment: float, keep: int = 1) -> list[Snapshot]:
    """Return the snapshots that were no longer current at a time, except for the newest `keep` snapshots."""
    oldest_kept = current_at(known, moment)
    if oldest_kept is None:
        return []
    newest = sorted(known.snapshots, key=lambda snapshot: snapshot.at, reverse=True)[:keep]
    return [
        snapshot
        for snapshot in known.snapshots
        if snapshot.at < oldest_kept.at and snapshot not in newest and snapshot.id != known.current_id
    ]


def is_due(known: Metadata) -> bool:
    """Tell whether enough snapshots have expired, or an expired one holds files that can be deleted."""
    moment = horizon(known)
    old = expirable(known, moment)
    if len(old) >= _WORTH_A_COMMIT:
        return True
    oldest = min((snapshot.at for snapshot in old), default=moment)
    return any(
        oldest < snapshot.at <= moment and snapshot.summary.get("operation") in _REPLACING
        for snapshot in known.snapshots
    )
