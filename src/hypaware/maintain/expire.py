"""Expiry: snapshots that nobody can be reading go, with the files that only they named; then what nothing names.

Rows stay. The caller keeps the table; while files go nobody changes it either, and what is current is durable before
the first one goes.

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

_before_commit = faults.point("maintain.expire.before-commit", "old snapshots are about to go, all is durable")
_after_commit = faults.point("maintain.expire.after-commit", "old snapshots are gone, which is not durable")


def run(work: Work, report: Report) -> None:
    with work.store.reading() as connection:
        recorded = flushes.recorded_through(connection, work.dataset.name)
    # What a rollback has left behind looks like rubbish, and may be all that there is of those rows.
    standing.check(work.home, work.dataset.name, recorded)
    if work.dry_run:
        with turns.changing(work.dataset.name, work.check_cancelled):
            moment = expiry.horizon(work.known, work.force, coming=work.foreseen.snapshots)
            report.snapshots_expired += len(expiry.expirable(work.known, moment))
            found = _orphans(work)
        report.orphans_removed += found.count
        report.orphan_bytes += found.bytes
        _tell(report, found, dry_run=True)
        return
    with work.changing() as table:
        generation.clear(work.home, work.dataset.name)
        report.snapshots_expired += _expire(work, table)
        found = _orphans(work)
        orphans.remove(found)
    report.orphans_removed += found.count
    report.orphan_bytes += found.bytes
    _tell(report, found)


def _expire(work: Work, table: LakeTable) -> int:
    moment = expiry.horizon(work.known, work.force)
    if not expiry.expirable(work.known, moment):
        return 0
    _before_commit()
    gone = table.expire(moment)
    _after_commit()
    secure.secure(work.home, work.dataset.name)
    return gone


def _orphans(work: Work) -> Orphans:
    entry = metadata.entry(work.home, work.dataset.name)
    assert entry is not None
    with work.store.reading() as connection:
        unfinished = [flush.id for flush in flushes.unfinished(connection, work.dataset.name)]
    return orphans.find(work.home, entry, unfinished, before=expiry.horizon(work.known, work.force))


def _tell(report: Report, found: Orphans, *, dry_run: bool = False) -> None:
    expired, removed = ("would expire", "would remove") if dry_run else ("expired", "removed")
    if report.snapshots_expired:
        report.reasons.append(f"{expired} {many(report.snapshots_expired, 'snapshot')}")
    if found:
        size = f"{found.bytes / 1e6:,.1f} MB"
        report.reasons.append(f"{removed} {many(found.count, 'file')} that nothing needs any more, {size}")
