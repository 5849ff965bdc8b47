"""Segments that were in the spool of a home when it was copied. Original and copy both commit and deliver their rows.

The copy records their names. Once it has committed them, their ranges are *disputed*: a destination that drops rows by
their dedupe keys receives them, any other one only if the user allows it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hypaware.home import Home
from hypaware.state.schema import get_meta, set_meta

if TYPE_CHECKING:
    from hypaware.state.store import Connection

_KEY = "deliveries.inherited"


def record_inherited(connection: Connection, home: Home, fork: int) -> None:
    """Record the segments that are in the spool of a copy now; `fork` is the last sequence that both homes share."""
    files = (*home.spool.glob("*/active/*"), *home.spool.glob("*/sealed/*"))
    add_inherited(connection, {path.name.partition(".")[0]: fork for path in files})


def list_inherited(connection: Connection) -> dict[str, int]:
    """Return the fork of each segment by its name, without the number of rows, which is added when it is sealed."""
    found: dict[str, int] = json.loads(get_meta(connection, _KEY) or "{}")
    return found


def add_inherited(connection: Connection, forks: Mapping[str, int]) -> None:
    # A copy of a copy keeps the first fork.
    if merged := {**forks, **list_inherited(connection)}:
        set_meta(connection, _KEY, json.dumps(merged))


def inherited_ranges(connection: Connection, dataset: str, after: int) -> list[tuple[int, int]]:
    """Return the ranges (after, last] of the committed segments above this sequence, adjacent ones joined.

    A segment whose commit had landed before the copy has sequences that both homes share: it is delivered once.
    """
    forks = list_inherited(connection)
    if not forks:
        return []
    rows = connection.rows(
        "SELECT name, seq_base, row_count FROM segments WHERE dataset = ? AND status = 'committed'"
        " AND seq_base IS NOT NULL ORDER BY seq_base",
        (dataset,),
    )
    ranges: list[tuple[int, int]] = []
    for row in rows:
        start, last = row["seq_base"] - 1, row["seq_base"] - 1 + row["row_count"]
        fork = forks.get(row["name"].partition(".")[0])
        if fork is None or start < fork or last <= after:
            continue
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], last)
        else:
            ranges.append((start, last))
    return ranges
