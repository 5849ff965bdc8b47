"""Which of our sequences each row gets: rows without an old one first, then in the order of the old ones.

So "delivered up to the old sequence w" is "delivered up to one of ours". Rows that share an old sequence (the original
could give one out twice) follow each other. Rows that wait in a spool come last; nobody knows how many they are before
they are read, so each spool file gets as many numbers as its bytes can hold rows. Gaps are free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from hypaware.takeover.cache import SpoolFile
from hypaware.takeover.survey import Found

# A row in an envelope takes two bytes at least, and one to keep it from the next.
_BYTES_OF_A_ROW = 3
_BEFORE_ALL = -(2**63)


@dataclass(frozen=True)
class Numbered:
    """A data file and the numbers of its live rows, counted from 1."""

    found: Found
    places: pa.Array = field(compare=False)


@dataclass(frozen=True)
class Numbering:
    files: tuple[Numbered, ...]
    spools: tuple[tuple[SpoolFile, int], ...]
    """(file, first of its numbers)"""
    size: int
    """Numbers in all; one at least, so that ranges never meet."""


def number(files: Sequence[Found], spools: Sequence[SpoolFile]) -> Numbering:
    """The files in the order in which their rows without a sequence shall stand."""
    seqs = pa.concat_arrays([found.seqs for found in files]) if files else pa.array([], pa.int64())
    ranks = pc.rank(pc.fill_null(seqs, _BEFORE_ALL), sort_keys="ascending", tiebreaker="first").cast(pa.int64())
    numbered, at = [], 0
    for found in files:
        numbered.append(Numbered(found, ranks.slice(at, len(found.seqs))))
        at += len(found.seqs)
    waiting, first = [], at + 1
    for spool in spools:
        most = (spool.size - spool.start) // _BYTES_OF_A_ROW + 1
        waiting.append((spool, first))
        first += most
    return Numbering(tuple(numbered), tuple(waiting), max(1, first - 1))
