"""Rebuild the state from the lake if it is lost, damaged, or older than the lake and the mirror.

Sequences never restart at 1: the next sequence is above the mirror's, above every table's floor and above every row.
A rebuilt state is a new incarnation. The old incarnation is kept, so that destinations can still be queried under it.

@ref homes#state
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from hypaware.home import Home
from hypaware.lake import metadata, secure
from hypaware.lake.metadata import RETAINED_FROM, SEGMENTS, Metadata
from hypaware.state import deliveries, flushes, identity
from hypaware.state.mirror import Mirror


@dataclass(frozen=True)
class LakeFacts:
    """Table metadata of the lake, read without Spark."""

    tables: dict[str, Metadata]
    floor: int
    """The highest sequence ever used, including those of damaged commits. None at or below it may be reused."""

    @property
    def property_of(self) -> dict[str, str]:
        return {key: value for table in self.tables.values() for key, value in table.properties.items()}


def read_facts(home: Home) -> LakeFacts:
    tables: dict[str, Metadata] = {}
    floor = 0
    for entry in metadata.entries(home):
        for path in filter(None, (entry.metadata, entry.previous)):
            with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
                floor = max(floor, metadata.read(path).floor)
            # A damaged commit is rolled back later; its rows were never recorded.
            if not secure.damage(path):
                tables[entry.name] = metadata.read(path)
                break
    return LakeFacts(tables, floor)


def raise_to(connection: Connection, facts: LakeFacts, mirror: Mirror | None) -> None:
    """Raise every counter of the state to at least the values of the lake and the mirror."""
    highest = facts.floor
    for dataset, table in facts.tables.items():
        by_source: dict[str, int] = {}
        for file in metadata.live_files(table):
            if file.max_seq is not None:
                by_source[file.source] = max(file.max_seq, by_source.get(file.source, 0))
                highest = max(highest, file.max_seq)
        if RETAINED_FROM in table.properties:
            # Retention may have removed the newest rows: a destination can have rows that the lake no longer has.
            by_source = dict.fromkeys(by_source, table.floor)
        flushes.raise_high_water(connection, dataset, by_source)
        committed = [
            name for snapshot in table.snapshots for name in snapshot.summary.get(SEGMENTS, "").split(",") if name
        ]
        flushes.mark_committed(connection, dataset, committed)
    flushes.raise_next_seq(connection, highest + 1)
    if mirror:
        flushes.raise_next_seq(connection, mirror.next_seq)
        for dataset, by_source in mirror.high_water.items():
            flushes.raise_high_water(connection, dataset, by_source)


def recall_deliveries(connection: Connection, facts: LakeFacts, mirror: Mirror | None) -> None:
    """Restore the delivery record from the mirror. Without a mirror, mark all deliveries as unknown."""
    if mirror and mirror.deliveries:
        deliveries.restore(connection, deliveries.from_json(mirror.deliveries))
    elif not mirror and facts.tables:
        deliveries.distrust(connection)


def create_identity(home: Home, facts: LakeFacts, mirror: Mirror | None, through: int) -> identity.Identity:
    """Return the identity of a home whose state was lost.

    It has the same gateway id and a new incarnation, which begins above every sequence that was used before. Without
    any trace of an earlier incarnation, it is a new identity.
    """
    if mirror:
        return mirror.identity.at(home.root).next_incarnation(through)
    last, parents, forks = _last_life(facts)
    if last:
        parents, forks = (*parents, last), (*forks, through)
    gateway_id = facts.property_of.get(metadata.GATEWAY_ID) or _noted_gateway(home)
    return identity.new_identity(home.root, gateway_id, parents, forks)


def _noted_gateway(home: Home) -> str | None:
    """Return the gateway id that rows in the spool carry; under another id they would count as foreign."""
    try:
        return home.gateway.read_text("utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def latest(known: identity.Identity, facts: LakeFacts) -> identity.Identity:
    """Return the identity with the lake's incarnation if that is later than the one in a restored state."""
    last, parents, forks = _last_life(facts)
    if last and known.incarnation in parents:
        return replace(known, incarnation=last, parents=parents, forks=forks)
    return known


def _last_life(facts: LakeFacts) -> tuple[str | None, tuple[str, ...], tuple[int, ...]]:
    """Return incarnation, parents and forks from the table with the most parents; tables are updated one by one."""
    last: str | None = None
    parents: tuple[str, ...] = ()
    forks: tuple[int, ...] = ()
    for table in facts.tables.values():
        found = tuple(filter(None, table.properties.get(metadata.PARENTS, "").split(",")))
        if (incarnation := table.properties.get(metadata.INCARNATION)) and (last is None or len(found) > len(parents)):
            recorded = filter(None, table.properties.get(metadata.FORKS, "").split(","))
            last, parents, forks = incarnation, found, identity.padded(recorded, found)
    return last, parents, forks
