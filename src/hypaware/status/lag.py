"""How many rows lie in a range of sequences, told from the files' statistics alone.

Of a file that an end of the range cuts, at most so many rows are inside as there are sequences; where the file has not
one row for each of them, that is a bound and not exact. `lake.counting` reads what is cut, with a library that a status
has no time for.
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
    """Rows of the source in (after, last]."""
    return sum((_of_file(file, after, last) for file in files if file.source == source), Lag())


def _of_file(file: DataFile, after: int, last: int) -> Lag:
    lowest, highest = file.min_seq, file.max_seq
    if file.numbered == 0:
        return Lag()
    if lowest is None or highest is None:
        return Lag(file.numbered, exact=False)
    if highest <= after or lowest > last:
        return Lag()
    if after < lowest and highest <= last:
        return Lag(file.numbered)
    inside = min(highest, last) - max(lowest - 1, after)
    return Lag(min(file.numbered, inside), exact=file.numbered == highest - lowest + 1)
