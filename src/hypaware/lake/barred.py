"""Keeping out of the lake what was purged, for every row that is on its way into it.

Rows of closed sessions and closed times are left out where they are read; here those go whose part was purged under
whatever name, and what is refused and would be kept with its text. Nothing of it is silent: all are counted.
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
    """Sequences of rows that stand in the files, and must be taken out of them."""
    dropped: frozenset[int]
    """Sequences of those that were not written at all."""
    refused: list[Reject]
    """What is left of the refused rows."""
    rejects: int
    """How many of those were kept out."""

    @property
    def all(self) -> frozenset[int]:
        return self.written | self.dropped


def settle(stones: Tombstones, dataset: Dataset, own_gateway: str | None, built: Sequence[Built]) -> KeptOut:
    """Without a change anywhere: a dry run asks the same."""
    written: set[int] = set()
    if stones.has_parts:
        found = [pair for each in built for pair in pairs(each.keys, each.seqs)]
        gone = stones.find({key for key, _ in found})
        written = {seq for key, seq in found if key in gone} | _under_other_ids(stones, built)
    refused = [reject for each in built for reject in each.rejects]
    kept = [reject for reject in refused if not bars(stones, dataset, own_gateway, reject.line)]
    dropped = frozenset(seq for each in built for seq in each.purged)
    return KeptOut(frozenset(written), dropped, kept, len(refused) - len(kept))


def _under_other_ids(stones: Tombstones, built: Sequence[Built]) -> set[int]:
    """Records of purged parts that do not have their ids. What was said after the purge may be the same words again."""
    met = [each for result in built for each in result.meetings]
    gone = stones.buried_at({each.buried_as for each in met})
    return {
        each.seq
        for each in met
        if (at := gone.get(each.buried_as)) is not None and (each.exact or each.late or each.at <= at)
    }


def bars(stones: Tombstones, dataset: Dataset, own_gateway: str | None, line: bytes) -> bool:
    """Whether a line that nobody could take belongs to what was purged, as far as it can be read."""
    bar = stones.closed.bar(dataset)
    if bar is None and not stones.has_parts:
        return False
    row = loosely.fitted(dataset, loosely.row_in(line))
    if bar is not None and bar(row):
        return True
    key = row_key(dataset, row, own_gateway)
    return key is not None and bool(stones.find({key}))
