"""Summarise delivered ranges."""

from __future__ import annotations

from collections.abc import Iterable

from hypaware.export.sink import Delivered


def delivered_by(ranges: Iterable[tuple[int, int]]) -> Delivered:
    """Return the coverage of ranges (after, last], in any order, overlapping or not.

    The range below the first one is a hole too.
    """
    last, holes = 0, []
    for after, through in sorted(ranges):
        if after > last:
            holes.append((last, after))
        last = max(last, through)
    return Delivered(last, tuple(holes))
