"""Cut new rows into chunks: in sequence order, by rows and bytes, never across two incarnations.

The ranges of a plan are contiguous, so the only gaps at a destination are ranges that it refused.

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
    """Return chunks that together cover (after, last] and hold the rows with the given sequences."""
    chunks: list[PlannedChunk] = []
    start = 0
    for stop in _ends(seqs, payload.sizes, limits, identity.incarnation_ranges()):
        through = seqs[stop - 1] if stop < len(seqs) else last
        epoch = _epoch_of(identity, seqs[start])
        if epoch.through is not None and through > epoch.through:
            through = epoch.through
        chunk = chunk_of(key, identity.gateway_id, epoch.incarnation, max(after, epoch.after), through)
        chunks.append(PlannedChunk(chunk.id, chunk.incarnation, chunk.after, chunk.last, stop - start))
        after, start = through, stop
    return chunks


def _ends(seqs: Sequence[int], sizes: Sequence[int], limits: Limits, epochs: Sequence[Epoch]) -> Iterator[int]:
    """Yield the row index at which each chunk stops. A row larger than the limit gets a chunk of its own."""
    borders = [epoch.through for epoch in epochs if epoch.through is not None]
    start = weight = border = 0
    for index, size in enumerate(sizes):
        crosses = False
        while border < len(borders) and seqs[index] > borders[border]:
            border, crosses = border + 1, True
        full = index - start >= limits.rows or weight + size > limits.bytes
        if index > start and (full or crosses):
            yield index
            start, weight = index, 0
        weight += size
    if len(seqs) > start:
        yield len(seqs)


def halved(key: StreamKey, gateway_id: str, chunk: PlannedChunk, seqs: Sequence[int]) -> list[PlannedChunk]:
    """Split the chunk between its two middle rows."""
    middle = len(seqs) // 2
    border = seqs[middle - 1]
    return [
        part_of(key, gateway_id, chunk, chunk.after, border, middle),
        part_of(key, gateway_id, chunk, border, chunk.last, len(seqs) - middle),
    ]


def lacking(
    key: StreamKey, gateway_id: str, chunk: PlannedChunk, seqs: Sequence[int], covered: Delivered
) -> list[PlannedChunk]:
    """Return the parts of the chunk that the destination lacks: its holes, and everything above its last sequence."""
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
    """Return the planned chunk for the sink, under its recorded id even if the sink was renamed since."""
    return Chunk(planned.id, key, gateway_id, planned.incarnation, planned.after, planned.last)


def _epoch_of(identity: Identity, seq: int) -> Epoch:
    return next(epoch for epoch in identity.incarnation_ranges() if epoch.through is None or seq <= epoch.through)
