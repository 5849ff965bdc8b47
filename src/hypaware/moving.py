"""A home that lies elsewhere than it did: what it needs before anything in it may be read or written.

Moved, its tables are told where they lie now, and it is the same home as before. A copy is told as well, so that it
never touches a file of the original, and begins a life of its own: a new incarnation, which leaps over the sequences
that the original gives out from now on. What it had not delivered, the original may have delivered meanwhile: its
destination is asked, or it waits for its user. The order is lake, state, side file; whoever is killed in between leaves
a home that still says it belongs elsewhere, and it is done again.
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

# Far more than a home gives out in its life; four million copies of copies still fit.
LEAP = 2**40


def whereabouts(home: Home, known: Identity | None, held: Mirror | None) -> Whereabouts:
    """By the state, else by its side file. If both are gone, only the catalog can tell, and not a move from a copy."""
    from hypaware.lake import relocate

    if told := known or (held.identity if held else None):
        return told.whereabouts(home.root)
    return Whereabouts.COPIED if relocate.names_another_place(home) else Whereabouts.HERE


def bring_lake(home: Home) -> None:
    from hypaware.lake import relocate

    residents.wait_until_gone(home)
    relocate.relocate(home)


def begin_anew(connection: Connection, home: Home, known: Identity) -> Identity:
    """The next life of a copy, in the state and in the lake: no loss of either makes it forget the leap."""
    from hypaware.lake import relocate
    from hypaware.lake.metadata import FLOOR, FORKS, INCARNATION, PARENTS
    from hypaware.state import flushes

    identity = known.placed(home.root).reborn(flushes.next_seq(connection) - 1)
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
    """A stream that had delivered everything goes on; of any other nobody here knows how far it has come since."""
    from hypaware.state import flushes, intents, streams

    high_water = flushes.high_water(connection)
    # Rows of these may be in the lake already, of any source, and both homes will record them.
    unsettled = {flush.dataset for flush in flushes.unfinished(connection)}
    streams.lost_memory(connection)
    planned = intents.with_pending(connection)
    for stream in streams.all_streams(connection):
        reached = high_water.get(stream.key.dataset, {}).get(stream.key.source, 0)
        behind = stream.watermark is None or stream.watermark < reached
        if behind or stream.key in planned or stream.key.dataset in unsettled:
            intents.cancel(connection, stream.key)
            streams.restore(connection, replace(stream, watermark=None, history=streams.LOST))
    streams.stepped(connection)
