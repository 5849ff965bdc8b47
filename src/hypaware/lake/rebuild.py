"""State from the lake: when the state is lost, damaged, or older than what the lake and the side file say.

It never starts again at 1: the next sequence lies above the mirror's, above every table's floor and above every row.
A rebuilt state is a new incarnation; the old one is kept, so that a destination can still be asked under it.

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
    """What the lake itself knows, read without Spark."""

    tables: dict[str, Metadata]
    floor: int
    """No sequence at or below it may be given out again; also what a damaged commit had used counts."""

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
            # A damaged commit will be stepped back from: what it holds was never recorded.
            if not secure.damage(path):
                tables[entry.name] = metadata.read(path)
                break
    return LakeFacts(tables, floor)


def raise_to(connection: Connection, facts: LakeFacts, mirror: Mirror | None) -> None:
    """Nothing in the state may lie below what the lake and the mirror have seen."""
    highest = facts.floor
    for dataset, table in facts.tables.items():
        by_source: dict[str, int] = {}
        for file in metadata.live_files(table):
            if file.max_seq is not None:
                by_source[file.source] = max(file.max_seq, by_source.get(file.source, 0))
                highest = max(highest, file.max_seq)
        if RETAINED_FROM in table.properties:
            # Of the days that are gone some may have come last: a destination has rows that the lake has no more.
            by_source = dict.fromkeys(by_source, table.floor)
        flushes.raise_high_water(connection, dataset, by_source)
        landed = [
            name for snapshot in table.snapshots for name in snapshot.summary.get(SEGMENTS, "").split(",") if name
        ]
        flushes.mark_committed(connection, dataset, landed)
    flushes.raise_next_seq(connection, highest + 1)
    if mirror:
        flushes.raise_next_seq(connection, mirror.next_seq)
        for dataset, by_source in mirror.high_water.items():
            flushes.raise_high_water(connection, dataset, by_source)


def recall_deliveries(connection: Connection, facts: LakeFacts, mirror: Mirror | None) -> None:
    """A state that was lost or is behind knows too little of what was delivered: the side file knows, or nobody."""
    if mirror and mirror.deliveries:
        deliveries.restore(connection, deliveries.from_json(mirror.deliveries))
    elif not mirror and facts.tables:
        deliveries.distrust(connection)


def create_identity(home: Home, facts: LakeFacts, mirror: Mirror | None, through: int) -> identity.Identity:
    """Of a home whose state is gone: the same gateway, born again after a sequence that none of its lives has passed.

    With no trace of an earlier life, a new one.
    """
    if mirror:
        return mirror.identity.placed(home.root).reborn(through)
    last, parents, forks = _last_life(facts)
    if last:
        parents, forks = (*parents, last), (*forks, through)
    gateway_id = facts.property_of.get(metadata.GATEWAY_ID) or _noted_gateway(home)
    return identity.new_identity(home.root, gateway_id, parents, forks)


def _noted_gateway(home: Home) -> str | None:
    """Rows that wait in the spool carry the gateway's id: under another one they would be a stranger's."""
    try:
        return home.gateway.read_text("utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def latest(known: identity.Identity, facts: LakeFacts) -> identity.Identity:
    """The home as the lake knows it, where that has seen later lives than a restored state has."""
    last, parents, forks = _last_life(facts)
    if last and known.incarnation in parents:
        return replace(known, incarnation=last, parents=parents, forks=forks)
    return known


def _last_life(facts: LakeFacts) -> tuple[str | None, tuple[str, ...], tuple[int, ...]]:
    """Incarnation, parents and forks, by the table that remembers most: they are told one after the other."""
    last: str | None = None
    parents: tuple[str, ...] = ()
    forks: tuple[int, ...] = ()
    for table in facts.tables.values():
        found = tuple(filter(None, table.properties.get(metadata.PARENTS, "").split(",")))
        if (incarnation := table.properties.get(metadata.INCARNATION)) and (last is None or len(found) > len(parents)):
            told = filter(None, table.properties.get(metadata.FORKS, "").split(","))
            last, parents, forks = incarnation, found, identity.padded(told, found)
    return last, parents, forks
