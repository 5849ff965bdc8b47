"""What earlier imports took, read without opening the home: for plans and dry runs, which change nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from hypaware.errors import StateError
from hypaware.home import Home
from hypaware.lake import metadata
from hypaware.lake.metadata import FLUSH_ID
from hypaware.looking import has_table, look_into
from hypaware.state.source_mark import SourceMark, from_row


def known(home: Home, provider: str, dataset: str) -> dict[str, SourceMark]:
    """Nothing where there is no state, or one from before imports.

    Marks of a flush that landed and was not recorded count as well: the next run will find that out and record it.
    """
    with _state(home) as state:
        if state is None or not has_table(state, "sources"):
            return {}
        state.row_factory = sqlite3.Row
        where = "WHERE provider = ? AND dataset = ?"
        found = [dict(row) for row in state.execute(f"SELECT * FROM sources {where}", (provider, dataset))]
        landed = _landed(home, dataset)
        for row in state.execute(f"SELECT * FROM pending_sources {where}", (provider, dataset)):
            values = dict(row)
            if values.pop("flush_id") in landed:
                found.append(values)
    return {row["path"]: from_row(row) for row in found}


def recorded_through(home: Home, dataset: str) -> int:
    with _state(home) as state:
        if state is None or not has_table(state, "high_water"):
            return 0
        return int(state.execute("SELECT max(seq) FROM high_water WHERE dataset = ?", (dataset,)).fetchone()[0] or 0)


@contextmanager
def _state(home: Home) -> Iterator[sqlite3.Connection | None]:
    if not home.state.is_file():
        yield None
        return
    try:
        with look_into(home.state) as state:
            yield state
    except sqlite3.Error as error:
        raise StateError(f"the state {home.state} cannot be read: {error}", repair="hyp verify --repair") from error


def _landed(home: Home, dataset: str) -> set[str]:
    """Flushes that the table's snapshots tell of."""
    entry = metadata.entry(home, dataset)
    if entry is None:
        return set()
    return {found for snapshot in metadata.read(entry.metadata).snapshots if (found := snapshot.summary.get(FLUSH_ID))}
