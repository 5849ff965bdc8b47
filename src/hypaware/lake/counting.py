"""Count the rows in a range of sequences, exactly and without Spark.

A file that is completely inside the range is counted by its manifest entry. For a file that crosses an end of the
range, the footer gives the counts of complete row groups; only the groups that cross the end are read, one column of
each.
"""

from __future__ import annotations

import pyarrow.compute as pc
import pyarrow.parquet as pq

from hypaware.home import Home
from hypaware.lake import metadata, row_groups
from hypaware.lake.metadata import DataFile, TableEntry
from hypaware.lake.row_groups import RowGroup
from hypaware.model.datasets import SEQ


def rows_between(home: Home, dataset: str, source: str, after: int, last: int) -> int:
    """Count the live rows of a source with a sequence in (after, last]. Return 0 if there is no table."""
    table = metadata.entry(home, dataset)
    while table is not None and last > after:
        try:
            return _rows_of(table, source, after, last)
        except FileNotFoundError:
            # A purge removes files immediately; the table then has a new metadata file.
            previous, table = table, metadata.entry(home, dataset)
            if table == previous:
                raise
    return 0


def _rows_of(table: TableEntry, source: str, after: int, last: int) -> int:
    files = metadata.remembered_files(metadata.read(table.metadata))
    return sum(_rows_of_file(file, after, last) for file in files if file.source == source)


def _rows_of_file(file: DataFile, after: int, last: int) -> int:
    inside = _inside(file.min_seq, file.max_seq, file.sequenced, after, last)
    if inside is not None:
        return inside
    counted = 0
    cut = []
    for group in row_groups.of_file(file.path):
        inside = _inside(group.min_seq, group.max_seq, group.sequenced, after, last) if group.exact else None
        counted += inside or 0
        if inside is None:
            cut.append(group)
    return counted + (_rows_of_groups(file, cut, after, last) if cut else 0)


def _inside(lowest: int | None, highest: int | None, sequenced: int, after: int, last: int) -> int | None:
    """Return the count if all or none are inside the range; None if the range splits them or bounds are unknown."""
    if sequenced == 0:
        return 0
    if lowest is None or highest is None:
        return None
    if highest <= after or lowest > last:
        return 0
    return sequenced if after < lowest and highest <= last else None


def _rows_of_groups(file: DataFile, groups: list[RowGroup], after: int, last: int) -> int:
    counted = 0
    with pq.ParquetFile(file.path) as parquet:
        for group in groups:
            seqs = parquet.read_row_group(group.index, columns=[SEQ]).column(SEQ)
            inside = pc.and_(pc.greater(seqs, after), pc.less_equal(seqs, last))
            counted += pc.sum(inside).as_py() or 0
    return counted
