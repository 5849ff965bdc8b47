"""The row groups of a data file: their rows, their size and the sequences between which they lie.

From the file's footer, which is small beside the file; data files never change, so what was read is remembered.
A text that every row repeats is stored once, so a group's stored size says little about its rows in memory. Our own
writers note that in the footer as well, under `hyp.row-group-bytes`: a number for each group, with commas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from hypaware.model.datasets import SEQ

_NOTE = "hyp.row-group-bytes"
_REMEMBERED_FOOTERS = 2_048


@dataclass(frozen=True)
class RowGroup:
    place: int
    bytes: int
    """Its share of the file as stored."""
    unpacked: int
    """Its rows in memory, about; at least what is stored, where nobody noted it."""
    numbered: int
    """Its rows that have a sequence; an upper bound where the footer does not say."""
    exact: bool
    min_seq: int | None
    max_seq: int | None


def footer_note(unpacked: Sequence[int]) -> dict[str, str]:
    """For the footer of a file whose groups have this size in memory."""
    return {_NOTE: ",".join(map(str, unpacked))}


@lru_cache(maxsize=_REMEMBERED_FOOTERS)
def of_file(path: Path) -> tuple[RowGroup, ...]:
    footer = pq.read_metadata(path)
    column = footer.schema.to_arrow_schema().get_field_index(SEQ)
    groups = [footer.row_group(place) for place in range(footer.num_row_groups)]
    encoded = sum(group.total_byte_size for group in groups)
    stored_share = path.stat().st_size / max(encoded, 1)
    note = (footer.metadata or {}).get(_NOTE.encode())
    unpacked = [int(size) for size in note.split(b",")] if note else [0] * len(groups)
    return tuple(
        _row_group(place, int(group.total_byte_size * stored_share), unpacked[place], group, column)
        for place, group in enumerate(groups)
    )


def _row_group(place: int, stored: int, noted: int, group: Any, column: int) -> RowGroup:
    unpacked = max(noted, group.total_byte_size)
    if column < 0:
        # A file that is older than the column has no row with a sequence.
        return RowGroup(place, stored, unpacked, 0, True, None, None)
    told = group.column(column).statistics
    if told is None:
        return RowGroup(place, stored, unpacked, group.num_rows, False, None, None)
    numbered = group.num_rows - (told.null_count if told.has_null_count else 0)
    lowest, highest = (told.min, told.max) if told.has_min_max else (None, None)
    return RowGroup(place, stored, unpacked, numbered, bool(told.has_null_count), lowest, highest)
