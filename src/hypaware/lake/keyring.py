"""Settling duplicates: which rows of a flush the lake already has, or has twice among themselves.

The lowest sequence of a key survives. Only committed rows count against a flush, never the spool: its rows *are* the
spool, and each would meet itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import itemgetter

from hypaware.home import Home
from hypaware.lake import keys, meeting
from hypaware.lake.build import Built
from hypaware.lake.committer import Lake, LakeTable
from hypaware.lake.keys import KeyIndex, pairs
from hypaware.model.datasets import Dataset


def opened(home: Home, lake: Lake, table: LakeTable, dataset: Dataset) -> KeyIndex:
    """The index, brought up to the table's floor, and to the settlements that wait."""
    index, name = KeyIndex(home.keys), dataset.name
    try:
        through = index.through(name, table.uuid)
        if through is None and index.made_for(name) != table.rebuilt_from:
            index.close()
            keys.remove(home.keys)
            index, through = KeyIndex(home.keys), 0
        elif through is None or through > table.floor:
            index.start_over(name, table.uuid, table.floor)
            through = 0
        if through < table.floor:
            _fill(home, lake, index, table, dataset, through)
        meeting.take_in_settlements(home, index, table, dataset)
    except BaseException:
        index.close()
        raise
    return index


def _fill(home: Home, lake: Lake, index: KeyIndex, table: LakeTable, dataset: Dataset, after: int) -> None:
    """Takes in what the lake holds above a sequence; `through` moves last, so an interrupted fill starts over."""
    for lot in table.key_hashes(after):
        index.add(dataset.name, table.uuid, after, lot)
    meeting.fill(home, lake, index, table, dataset, after)
    index.add(dataset.name, table.uuid, table.floor, ())


def duplicates(index: KeyIndex, results: Sequence[Built]) -> frozenset[int]:
    """Sequences of rows whose key a committed row has, or a row before them in this flush."""
    seen: set[bytes] = set(index.find(key for result in results for key, _ in pairs(result.keys, result.seqs)))
    losers = []
    for key, seq in _by_sequence(results):
        if key in seen:
            losers.append(seq)
        else:
            seen.add(key)
    return frozenset(losers)


def _by_sequence(results: Sequence[Built]) -> Iterable[tuple[bytes, int]]:
    """Sorted only where it must be: results that follow each other, each in order, are in order as they are."""
    found = [pair for result in results for pair in pairs(result.keys, result.seqs)]
    if any(before[1] > after[1] for before, after in pairwise(found)):
        found.sort(key=itemgetter(1))
    return found
