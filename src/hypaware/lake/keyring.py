"""Settling duplicates: which rows of a flush the lake already has, or has twice among themselves.

The lowest sequence of a key survives. Only committed rows count against a flush, never the spool: its rows *are* the
spool, and each would meet itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypaware.home import Home
from hypaware.lake import keys
from hypaware.lake.build import BuildTask, Built
from hypaware.lake.committer import LakeTable
from hypaware.lake.keys import KeyIndex, pairs


def opened(home: Home, table: LakeTable, dataset: str) -> KeyIndex:
    """The index, brought up to the table's floor."""
    index = KeyIndex(home.keys)
    try:
        through = index.through(dataset, table.uuid)
        if through is None or through > table.floor:
            index.close()
            keys.remove(home.keys)
            index, through = KeyIndex(home.keys), 0
        if through < table.floor:
            fill(index, table, dataset, through)
    except BaseException:
        index.close()
        raise
    return index


def fill(index: KeyIndex, table: LakeTable, dataset: str, after: int) -> None:
    """Takes in what the lake holds above a sequence; `through` moves last, so an interrupted fill starts over."""
    for lot in table.key_hashes(after):
        index.add(dataset, table.uuid, after, lot)
    index.add(dataset, table.uuid, table.floor, ())


def duplicates(index: KeyIndex, results: Sequence[Built]) -> set[int]:
    """Sequences of rows whose key a committed row has, or a row before them in this flush."""
    found = sorted((seq, key) for result in results for key, seq in pairs(result.keys, result.seqs))
    seen = set(index.find([key for _, key in found]))
    losers = set()
    for seq, key in found:
        if key in seen:
            losers.add(seq)
        seen.add(key)
    return losers


def leaving_out(task: BuildTask, result: Built, losers: set[int]) -> BuildTask:
    """The same task without its duplicates; the files of its first try are gone."""
    for file in result.files:
        file.path.unlink(missing_ok=True)
    return replace(task, drop=frozenset(losers.intersection(result.seqs)))
