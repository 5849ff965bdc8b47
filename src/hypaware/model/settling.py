"""How a dataset matches a live row with the native row of the same part.

The gateway records a part before its client's id is known; the client's transcript has the same part with its own id.
A dataset whose rows can arrive both ways defines here how they are matched. The lake keeps one row, under one
sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Meeting:
    """The match keys of a row, and how reliable they are."""

    keys: tuple[str, ...]
    """The most reliable first. If several rows share a key, the n-th live row matches the n-th native row."""
    is_live: bool
    """The row was recorded without the client's id. A live row matches only a native row."""
    exact: int = 0
    """How many of the keys, from the first on, are valid regardless of time."""
    time_uncertain: bool = False
    """The row's time is approximate and must not rule out a match."""


@dataclass(frozen=True)
class Settling:
    columns: tuple[str, ...]
    """The columns that `match_keys` reads."""
    marker_column: str
    """The one column that `may_be_live` and `previous_keys` read."""
    may_be_live: Callable[[Row], bool]
    """A quick test; false if the row is certainly native."""
    match_keys: Callable[[Row], Meeting | None]
    """None for a row that cannot be matched, and for one that already was."""
    previous_keys: Callable[[Row], tuple[str, ...]]
    """Dedupe keys that a row had before it was matched with its native row."""
    settle: Callable[[Row, Row], dict[str, Any]]
    """(live row, native row), with all stored columns of both -> the row that replaces the live row."""
