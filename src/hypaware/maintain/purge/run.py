"""One purge from its tombstones to its proof, in the order in which a kill at any moment does no harm.

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

_after_lake = faults.point("maintain.purge.after-lake", "the lake is clean, refused rows and dead letters are not")
_before_finish = faults.point("maintain.purge.before-finish", "all is clean, the purge still counts as unfinished")


def run(purging: Purging) -> Report:
    standing.check_tables(purging.home)
    report, gone = Report(purging.selector, dry_run=False), Gone()
    left = tombstones.unfinished(purging.home)
    purging = replace(purging, again=any(stone.words in left for stone in purging.selector.stones))
    report.again = purging.again
    stones = _set_up(purging, report)
    report.left_alone = left_alone(purging.selector, datasets.all())
    settled.settle_all(purging, gone)
    spooled.bury(purging, stones)
    spooled.flush(purging, report)
    purging = replace(purging, sessions=at_work.sessions(purging))
    _tables(purging, report, gone, stones)
    _after_lake()
    spooled.scrub(purging, report, gone)
    letters.scrub(purging, report, gone)
    report.delivered = gone.copies
    if purging.allow_reimport:
        _forget_marks(purging)
    if purging.selector.kind == "cwd":
        seen_folders.make_nameless(purging.home, purging.selector.values)
    free_pages.clean(purging.home, purging.note)
    scratch.clear(purging)
    if purging.again and stones:
        # What an earlier try removed is not known here by its rows, but by its tombstones.
        gone.add([], tombstones.parts(purging.home, MOST_HASHES))
    purging.progress("looking into every file of the home", 0, 0)
    proof.prove(purging, report, gone)
    if stones and not report.remaining:
        _before_finish()
        tombstones.finish(purging.home, stones, report.rows + report.spool_rows, _now())
    report.tombstones["parts"] = tombstones.count(purging.home)
    return report


def _set_up(purging: Purging, report: Report) -> list[int]:
    """Nothing of it may come back from the first row on; or all of it may, if that was asked for."""
    if purging.allow_reimport:
        named = purging.selector.stones
        if purging.selector.kind == "before" and tombstones.standing(purging.home, named):
            # The index still knows what that purge removed, and nobody else does. It goes first: who is killed in
            # between finds the stone standing, and comes here again.
            keys.remove(purging.home.keys)
        report.tombstones = {"set": 0, "lifted": tombstones.lift(purging.home, named, _now())}
        return []
    stones = tombstones.set_up(purging.home, purging.selector.stones, _now())
    report.tombstones = {"set": len(stones), "lifted": 0}
    return stones


def _tables(purging: Purging, report: Report, gone: Gone, stones: list[int]) -> None:
    """One table's trouble does not hold the others up; the first is raised when all had their turn."""
    present = {entry.name for entry in metadata.entries(purging.home)}
    troubles: list[HypError] = []
    for dataset, selector in _in_order(purging):
        if dataset.name in present:
            own = selector is purging.selector
            within = purging if own else replace(purging, selector=selector)
            try:
                report.datasets.append(table_rows.remove(within, dataset, stones if own else (), gone))
            except Cancelled:
                raise
            except HypError as trouble:
                troubles.append(trouble)
    if troubles:
        raise troubles[0]


def _in_order(purging: Purging) -> list[tuple[Dataset, Selector]]:
    """What is known by sessions goes before the rows that tell those sessions: killed in between, they still tell."""
    found = [(dataset, selector) for dataset in datasets.all() if (selector := purging.within(dataset))]
    return sorted(found, key=lambda each: each[1] is purging.selector)


def _forget_marks(purging: Purging) -> None:
    """An import must read again what it has read: nobody knows which transcript a row came from."""
    with purging.store.transaction() as connection:
        for dataset in datasets.all():
            if purging.selector.column(dataset) is not None:
                sources.forget(connection, dataset.name)


def _now() -> str:
    return datetime.now(UTC).isoformat()
