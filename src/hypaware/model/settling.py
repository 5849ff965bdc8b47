"""How a dataset tells that two records, under different ids, are of one and the same thing.

A thing may be recorded as it happens by somebody who does not know its id yet, and once more, later or earlier, with
its own id (*native*). A dataset whose rows can come both ways says here how they meet; the lake sees to it that one row
is left, under one sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Meeting:
    """By what a row can be known in another record of the same thing."""

    keys: tuple[str, ...]
    """The surest first. Several rows may share one: the n-th of the one kind meets the n-th of the other."""
    is_fallback: bool
    """Recorded without its own id; only rows of which one is and the other is not can meet."""
    exact: int = 0
    """How many of the keys, from the first on, are sure whatever the time."""
    late: bool = False
    """Nobody knows when it really was: its time is no reason against a meeting."""


@dataclass(frozen=True)
class Settling:
    columns: tuple[str, ...]
    """What `meeting` looks at."""
    telltale: str
    """The one of them that is enough for `may_be_fallback` and `former_keys`."""
    may_be_fallback: Callable[[Row], bool]
    """A quick look: false where a row is surely native."""
    meeting: Callable[[Row], Meeting | None]
    """None for a row that meets nothing but itself, and for one that has met already."""
    former_keys: Callable[[Row], tuple[str, ...]]
    """Dedupe keys that a row had before it met its native record."""
    settled: Callable[[Row, Row], dict[str, Any]]
    """(fallback row, native row), all columns of both as stored: the row that takes the fallback row's place."""
