"""Rebuilds the state from the lake if it is lost, damaged, or older than the lake and the mirror.

Sequences never restart at 1: the next sequence is above the mirror's, above every table's floor and above every row.
A rebuilt state is a new incarnation. The old incarnation is kept, so that destinations can still be queried under it.

@ref homes#state
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hypaware.home import Home
from hypaware.home.identity import Identity, new_identity, pad_forks
from hypaware.iceberg import fsync, metadata
from hypaware.iceberg.metadata import RETAINED_FROM_PROPERTY, SEGMENTS_PROPERTY, TableMetadata
from hypaware.state import flushes, streams
from hypaware.state.mirror import Mirror, mark_unknown, restore_deliveries

if TYPE_CHECKING:
    from hypaware.state.store import Connection


@dataclass(frozen=True)
class LakeSummary:
    """Table metadata of the lake, read without Spark."""

    tables: dict[str, TableMetadata]
    floor: int
    """The highest sequence ever used, including those of damaged commits. None at or below it may be reused."""


def summarize_lake(home: Home) -> LakeSummary:
    tables: dict[str, TableMetadata] = {}
    floor = 0
    for entry in metadata.list_tables(home):
        for path in filter(None, (entry.metadata, entry.previous)):
            with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
                floor = max(floor, metadata.read_metadata(path).floor)
            # A damaged commit is rolled back later; its rows were never recorded.
            if not fsync.find_damage(path):
                tables[entry.name] = metadata.read_metadata(path)
                break
    return LakeSummary(tables, floor)


def raise_state_to(connection: Connection, lake: LakeSummary, mirror: Mirror | None) -> None:
    """Raise every counter of the state to at least the values of the lake and the mirror."""
    highest = lake.floor
    for dataset, table in lake.tables.items():
        by_source: dict[str, int] = {}
        try:
            files = list(metadata.iter_live_files(table))
        except (PermissionError, MemoryError):
            raise
        except Exception:
            # An older manifest is damaged, in one of many ways. The table waits for its rebuild, the others do not.
            files = []
        for file in files:
            if file.max_seq is not None:
                by_source[file.source] = max(file.max_seq, by_source.get(file.source, 0))
                highest = max(highest, file.max_seq)
        if RETAINED_FROM_PROPERTY in table.properties:
            # Retention may have removed the newest rows: a destination can have rows that the lake no longer has.
            by_source = dict.fromkeys(by_source, table.floor)
        flushes.raise_high_water(connection, dataset, by_source)
        segments = ",".join(snapshot.summary.get(SEGMENTS_PROPERTY, "") for snapshot in table.snapshots)
        flushes.mark_segments_committed(connection, dataset, filter(None, segments.split(",")))
    flushes.raise_next_sequence(connection, highest + 1)
    if mirror:
        flushes.raise_next_sequence(connection, mirror.next_seq)
        for dataset, by_source in mirror.high_water.items():
            flushes.raise_high_water(connection, dataset, by_source)


def recover_deliveries(connection: Connection, lake: LakeSummary, mirror: Mirror | None) -> None:
    """Restore the delivery record from the mirror. Without a mirror, mark all deliveries as unknown."""
    if mirror and mirror.deliveries:
        restore_deliveries(connection, mirror.deliveries)
    elif not mirror and lake.tables:
        mark_unknown(connection, streams.list_streams(connection))


def derive_identity(home: Home, lake: LakeSummary, mirror: Mirror | None, through: int) -> Identity:
    """Return the identity of a home whose state was lost.

    It has the same gateway id and a new incarnation, which begins above every sequence that was used before. Without
    any trace of an earlier incarnation, it is a new identity.
    """
    if mirror:
        return mirror.identity.at(home.root).next_incarnation(through)
    last, parents, forks = _latest_incarnation(lake)
    if last:
        parents, forks = (*parents, last), (*forks, through)
    recorded = [table.properties.get(metadata.GATEWAY_ID_PROPERTY) for table in lake.tables.values()]
    gateway_id = next(filter(None, reversed(recorded)), None)
    if gateway_id is None:
        # Rows in the spool carry the id of this file; under another id they would count as foreign.
        with contextlib.suppress(OSError, UnicodeDecodeError):
            gateway_id = home.gateway.read_text("utf-8").strip()
    return new_identity(home.root, gateway_id, parents, forks)


def latest_identity(known: Identity, lake: LakeSummary) -> Identity:
    """Return the identity with the lake's incarnation if that is later than the one in a restored state."""
    last, parents, forks = _latest_incarnation(lake)
    if last and known.incarnation in parents:
        return replace(known, incarnation=last, parents=parents, forks=forks)
    return known


def _latest_incarnation(lake: LakeSummary) -> tuple[str | None, tuple[str, ...], tuple[int, ...]]:
    """Return incarnation, parents and forks from the table with the most parents; tables are updated one by one."""
    last: str | None = None
    parents: tuple[str, ...] = ()
    forks: tuple[int, ...] = ()
    for table in lake.tables.values():
        found = tuple(filter(None, table.properties.get(metadata.PARENTS_PROPERTY, "").split(",")))
        incarnation = table.properties.get(metadata.INCARNATION_PROPERTY)
        if incarnation and (last is None or len(found) > len(parents)):
            recorded = filter(None, table.properties.get(metadata.FORKS_PROPERTY, "").split(","))
            last, parents, forks = incarnation, found, pad_forks(recorded, found)
    return last, parents, forks
