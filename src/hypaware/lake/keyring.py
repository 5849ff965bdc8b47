"""Deduplication: find rows of a flush that the lake already has, or that the flush contains twice.

The row with the lowest sequence of a key is kept. A flush is compared with committed rows only, never with the spool:
its rows come from the spool and would match themselves.
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
    """Open the key index, caught up with the table's floor and with the pending settlements."""
    index, name = KeyIndex(home.keys), dataset.name
    try:
        through = index.indexed_through(name, table.uuid)
        if through is None and index.table_uuid(name) != table.rebuilt_from:
            index.close()
            keys.remove(home.keys)
            index, through = KeyIndex(home.keys), 0
        elif through is None or through > table.floor:
            index.restart(name, table.uuid, table.floor)
            through = 0
        if through < table.floor:
            _fill(home, lake, index, table, dataset, through)
        meeting.take_in_settlements(home, index, table, dataset)
    except BaseException:
        index.close()
        raise
    return index


def _fill(home: Home, lake: Lake, index: KeyIndex, table: LakeTable, dataset: Dataset, after: int) -> None:
    """Index the lake's rows above a sequence. `through` is updated last, so an interrupted run starts over."""
    for batch in table.key_hashes(after):
        index.add(dataset.name, table.uuid, after, batch)
    meeting.fill(home, lake, index, table, dataset, after)
    index.add(dataset.name, table.uuid, table.floor, ())


def duplicates(index: KeyIndex, results: Sequence[Built]) -> frozenset[int]:
    """Return the sequences of rows whose key a committed row or an earlier row of this flush has."""
    seen: set[bytes] = set(index.find(key for result in results for key, _ in pairs(result.keys, result.seqs)))
    duplicate_seqs = []
    for key, seq in _by_sequence(results):
        if key in seen:
            duplicate_seqs.append(seq)
        else:
            seen.add(key)
    return frozenset(duplicate_seqs)


def _by_sequence(results: Sequence[Built]) -> Iterable[tuple[bytes, int]]:
    """Return (key, sequence) by sequence. Sort only if necessary: consecutive results usually are in order."""
    found = [pair for result in results for pair in pairs(result.keys, result.seqs)]
    if any(before[1] > after[1] for before, after in pairwise(found)):
        found.sort(key=itemgetter(1))
    return found
