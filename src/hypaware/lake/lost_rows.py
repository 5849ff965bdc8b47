"""Lost rows: rows that were delivered and are no longer in the lake. An import restores them under their old sequence.

With a new sequence, every sink would receive them again. So the key index keeps their keys, and in `lost` their
sequences. A row that an import brings and whose key belongs to a lost row takes its sequence, below all watermarks. A
lost row that some sink has not received is forgotten instead: it comes back as a new row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hypaware.home import Home
from hypaware.home.storage import arrow_source
from hypaware.iceberg import metadata
from hypaware.lake.build import BuildResult
from hypaware.lake.key_index import KeyIndex
from hypaware.lake.row_keys import unpack_keys
from hypaware.model.datasets import SEQ


@dataclass(frozen=True)
class LostRange:
    """A range of sequences that had rows which are lost now."""

    first: int
    last: int
    delivered: int
    """The sequence up to which every sink has received the rows."""


def mark_lost(home: Home, index: KeyIndex, ranges: Sequence[LostRange], unreadable: Collection[Path] = ()) -> int:
    """Note which rows of the ranges no table has, and return how many of them imports may restore.

    `unreadable` are live files whose rows are lost. All other tables are intact.
    """
    known: dict[int, bool] = {}
    for each in ranges:
        for seq in index.find_sequences(each.first, each.last):
            known[seq] = known.get(seq, True) and seq <= each.delivered
    present = _read_present(home, known, unreadable)
    lost = {seq: is_delivered for seq, is_delivered in known.items() if seq not in present}
    index.mark_lost([seq for seq in lost if lost[seq]], [seq for seq in lost if not lost[seq]])
    return sum(lost.values())


def _read_present(home: Home, wanted: Collection[int], unreadable: Collection[Path] = ()) -> set[int]:
    """Return those of the sequences that a table has. All datasets share them."""
    found: set[int] = set()
    if not wanted:
        return found
    lowest, highest = min(wanted), max(wanted)
    for entry in metadata.list_tables(home):
        try:
            files = list(metadata.iter_live_files(metadata.read_metadata(entry.metadata)))
        except Exception:
            continue  # damaged, in one of many ways: nothing can have been restored to it
        for file in files:
            first, last = file.min_seq or 0, file.max_seq or highest
            if first <= highest and lowest <= last and file.path not in unreadable:
                try:
                    found.update(
                        pq.read_table(arrow_source(file.path), columns=[SEQ], partitioning=None).column(SEQ).to_pylist()
                    )
                except (OSError, pa.ArrowException):
                    # A damaged file of another table, which may have any of them.
                    found.update(seq for seq in wanted if first <= seq <= last)
    return found.intersection(wanted)


def forget_restored(home: Home, index: KeyIndex) -> None:
    """Unmark rows that are back, after a process died between their commit and its record in the index."""
    if lost := index.list_lost():
        index.unmark_lost(_read_present(home, lost))


def find_restored(index: KeyIndex, built: Iterable[BuildResult], duplicates: Collection[int]) -> dict[int, int]:
    """Return the rows that bring back a lost row, with the sequence of that row."""
    lost = index.list_lost()
    if not lost:
        return {}
    pairs = [pair for each in built for pair in unpack_keys(each.keys, each.seqs) if pair[1] in duplicates]
    known = index.find(key for key, _ in pairs)
    restored: dict[int, int] = {}
    for key, seq in sorted(pairs, key=lambda pair: pair[1]):
        if (old := known.get(key)) in lost and seq not in restored:
            lost.discard(old)
            restored[seq] = old
    return restored
