"""Recover interrupted flushes: each one was either committed, and is recorded, or is discarded.

@ref flush#recover
"""

from __future__ import annotations

from collections.abc import Collection

from hypaware import durable
from hypaware.home import Home
from hypaware.lake import rejects, settlements
from hypaware.lake.committer import LakeTable
from hypaware.spool import segments
from hypaware.state import flushes, mirror
from hypaware.state.flushes import Flush, Outcome
from hypaware.state.store import Store


def settle_unfinished(home: Home, store: Store, table: LakeTable, dataset: str) -> None:
    """Finish or discard the interrupted flushes. The caller holds the lake's lock, so their process has ended."""
    with store.reading() as connection:
        interrupted = flushes.unfinished(connection, dataset)
    for flush in interrupted:
        if committed := table.find_flush(flush):
            rejected = rejects.count(home, flush)
            duplicates = max(0, sum(segment.rows for segment in flush.segments) - committed.rows - rejected)
            record(home, store, flush, Outcome(committed.high_water, committed.rows, duplicates, rejected))
            remove_segments(home, flush)
        else:
            burn(home, store, table, flush)


def record(home: Home, store: Store, flush: Flush, outcome: Outcome) -> None:
    with store.transaction() as connection:
        flushes.record(connection, flush, outcome)
    mirror.write(home.mirror, store)


def remove_segments(home: Home, flush: Flush) -> None:
    """Remove the segments of a flush. An import has none."""
    if not flush.segments:
        return
    folder = segments.folder(home, flush.dataset)
    committed = {segment.name for segment in flush.segments}
    for segment in segments.sealed_segments(folder):
        if segment.name in committed:
            segment.path.unlink(missing_ok=True)
    durable.fsync_dir(folder.sealed)


def burn(home: Home, store: Store, table: LakeTable, flush: Flush, blamed: Collection[str] | None = None) -> None:
    """Discard a flush that was not committed. Its data files have its id in their names, and no table uses them."""
    files = list(table.data_root.glob(f"*/*/{flush.id}-*.parquet"))
    rejects.discard(home, flush)
    settlements.discard(home, flush)
    for path in files:
        path.unlink(missing_ok=True)
    with store.transaction() as connection:
        flushes.burn(connection, flush, blamed=blamed)
