"""Cutting what is new into chunks: in the order of the sequence, by rows and bytes, never across two incarnations.

The ranges of a plan lie end to end, so a destination's ranges have no gaps but what it refused.

@ref delivery#plan
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from hypaware.export.payload import Payload
from hypaware.export.ranges import chunk_of
from hypaware.export.sink import Chunk, Delivered, Limits
from hypaware.state.identity import Epoch, Identity
from hypaware.state.intents import PlannedChunk
from hypaware.state.stream_key import StreamKey


def cut(
    key: StreamKey, identity: Identity, after: int, last: int, seqs: Sequence[int], payload: Payload, limits: Limits
) -> list[PlannedChunk]:
    """Chunks that cover (after, last] and the rows with the given sequences."""
    chunks: list[PlannedChunk] = []
    start = 0
    for stop in _ends(seqs, payload.sizes, limits, identity.epochs()):
        through = seqs[stop - 1] if stop < len(seqs) else last
        epoch = _epoch_of(identity, seqs[start])
        if epoch.through is not None and through > epoch.through:
            through = epoch.through
        chunk = chunk_of(key, identity.gateway_id, epoch.incarnation, max(after, epoch.after), through)
        chunks.append(PlannedChunk(chunk.id, chunk.incarnation, chunk.after, chunk.last, stop - start))
        after, start = through, stop
    return chunks


def _ends(seqs: Sequence[int], sizes: Sequence[int], limits: Limits, epochs: Sequence[Epoch]) -> Iterator[int]:
    """Where each chunk stops; a row that is larger than a chunk may be stands alone."""
    borders = [epoch.through for epoch in epochs if epoch.through is not None]
    start = weight = border = 0
    for place, size in enumerate(sizes):
        crosses = False
        while border < len(borders) and seqs[place] > borders[border]:
            border, crosses = border + 1, True
        full = place - start >= limits.rows or weight + size > limits.bytes
        if place > start and (full or crosses):
            yield place
            start, weight = place, 0
        weight += size
    if len(seqs) > start:
        yield len(seqs)


def halved(key: StreamKey, gateway_id: str, chunk: PlannedChunk, seqs: Sequence[int]) -> list[PlannedChunk]:
    """The chunk cut between its middle rows."""
    middle = len(seqs) // 2
    border = seqs[middle - 1]
    return [
        part_of(key, gateway_id, chunk, chunk.after, border, middle),
        part_of(key, gateway_id, chunk, border, chunk.last, len(seqs) - middle),
    ]


def lacking(
    key: StreamKey, gateway_id: str, chunk: PlannedChunk, seqs: Sequence[int], covered: Delivered
) -> list[PlannedChunk]:
    """What of the chunk the destination does not have: holes below what it has, and what lies beyond."""
    ranges = [(max(after, chunk.after), min(last, chunk.last)) for after, last in covered.holes]
    ranges.append((max(covered.last, chunk.after), chunk.last))
    return [
        part_of(key, gateway_id, chunk, after, last, bisect_right(seqs, last) - bisect_right(seqs, after))
        for after, last in ranges
        if after < last
    ]


def part_of(key: StreamKey, gateway_id: str, chunk: PlannedChunk, after: int, last: int, rows: int) -> PlannedChunk:
    part = chunk_of(key, gateway_id, chunk.incarnation, after, last)
    return PlannedChunk(part.id, part.incarnation, part.after, part.last, rows)


def as_chunk(key: StreamKey, gateway_id: str, planned: PlannedChunk) -> Chunk:
    """As the sink sees it: under the id that was written down, whatever the sink is called now."""
    return Chunk(planned.id, key, gateway_id, planned.incarnation, planned.after, planned.last)


def _epoch_of(identity: Identity, seq: int) -> Epoch:
    return next(epoch for epoch in identity.epochs() if epoch.through is None or seq <= epoch.through)
