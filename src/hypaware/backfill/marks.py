"""Read checkpoints from the state without opening the home, for plans and dry runs, which change nothing."""

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
    """Return the checkpoints of a provider by path; empty if there is no state or it predates imports.

    Includes the checkpoints of a flush that was committed but not recorded: the next run detects and records it.
    """
    with _state(home) as state:
        if state is None or not has_table(state, "sources"):
            return {}
        state.row_factory = sqlite3.Row
        where = "WHERE provider = ? AND dataset = ?"
        rows = [dict(row) for row in state.execute(f"SELECT * FROM sources {where}", (provider, dataset))]
        landed = _landed(home, dataset)
        for row in state.execute(f"SELECT * FROM pending_sources {where}", (provider, dataset)):
            values = dict(row)
            if values.pop("flush_id") in landed:
                rows.append(values)
    return {row["path"]: from_row(row) for row in rows}


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
        raise StateError(f"cannot read the state {home.state}: {error}", repair="hyp verify --repair") from error


def _landed(home: Home, dataset: str) -> set[str]:
    """Return the ids of the flushes that the table's snapshots name."""
    entry = metadata.entry(home, dataset)
    if entry is None:
        return set()
    return {flush for snapshot in metadata.read(entry.metadata).snapshots if (flush := snapshot.summary.get(FLUSH_ID))}
