"""Row groups of a data file: row count, size and range of sequences, from the file's footer.

Data files never change, so footers are cached. A text that many rows repeat is stored once, so the stored size of a
group says little about its size in memory. HypAware's writers add that size to the footer under `hyp.row-group-bytes`:
one number per group, separated by commas.
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
    index: int
    bytes: int
    """Share of the file size on disk."""
    unpacked: int
    """Approximate size in memory; at least the stored size if the footer does not have it."""
    sequenced: int
    """Number of rows with a sequence; an upper bound if not `exact`."""
    exact: bool
    min_seq: int | None
    max_seq: int | None


def footer_note(unpacked: Sequence[int]) -> dict[str, str]:
    """Return the footer entry for groups of these sizes in memory."""
    return {_NOTE: ",".join(map(str, unpacked))}


@lru_cache(maxsize=_REMEMBERED_FOOTERS)
def of_file(path: Path) -> tuple[RowGroup, ...]:
    footer = pq.read_metadata(path)
    column = footer.schema.to_arrow_schema().get_field_index(SEQ)
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    encoded = sum(group.total_byte_size for group in groups)
    stored_share = path.stat().st_size / max(encoded, 1)
    sizes = (footer.metadata or {}).get(_NOTE.encode())
    unpacked = [int(size) for size in sizes.split(b",")] if sizes else [0] * len(groups)
    return tuple(
        _row_group(index, int(group.total_byte_size * stored_share), unpacked[index], group, column)
        for index, group in enumerate(groups)
    )


def _row_group(index: int, stored: int, recorded: int, group: Any, column: int) -> RowGroup:
    unpacked = max(recorded, group.total_byte_size)
    if column < 0:
        # The file is older than the column: no row has a sequence.
        return RowGroup(index, stored, unpacked, 0, True, None, None)
    statistics = group.column(column).statistics
    if statistics is None:
        return RowGroup(index, stored, unpacked, group.num_rows, False, None, None)
    sequenced = group.num_rows - (statistics.null_count if statistics.has_null_count else 0)
    lowest, highest = (statistics.min, statistics.max) if statistics.has_min_max else (None, None)
    return RowGroup(index, stored, unpacked, sequenced, bool(statistics.has_null_count), lowest, highest)
