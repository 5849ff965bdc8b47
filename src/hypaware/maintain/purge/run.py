"""One purge, from tombstones to verification. The steps are ordered so that a kill at any point does no harm.

@ref keeping#purge
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from hypaware import faults
from hypaware.capture import seen_folders
from hypaware.errors import Cancelled, HypError
from hypaware.lake import keys, metadata, standing, tombstones
from hypaware.maintain.purge import at_work, free_pages, letters, proof, scratch, settled, spooled, table_rows
from hypaware.maintain.purge.purging import MOST_HASHES, Gone, Purging, Report
from hypaware.maintain.purge.selection import Selector, left_alone
from hypaware.model import datasets
from hypaware.model.datasets import Dataset
from hypaware.state import sources

_after_lake = faults.point("maintain.purge.after-lake", "the lake is clean, rejects and dead letters are not")
_before_finish = faults.point(
    "maintain.purge.before-finish", "everything is clean, the purge is still marked unfinished"
)


def run(context: Purging) -> Report:
    """Purge the selected rows and return the report."""
    standing.check_tables(context.home)
    report, removed_rows = Report(context.selector, dry_run=False), Gone()
    unfinished = tombstones.unfinished(context.home)
    context = replace(context, resumed=any(stone.command in unfinished for stone in context.selector.tombstones))
    report.resumed = context.resumed
    tombstone_ids = _set_tombstones(context, report)
    report.left_alone = left_alone(context.selector, datasets.all())
    settled.settle_all(context, removed_rows)
    spooled.bury(context, tombstone_ids)
    spooled.flush(context, report)
    context = replace(context, sessions=at_work.sessions(context))
    _tables(context, report, removed_rows, tombstone_ids)
    _after_lake()
    spooled.scrub(context, report, removed_rows)
    letters.scrub(context, report, removed_rows)
    report.delivered = removed_rows.copies
    if context.allow_reimport:
        _forget_checkpoints(context)
    if context.selector.kind == "cwd":
        seen_folders.make_nameless(context.home, context.selector.values)
    free_pages.clean(context.home, context.note)
    scratch.clear(context)
    if context.resumed and tombstone_ids:
        # Rows that an earlier attempt removed are known only by their tombstones.
        removed_rows.add([], tombstones.parts(context.home, MOST_HASHES))
    context.progress("searching every file of the home", 0, 0)
    proof.prove(context, report, removed_rows)
    if tombstone_ids and not report.remaining:
        _before_finish()
        tombstones.finish(context.home, tombstone_ids, report.rows + report.spool_rows, _now())
    report.tombstones["parts"] = tombstones.count(context.home)
    return report


def _set_tombstones(context: Purging, report: Report) -> list[int]:
    """Set the tombstones, so that no row comes back once removal starts; or lift them if reimport is allowed."""
    if context.allow_reimport:
        named = context.selector.tombstones
        if context.selector.kind == "before" and tombstones.standing(context.home, named):
            # Only the key index still knows the rows that that purge removed. It is deleted before the tombstone is
            # lifted: a run killed in between finds the tombstone and deletes the index again.
            keys.remove(context.home.keys)
        report.tombstones = {"set": 0, "lifted": tombstones.lift(context.home, named, _now())}
        return []
    tombstone_ids = tombstones.set_up(context.home, context.selector.tombstones, _now())
    report.tombstones = {"set": len(tombstone_ids), "lifted": 0}
    return tombstone_ids


def _tables(context: Purging, report: Report, removed_rows: Gone, tombstone_ids: list[int]) -> None:
    """Purge all tables. An error in one does not stop the others; the first error is raised at the end."""
    present = {entry.name for entry in metadata.entries(context.home)}
    errors: list[HypError] = []
    for dataset, selector in _purge_order(context):
        if dataset.name in present:
            is_own = selector is context.selector
            table_context = context if is_own else replace(context, selector=selector)
            try:
                report.datasets.append(
                    table_rows.remove(table_context, dataset, tombstone_ids if is_own else (), removed_rows)
                )
            except Cancelled:
                raise
            except HypError as error:
                errors.append(error)
    if errors:
        raise errors[0]


def _purge_order(context: Purging) -> list[tuple[Dataset, Selector]]:
    """Put datasets purged by session before those that determine the sessions: after a kill these still can."""
    found = [(dataset, selector) for dataset in datasets.all() if (selector := context.for_dataset(dataset))]
    return sorted(found, key=lambda each: each[1] is context.selector)


def _forget_checkpoints(context: Purging) -> None:
    """Forget import checkpoints: a row does not name its transcript, so an import must read all of them again."""
    with context.store.transaction() as connection:
        for dataset in datasets.all():
            if context.selector.column(dataset) is not None:
                sources.forget(connection, dataset.name)


def _now() -> str:
    return datetime.now(UTC).isoformat()
