"""What earlier imports took, read without opening the home: for plans and dry runs, which change nothing."""

from __future__ import annotations

import sqlite3

import orjson

from hypaware.errors import StateError
from hypaware.home import Home
from hypaware.looking import has_table, look_into
from hypaware.state.sources import SourceMark


def known(home: Home, provider: str, dataset: str) -> dict[str, SourceMark]:
    """Nothing where there is no state, or one from before imports."""
    if not home.state.is_file():
        return {}
    try:
        with look_into(home.state) as state:
            if not has_table(state, "sources"):
                return {}
            state.row_factory = sqlite3.Row
            found = state.execute("SELECT * FROM sources WHERE provider = ? AND dataset = ?", (provider, dataset))
            return {row["path"]: _mark(row) for row in found}
    except sqlite3.Error as error:
        raise StateError(f"the state {home.state} cannot be read: {error}", repair="hyp verify --repair") from error


def _mark(row: sqlite3.Row) -> SourceMark:
    return SourceMark(**{**dict(row), "held": tuple(orjson.loads(row["held"]))})
