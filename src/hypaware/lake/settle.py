"""Which new rows are records of something that is recorded already, under another id: one thing, one row.

A fallback row and a native one that share a key are one thing (`model.settling`). Of two new ones the native goes on.
A new fallback row that meets a native one of the lake is left out. A new native row that meets a fallback row of the
lake is left out as well: that row takes its columns over at the next compaction (`settlements`), and keeps its
sequence, so nothing is delivered twice.

A pure function: rows in the order of their sequences, each meets the one that fits best and is still free.

@ref keys#meeting
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import attrgetter

from hypaware.lake.meetings import Met

# Equal words that are further apart are two things, unless nobody knows when they were said.
NEAR_SECONDS = 3600
# Of very many equal ones the first that are left are looked at: they meet in their order.
_MOST = 100


@dataclass(frozen=True)
class Settled:
    dropped: Mapping[int, int] = field(default_factory=dict)
    """New fallback row → the native row that is the same, in the lake or new."""
    settled: Mapping[int, int] = field(default_factory=dict)
    """New native row → the fallback row of the lake that becomes it."""

    @property
    def met(self) -> list[int]:
        """Rows that have met and meet nothing any more, new or in the lake."""
        return [*self.dropped.values(), *self.settled.values()]


def settle(new: Iterable[Met], known: Iterable[Met]) -> Settled:
    """`new` without duplicates, in the order of their sequences; `known` are free rows of the lake with a like key."""
    free = _Free()
    old = set()
    for met in known:
        old.add(met.seq)
        free.add(met)
    dropped: dict[int, int] = {}
    settled: dict[int, int] = {}
    for seq, keys in groupby(new, attrgetter("seq")):
        held = list(keys)
        partner = free.take(held)
        if partner is None:
            for met in held:
                free.add(met)
        elif held[0].is_fallback:
            dropped[seq] = partner.seq
        elif partner.seq in old:
            settled[seq] = partner.seq
        else:
            dropped[partner.seq] = seq
    return Settled(dropped, settled)


class _Free:
    """Rows that have not met yet, by their keys."""

    def __init__(self) -> None:
        self._by_hash: defaultdict[tuple[bytes, bool], dict[int, Met]] = defaultdict(dict)
        self._keys: defaultdict[int, list[tuple[bytes, bool]]] = defaultdict(list)

    def add(self, met: Met) -> None:
        place = (met.hash, met.is_fallback)
        self._by_hash[place][met.seq] = met
        self._keys[met.seq].append(place)

    def take(self, row: list[Met]) -> Met | None:
        """The best partner of a row; it is not free any more then."""
        for met in row:
            others = self._by_hash.get((met.hash, not met.is_fallback), {}).values()
            fitting = [other for other in islice(others, _MOST) if _fit(met, other)]
            if fitting:
                best = min(fitting, key=lambda other: _distance(met, other))
                for place in self._keys.pop(best.seq):
                    self._by_hash[place].pop(best.seq, None)
                return best
        return None


def _fit(one: Met, other: Met) -> bool:
    return one.exact or one.late or other.late or abs(one.at - other.at) <= NEAR_SECONDS


def _distance(one: Met, other: Met) -> tuple[bool, int, int]:
    """Those whose time is known by their time, the others in their order."""
    timeless = one.exact or one.late or other.late
    return other.late, 0 if timeless else abs(one.at - other.at), other.seq
