"""Choose the window of a read: the range of sequences that contains about so many rows and bytes.

A span is a data file or a row group. Its rows are between its lowest and its highest sequence, but their distribution
is unknown. Each sequence belongs to one row, so up to any end a span has at most as many rows as there are sequences,
and at most all of its rows. Counting this way, a window never contains more rows than requested. Files that a window
reaches are replaced by their row groups, so that only a row group can be overestimated, not a file. Bytes are
proportional to the rows of a group; they are inaccurate only by uneven row sizes within the groups that the window
splits.

Stored bytes measure the cost of a read, not its size in memory: a text that every row repeats is stored once. So rows
in memory have a limit of their own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from hypaware.lake import row_groups
from hypaware.lake.metadata import DataFile

_UNPACKED_MOST = 64 << 20


@dataclass(frozen=True, order=True)
class _Span:
    """The rows that a file or row group can have above `since`: from `first` on, none above `last`."""

    first: int
    last: int
    rows: int
    bytes_per_row: float
    unpacked_per_row: float

    @property
    def full_at(self) -> int:
        """The sequence at which all rows have been counted."""
        return self.first + self.rows - 1

    def rows_until(self, end: int) -> int:
        return max(0, min(self.rows, end - self.first + 1))


@dataclass(frozen=True)
class _Room:
    rows: int
    bytes: int

    def fits(self, spans: Iterable[_Span], end: int) -> bool:
        rows, stored, unpacked = 0, 0.0, 0.0
        for span in spans:
            found = span.rows_until(end)
            rows += found
            stored += found * span.bytes_per_row
            unpacked += found * span.unpacked_per_row
            if rows > self.rows or stored > self.bytes or unpacked > _UNPACKED_MOST:
                return False
        return True

    def reach(self, spans: Iterable[_Span]) -> int:
        """Return a sequence at which the first spans alone exceed the limit. Spans are sorted by `first`."""
        reach, seen = 0, 0
        for span in spans:
            reach, seen = max(reach, span.full_at), seen + span.rows
            if seen > self.rows:
                break
        return reach


def next_end(files: Sequence[DataFile], since: int, until: int, *, rows: int, bytes: int) -> int:
    """Return the largest end <= until such that (since, end] contains at most so many rows and stored bytes.

    All files are of one source. The end is at least one above `since`, however large that row is. Gaps cost nothing.
    """
    limit = _Room(rows, bytes)
    due = [file for file in files if file.max_seq is None or file.max_seq > since]
    group_spans: dict[Path, list[_Span]] = {}
    while True:
        whole = [file for file in due if file.path not in group_spans]
        spans = [_of_file(file, since, until) for file in whole]
        end = _furthest(sorted(chain(spans, *group_spans.values())), since, until, limit)
        touched = [file for file in whole if file.min_seq is None or file.min_seq <= end]
        if not touched:
            return end
        for file in touched:
            group_spans[file.path] = _of_groups(file, since, until)


def _of_file(file: DataFile, since: int, until: int) -> _Span:
    return _span(file.min_seq, file.max_seq, file.sequenced, file.bytes, file.bytes, since, until)


def _of_groups(file: DataFile, since: int, until: int) -> list[_Span]:
    return [
        _span(group.min_seq, group.max_seq, group.sequenced, group.bytes, group.unpacked, since, until)
        for group in row_groups.of_file(file.path)
        if group.max_seq is None or group.max_seq > since
    ]


def _span(
    lowest: int | None, highest: int | None, sequenced: int, stored: int, unpacked: int, since: int, until: int
) -> _Span:
    """Return a span. Without statistics its rows can have any sequence."""
    first = max(since + 1, lowest if lowest is not None else 0)
    last = highest if highest is not None else until
    count = max(sequenced, 1)
    return _Span(first, last, max(0, min(sequenced, last - first + 1)), stored / count, unpacked / count)


def _furthest(spans: Sequence[_Span], since: int, until: int, limit: _Room) -> int:
    """Find the end by bisection over the spans that the window can reach."""
    near = spans[: bisect_right(spans, limit.reach(spans), key=lambda span: span.first)]
    low, high = min(since + 1, until), until
    while low < high:
        middle = (low + high + 1) // 2
        if limit.fits(near, middle):
            low = middle
        else:
            high = middle - 1
    return low
