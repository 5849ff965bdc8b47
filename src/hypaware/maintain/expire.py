"""Expiry: remove snapshots that no reader can be using, the files that only they reference, and orphaned files.

No row is removed. The caller holds `turns.keeping`. While files are removed no other job changes the table, and its
current metadata is durable before the first file is removed.

@ref keeping#expiry
"""

from __future__ import annotations

from hypaware import faults
from hypaware.lake import expiry, metadata, secure, standing, turns
from hypaware.lake.committer import LakeTable
from hypaware.maintain import generation, orphans
from hypaware.maintain.orphans import Orphans
from hypaware.maintain.report import Report, many
from hypaware.maintain.work import Work
from hypaware.state import flushes

_before_commit = faults.point(
    "maintain.expire.before-commit", "old snapshots are about to be expired, everything is durable"
)
_after_commit = faults.point("maintain.expire.after-commit", "old snapshots are expired, the commit is not durable yet")


def run(context: Work, report: Report) -> None:
    """Expire old snapshots and remove orphaned files."""
    with context.store.reading() as connection:
        recorded = flushes.recorded_through(connection, context.dataset.name)
    # Files left by a rollback look like orphans, but may be the only copy of their rows.
    standing.check(context.home, context.dataset.name, recorded)
    if context.dry_run:
        with turns.changing(context.dataset.name, context.check_cancelled):
            horizon = expiry.horizon(context.table_metadata, context.force, coming=context.effects.snapshots)
            report.snapshots_expired += len(expiry.expirable(context.table_metadata, horizon))
            orphaned = _orphans(context)
        report.orphans_removed += orphaned.count
        report.orphan_bytes += orphaned.bytes
        _report(report, orphaned, dry_run=True)
        return
    with context.lock_table() as table:
        generation.clear(context.home, context.dataset.name)
        report.snapshots_expired += _expire(context, table)
        orphaned = _orphans(context)
        orphans.remove(orphaned)
    report.orphans_removed += orphaned.count
    report.orphan_bytes += orphaned.bytes
    _report(report, orphaned)


def _expire(context: Work, table: LakeTable) -> int:
    horizon = expiry.horizon(context.table_metadata, context.force)
    if not expiry.expirable(context.table_metadata, horizon):
        return 0
    _before_commit()
    count = table.expire(horizon)
    _after_commit()
    secure.secure(context.home, context.dataset.name)
    return count


def _orphans(context: Work) -> Orphans:
    entry = metadata.entry(context.home, context.dataset.name)
    assert entry is not None
    with context.store.reading() as connection:
        unfinished = [flush.id for flush in flushes.unfinished(connection, context.dataset.name)]
    return orphans.find(context.home, entry, unfinished, before=expiry.horizon(context.table_metadata, context.force))


def _report(report: Report, orphaned: Orphans, *, dry_run: bool = False) -> None:
    expired, removed = ("would expire", "would remove") if dry_run else ("expired", "removed")
    if report.snapshots_expired:
        report.reasons.append(f"{expired} {many(report.snapshots_expired, 'snapshot')}")
    if orphaned:
        size = f"{orphaned.bytes / 1e6:,.1f} MB"
        report.reasons.append(f"{removed} {many(orphaned.count, 'unreferenced file')}, {size}")
