"""Ranges that were delivered, as one answer: how far, and what is missing below that."""

from __future__ import annotations

from collections.abc import Iterable

from hypaware.export.sink import Delivered


def delivered_by(ranges: Iterable[tuple[int, int]]) -> Delivered:
    """Of ranges (after, last], in any order, overlapping or not. What lies below the first one is missing too."""
    last, holes = 0, []
    for after, through in sorted(ranges):
        if after > last:
            holes.append((last, after))
        last = max(last, through)
    return Delivered(last, tuple(holes))
