"""Find purged rows among the rows that a build has written or rejected.

A build skips rows of purged sessions and periods while it reads them. This module finds the remaining ones: rows whose
part was purged under any session, and rejects that would otherwise be kept with their text. All of them are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypaware.lake import loosely
from hypaware.lake.build import Built, Reject, row_key
from hypaware.lake.keys import pairs
from hypaware.lake.tombstones import Tombstones
from hypaware.model.datasets import Dataset


@dataclass(frozen=True)
class KeptOut:
    written: frozenset[int]
    """Sequences of rows that the built files contain and that must be removed from them."""
    skipped: frozenset[int]
    """Sequences of rows that the build did not write."""
    rejects: list[Reject]
    """Rejects that were not purged."""
    purged_rejects: int
    """Number of rejects that were purged."""

    @property
    def all(self) -> frozenset[int]:
        return self.written | self.skipped


def settle(stones: Tombstones, dataset: Dataset, own_gateway: str | None, built: Sequence[Built]) -> KeptOut:
    """Find the purged rows of a build. Changes nothing, so a dry run calls it too."""
    written: set[int] = set()
    if stones.has_parts:
        found = [pair for each in built for pair in pairs(each.keys, each.seqs)]
        purged = stones.find({key for key, _ in found})
        written = {seq for key, seq in found if key in purged} | _under_other_ids(stones, built)
    rejects = [reject for each in built for reject in each.rejects]
    kept = [reject for reject in rejects if not bars(stones, dataset, own_gateway, reject.line)]
    skipped = frozenset(seq for each in built for seq in each.purged)
    return KeptOut(frozenset(written), skipped, kept, len(rejects) - len(kept))


def _under_other_ids(stones: Tombstones, built: Sequence[Built]) -> set[int]:
    """Find other records of purged parts by match key.

    A text that is equal to a purged one is kept if it was said after the purge.
    """
    match_keys = [each for result in built for each in result.match_keys]
    purged_at = stones.purged_at({each.tombstone_hash for each in match_keys})
    return {
        each.seq
        for each in match_keys
        if (at := purged_at.get(each.tombstone_hash)) is not None
        and (each.is_exact or each.is_time_uncertain or each.at <= at)
    }


def bars(stones: Tombstones, dataset: Dataset, own_gateway: str | None, line: bytes) -> bool:
    """Tell whether a rejected line belongs to a purge, as far as the line can be parsed."""
    is_in_purged_range = stones.purge_filter.predicate(dataset)
    if is_in_purged_range is None and not stones.has_parts:
        return False
    row = loosely.fitted(dataset, loosely.row_in(line))
    if is_in_purged_range is not None and is_in_purged_range(row):
        return True
    key = row_key(dataset, row, own_gateway)
    return key is not None and bool(stones.find({key}))
