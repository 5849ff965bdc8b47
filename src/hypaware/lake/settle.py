"""Match live rows with native rows, so that each part has one row.

A live row and a native row that share a match key record the same part (`model.settling`). If both are new, the native
row is kept. A new live row that matches a native row of the lake is dropped. A new native row that matches a live row
of the lake is not added either: the next compaction gives its columns to the live row (`settlements`), which keeps its
sequence, so nothing is delivered twice.

Matching is a pure function. It goes through the rows by sequence and gives each the best match that is still available.

@ref keys#matching
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import attrgetter

from hypaware.lake.meetings import Met

# Equal texts that are further apart do not match, unless their time is uncertain.
NEAR_SECONDS = 3600
# Of very many equal texts only the first are compared; they match in order.
_MOST = 100


@dataclass(frozen=True)
class Settled:
    superseded: Mapping[int, int] = field(default_factory=dict)
    """New live row → its native row, new or in the lake."""
    upgrades: Mapping[int, int] = field(default_factory=dict)
    """New native row → the live row of the lake that it settles."""

    @property
    def matched(self) -> list[int]:
        """Rows that are matched and cannot match again, new or in the lake."""
        return [*self.superseded.values(), *self.upgrades.values()]


def settle(new: Iterable[Met], known: Iterable[Met]) -> Settled:
    """Match `new` rows (deduplicated, by sequence) with each other and with `known` unmatched rows of the lake."""
    unmatched = _Free()
    in_lake = set()
    for match_key in known:
        in_lake.add(match_key.seq)
        unmatched.add(match_key)
    superseded: dict[int, int] = {}
    upgrades: dict[int, int] = {}
    for seq, keys in groupby(new, attrgetter("seq")):
        row_keys = list(keys)
        partner = unmatched.pop_best(row_keys)
        if partner is None:
            for match_key in row_keys:
                unmatched.add(match_key)
        elif row_keys[0].is_live:
            superseded[seq] = partner.seq
        elif partner.seq in in_lake:
            upgrades[seq] = partner.seq
        else:
            superseded[partner.seq] = seq
    return Settled(superseded, upgrades)


class _Free:
    """Rows without a match yet, by match key."""

    def __init__(self) -> None:
        self._by_hash: defaultdict[tuple[bytes, bool], dict[int, Met]] = defaultdict(dict)
        self._lookups: defaultdict[int, list[tuple[bytes, bool]]] = defaultdict(list)

    def add(self, match_key: Met) -> None:
        lookup = (match_key.hash, match_key.is_live)
        self._by_hash[lookup][match_key.seq] = match_key
        self._lookups[match_key.seq].append(lookup)

    def pop_best(self, row_keys: list[Met]) -> Met | None:
        """Remove and return the best match of a row, or return None."""
        for match_key in row_keys:
            others = self._by_hash.get((match_key.hash, not match_key.is_live), {}).values()
            candidates = [other for other in islice(others, _MOST) if _fit(match_key, other)]
            if candidates:
                best = min(candidates, key=lambda other: _distance(match_key, other))
                for lookup in self._lookups.pop(best.seq):
                    self._by_hash[lookup].pop(best.seq, None)
                return best
        return None


def _fit(one: Met, other: Met) -> bool:
    return one.is_exact or one.is_time_uncertain or other.is_time_uncertain or abs(one.at - other.at) <= NEAR_SECONDS


def _distance(one: Met, other: Met) -> tuple[bool, int, int]:
    """Order candidates by their distance in time if it is certain, otherwise by sequence."""
    timeless = one.is_exact or one.is_time_uncertain or other.is_time_uncertain
    return other.is_time_uncertain, 0 if timeless else abs(one.at - other.at), other.seq
