"""Assigning our sequences to the original's rows: rows without an old sequence first, then by old sequence.

So "delivered up to the old sequence w" means "delivered up to one of ours". Rows that share an old sequence (the
original could assign one twice) follow each other. Rows in a spool come last. Their number is unknown before they are
read, so each spool file gets as many numbers as its bytes could hold rows. Gaps are allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from hypaware.takeover.cache import SpoolFile
from hypaware.takeover.survey import Found

# A row in an envelope takes at least two bytes, plus one separator.
_MIN_ROW_BYTES = 3
_LOWEST = -(2**63)


@dataclass(frozen=True)
class Numbered:
    """A data file and the positions of its live rows, counted from 1."""

    file: Found
    positions: pa.Array = field(compare=False)


@dataclass(frozen=True)
class Numbering:
    files: tuple[Numbered, ...]
    spools: tuple[tuple[SpoolFile, int], ...]
    """(file, its first position)"""
    size: int
    """Number of positions; at least one, so that ranges never touch."""


def number(files: Sequence[Found], spools: Sequence[SpoolFile]) -> Numbering:
    """Assign positions. `files` are in the order of their rows without a sequence."""
    seqs = pa.concat_arrays([file.seqs for file in files]) if files else pa.array([], pa.int64())
    ranks = pc.rank(pc.fill_null(seqs, _LOWEST), sort_keys="ascending", tiebreaker="first").cast(pa.int64())
    numbered, offset = [], 0
    for file in files:
        numbered.append(Numbered(file, ranks.slice(offset, len(file.seqs))))
        offset += len(file.seqs)
    spool_positions, first = [], offset + 1
    for spool in spools:
        max_rows = (spool.size - spool.start) // _MIN_ROW_BYTES + 1
        spool_positions.append((spool, first))
        first += max_rows
    return Numbering(tuple(numbered), tuple(spool_positions), max(1, first - 1))
