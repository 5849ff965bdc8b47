"""Settling what an earlier process left unfinished: each reserved flush either landed, and is recorded, or is burnt.

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
    """With the lake's lock held: whoever reserved these is gone, and its JVM too."""
    with store.reading() as connection:
        left = flushes.unfinished(connection, dataset)
    for flush in left:
        if landed := table.landed(flush):
            refused = rejects.count(home, flush)
            duplicates = max(0, sum(segment.rows for segment in flush.segments) - landed.rows - refused)
            record(home, store, flush, Outcome(landed.high_water, landed.rows, duplicates, refused))
            remove_segments(home, flush)
        else:
            burn(home, store, table, flush)


def record(home: Home, store: Store, flush: Flush, outcome: Outcome) -> None:
    with store.transaction() as connection:
        flushes.record(connection, flush, outcome)
    mirror.write(home.mirror, store)


def remove_segments(home: Home, flush: Flush) -> None:
    """An import has none."""
    if not flush.segments:
        return
    folder = segments.folder(home, flush.dataset)
    wanted = {segment.name for segment in flush.segments}
    for segment in segments.sealed_segments(folder):
        if segment.name in wanted:
            segment.path.unlink(missing_ok=True)
    durable.fsync_dir(folder.sealed)


def burn(home: Home, store: Store, table: LakeTable, flush: Flush, guilty: Collection[str] | None = None) -> None:
    """The flush did not land. Its data files carry its id in their names and are named by nothing."""
    files = list(table.data_root.glob(f"*/*/{flush.id}-*.parquet"))
    rejects.discard(home, flush)
    settlements.discard(home, flush)
    for path in files:
        path.unlink(missing_ok=True)
    with store.transaction() as connection:
        flushes.burn(connection, flush, guilty=guilty)
