"""Which snapshots of a table may go. There is one rule, for all who remove some: flushes in passing, and expiry.

A snapshot is current until the next one is committed, and who began to read then reads that one to its end. So what was
current when the oldest running job began stays, and so does what readers outside the engine (PyIceberg, DuckDB), whom
nobody can ask, may have found an hour ago.
"""

from __future__ import annotations

import time

from hypaware.lake import turns
from hypaware.lake.metadata import Metadata, Snapshot

GRACE = 3_600.0
# A snapshot is dated before its commit ends: who began to read in between has found the one before.
COMMIT_TAKES = 10.0
# A burst of commits must not make each further one slow: beyond so many snapshots ten minutes have to do.
CROWDED = 300
_GRACE_WHEN_CROWDED = 600.0
# A commit for each old snapshot would be one more to keep.
_WORTH_A_COMMIT = 20
_REPLACING = ("replace", "overwrite", "delete")


def horizon(known: Metadata, force: bool = False, coming: int = 0) -> float:
    """What was current then, or later, stays. With `force` nobody outside the engine is waited for.

    `coming`: so many snapshots more are there by then.
    """
    began = turns.oldest_running() - COMMIT_TAKES
    if force:
        return began
    grace = GRACE if len(known.snapshots) + coming <= CROWDED else _GRACE_WHEN_CROWDED
    return min(began, time.time() - grace)


def current_at(known: Metadata, moment: float) -> Snapshot | None:
    """None if the oldest snapshot that is left is younger."""
    return max(
        (snapshot for snapshot in known.snapshots if snapshot.at <= moment),
        key=lambda snapshot: snapshot.at,
        default=None,
    )


def expirable(known: Metadata, moment: float, keep: int = 1) -> list[Snapshot]:
    """Snapshots that were no longer current at that time, but for the newest `keep` of all."""
    began = current_at(known, moment)
    if began is None:
        return []
    newest = sorted(known.snapshots, key=lambda snapshot: snapshot.at, reverse=True)[:keep]
    return [
        snapshot
        for snapshot in known.snapshots
        if snapshot.at < began.at and snapshot not in newest and snapshot.id != known.current_id
    ]


def is_due(known: Metadata) -> bool:
    """Whether enough has gathered, or space waits to be freed."""
    moment = horizon(known)
    old = expirable(known, moment)
    if len(old) >= _WORTH_A_COMMIT:
        return True
    oldest = min((snapshot.at for snapshot in old), default=moment)
    return any(
        oldest < snapshot.at <= moment and snapshot.summary.get("operation") in _REPLACING
        for snapshot in known.snapshots
    )
