"""The delivery record of a stream in the properties of the destination's table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hypaware.export.sink import Chunk, Delivered, Denied
from hypaware.lake.partitions import path_name

Range = tuple[int, int]


@dataclass(frozen=True)
class Record:
    """The delivered ranges of one stream, in a property of the table.

    `hyp.delivered.<gateway>.<incarnation>.<source>` = `0-100,101-250`: the ranges (after, last], sorted, with adjacent
    ones joined; names are escaped as in a path (`path_name`). The record changes in the commit that adds the rows, so
    it always matches the committed rows. A refused row remains a hole between two ranges until it is replayed; rows
    that the destination's owner deletes later remain delivered.
    """

    ranges: tuple[Range, ...] = ()

    def covers(self, after: int, last: int) -> bool:
        return any(start <= after and last <= end for start, end in self.ranges)

    def overlaps(self, after: int, last: int) -> bool:
        return any(start < last and after < end for start, end in self.ranges)

    def with_range(self, after: int, last: int) -> Record:
        return Record(_joined([*self.ranges, (after, last)]))

    @property
    def text(self) -> str:
        return ",".join(f"{after}-{last}" for after, last in self.ranges)

    @property
    def coverage(self) -> Delivered:
        """The range below the first one is a hole too: it may have been refused."""
        ends = [0, *(last for _, last in self.ranges)]
        gaps = ((end, after) for end, (after, _) in zip(ends, self.ranges, strict=False))
        return Delivered(ends[-1], tuple((end, after) for end, after in gaps if end < after))


def key_of(gateway_id: str, incarnation: str, source: str) -> str:
    return f"hyp.delivered.{path_name(gateway_id)}.{path_name(incarnation)}.{path_name(source)}"


def chunk_key(chunk: Chunk) -> str:
    return key_of(chunk.gateway_id, chunk.incarnation, chunk.stream.source)


def parse(key: str, text: str) -> Record:
    try:
        ranges = [(int(after), int(last)) for after, last in (part.split("-") for part in text.split(","))]
        if any(after >= last for after, last in ranges):
            raise ValueError
    except ValueError:
        raise Denied(
            f"the table's property {key} is {text[:100]!r}, not a list of ranges: it was changed by another program. "
            "Remove the property, and delivery looks at the rows instead",
            kind="destination_damaged",
        ) from None
    return Record(_joined(ranges))


def _joined(ranges: Iterable[Range]) -> tuple[Range, ...]:
    found: list[Range] = []
    for after, last in sorted(ranges):
        if found and after <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((after, last))
    return tuple(found)
