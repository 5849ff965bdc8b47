"""Count the rows in a range of sequences from the data files' statistics alone.

For a file that the range covers only partly, the count is the number of sequences inside the range. It is exact if the
file has one row per sequence, and an upper bound otherwise. `lake.counting` reads such files and is exact, but needs a
library that is too slow to import for a status.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hypaware.lake.metadata import DataFile


@dataclass(frozen=True)
class Lag:
    rows: int = 0
    exact: bool = True

    def __add__(self, other: Lag) -> Lag:
        return Lag(self.rows + other.rows, self.exact and other.exact)


def between(files: Iterable[DataFile], source: str, after: int, last: int) -> Lag:
    """Count the rows of the source in (after, last]."""
    return sum((_of_file(file, after, last) for file in files if file.source == source), Lag())


def _of_file(file: DataFile, after: int, last: int) -> Lag:
    lowest, highest = file.min_seq, file.max_seq
    if file.sequenced == 0:
        return Lag()
    if lowest is None or highest is None:
        return Lag(file.sequenced, exact=False)
    if highest <= after or lowest > last:
        return Lag()
    if after < lowest and highest <= last:
        return Lag(file.sequenced)
    inside = min(highest, last) - max(lowest - 1, after)
    return Lag(min(file.sequenced, inside), exact=file.sequenced == highest - lowest + 1)
