"""Relocation of a moved or copied home, before anything in it is read or written.

A moved home is the same home; its tables are rewritten to name their files at the new path. The tables of a copy are
rewritten too, so that it never touches a file of the original. A copy also becomes a new incarnation, which skips the
sequences that the original will allocate from now on. The original may deliver rows that the copy has not delivered,
so those streams ask their destination, or wait for the user. The order is lake, state, mirror. If the process is killed
in between, the state still names the old path, and the relocation runs again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypaware import residents
from hypaware.state.identity import Identity, Whereabouts

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from hypaware.home import Home
    from hypaware.state.mirror import Mirror

# Far more than a home allocates in its lifetime; a chain of four million copies still fits.
LEAP = 2**40


def whereabouts(home: Home, known: Identity | None, held: Mirror | None) -> Whereabouts:
    """Determine whether the home was moved or copied, from the state, or else from its mirror.

    Without either, only the catalog can show it. A move then counts as a copy.
    """
    from hypaware.lake import relocate

    if identity := known or (held.identity if held else None):
        return identity.locate(home.root)
    return Whereabouts.COPIED if relocate.names_another_place(home) else Whereabouts.HERE


def bring_lake(home: Home) -> None:
    from hypaware.lake import relocate

    residents.wait_until_gone(home)
    relocate.relocate(home)


def begin_anew(connection: Connection, home: Home, known: Identity) -> Identity:
    """Give a copy its own incarnation, in the state and in the lake, so that losing either keeps the skipped range."""
    from hypaware.lake import relocate
    from hypaware.lake.metadata import FLOOR, FORKS, INCARNATION, PARENTS
    from hypaware.state import flushes

    identity = known.at(home.root).next_incarnation(flushes.next_seq(connection) - 1)
    flushes.leap(connection, LEAP)
    distrust_undelivered(connection)
    relocate.stamp(
        home,
        {
            FLOOR: str(flushes.next_seq(connection) - 1),
            INCARNATION: identity.incarnation,
            PARENTS: ",".join(identity.parents),
            FORKS: ",".join(map(str, identity.forks)),
        },
    )
    return identity


def distrust_undelivered(connection: Connection) -> None:
    """Mark the watermark of every stream as unknown, except for streams that have delivered everything."""
    from hypaware.state import flushes, intents, streams

    high_water = flushes.high_water(connection)
    # Rows of these flushes may be in the lake already, from any source, and both homes will record them.
    uncertain = {flush.dataset for flush in flushes.unfinished(connection)}
    streams.lost_memory(connection)
    planned = intents.with_pending(connection)
    for stream in streams.all_streams(connection):
        reached = high_water.get(stream.key.dataset, {}).get(stream.key.source, 0)
        behind = stream.watermark is None or stream.watermark < reached
        if behind or stream.key in planned or stream.key.dataset in uncertain:
            intents.cancel(connection, stream.key)
            streams.restore(connection, replace(stream, watermark=None, history=streams.LOST))
    streams.stepped(connection)
