"""How far one read of a source may go: as many sequences as hold about so many rows and bytes.

A span (a data file, or a row group of one) holds its rows somewhere between its lowest and its highest sequence;
nobody says where. A sequence belongs to one row, so the rows of a span up to some end are at most as many as the
sequences up to it, and at most all of them: that is how they are counted here, and a window never holds more rows
than it was asked for. The row groups of the files that a window touches take their place, so that what is counted too
often is a row group, not a file. Bytes follow the rows of their group, so they are off by the uneven sizes within one
group of each file that the window cuts.

Stored bytes say what a read costs, not what it holds: a text that every row repeats is stored once. So the rows in
memory have a limit of their own, however little of the disk they take.
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
    """What a file or a row group may hold above `since`: rows from `first` on, none above `last`."""

    first: int
    last: int
    rows: int
    bytes_per_row: float
    unpacked_per_row: float

    @property
    def full_at(self) -> int:
        """Where all its rows have been counted."""
        return self.first + self.rows - 1

    def rows_until(self, end: int) -> int:
        return max(0, min(self.rows, end - self.first + 1))


@dataclass(frozen=True)
class _Room:
    rows: int
    bytes: int

    def holds(self, spans: Iterable[_Span], end: int) -> bool:
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
        """A sequence at which the first spans alone are more than there is room for; they come sorted by `first`."""
        reach, seen = 0, 0
        for span in spans:
            reach, seen = max(reach, span.full_at), seen + span.rows
            if seen > self.rows:
                break
        return reach


def next_end(files: Sequence[DataFile], since: int, until: int, *, rows: int, bytes: int) -> int:
    """The largest end <= until for which the files, all of one source, hold no more than that in (since, end].

    `bytes` as stored. At least one sequence further than `since`, however large its row. Gaps cost nothing.
    """
    room = _Room(rows, bytes)
    due = [file for file in files if file.max_seq is None or file.max_seq > since]
    opened: dict[Path, list[_Span]] = {}
    while True:
        closed = [file for file in due if file.path not in opened]
        spans = [_of_file(file, since, until) for file in closed]
        end = _furthest(sorted(chain(spans, *opened.values())), since, until, room)
        touched = [file for file in closed if file.min_seq is None or file.min_seq <= end]
        if not touched:
            return end
        for file in touched:
            opened[file.path] = _of_groups(file, since, until)


def _of_file(file: DataFile, since: int, until: int) -> _Span:
    return _span(file.min_seq, file.max_seq, file.numbered, file.bytes, file.bytes, since, until)


def _of_groups(file: DataFile, since: int, until: int) -> list[_Span]:
    return [
        _span(group.min_seq, group.max_seq, group.numbered, group.bytes, group.unpacked, since, until)
        for group in row_groups.of_file(file.path)
        if group.max_seq is None or group.max_seq > since
    ]


def _span(
    lowest: int | None, highest: int | None, numbered: int, stored: int, unpacked: int, since: int, until: int
) -> _Span:
    """Without statistics its rows may lie anywhere."""
    first = max(since + 1, lowest if lowest is not None else 0)
    last = highest if highest is not None else until
    count = max(numbered, 1)
    return _Span(first, last, max(0, min(numbered, last - first + 1)), stored / count, unpacked / count)


def _furthest(spans: Sequence[_Span], since: int, until: int, room: _Room) -> int:
    """By bisection, over the spans that a window can reach at all."""
    near = spans[: bisect_right(spans, room.reach(spans), key=lambda span: span.first)]
    low, high = min(since + 1, until), until
    while low < high:
        middle = (low + high + 1) // 2
        if room.holds(near, middle):
            low = middle
        else:
            high = middle - 1
    return low
