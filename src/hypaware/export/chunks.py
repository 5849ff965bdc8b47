"""Cut new rows into chunks: in sequence order, by rows and bytes, never across two incarnations.

The ranges of a plan are contiguous, so the only gaps at a destination are ranges that it refused.

@ref delivery#plan
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from hypaware.export.sink import Chunk, ChunkLimits, Payload, StreamCoverage, make_chunk
from hypaware.home.identity import Identity, IncarnationRange
from hypaware.state.intents import PlannedChunk
from hypaware.state.streams import StreamKey


def cut_chunks(
    key: StreamKey, identity: Identity, after: int, last: int, seqs: Sequence[int], payload: Payload,
    limits: ChunkLimits,
) -> list[PlannedChunk]:  # fmt: skip
    """Return chunks that together cover (after, last] and hold the rows with the given sequences."""
    incarnations = identity.incarnation_ranges()
    chunks: list[PlannedChunk] = []
    start = 0
    for stop in _chunk_ends(seqs, payload.sizes, limits, incarnations):
        through = seqs[stop - 1] if stop < len(seqs) else last
        owner = next(each for each in incarnations if each.through is None or seqs[start] <= each.through)
        if owner.through is not None and through > owner.through:
            through = owner.through
        chunk = make_chunk(key, identity.gateway_id, owner.incarnation, max(after, owner.after), through)
        chunks.append(PlannedChunk(chunk.id, chunk.incarnation, chunk.after, chunk.last, stop - start))
        after, start = through, stop
    return chunks


def _chunk_ends(
    seqs: Sequence[int], sizes: Sequence[int], limits: ChunkLimits, incarnations: Sequence[IncarnationRange]
) -> Iterator[int]:
    """Yield the row index at which each chunk stops. A row larger than the limit gets a chunk of its own."""
    borders = [each.through for each in incarnations if each.through is not None]
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


def halve_chunk(key: StreamKey, gateway_id: str, chunk: PlannedChunk, seqs: Sequence[int]) -> list[PlannedChunk]:
    """Split the chunk between its two middle rows."""
    middle = len(seqs) // 2
    border = seqs[middle - 1]
    return [
        _subchunk(key, gateway_id, chunk, chunk.after, border, middle),
        _subchunk(key, gateway_id, chunk, border, chunk.last, len(seqs) - middle),
    ]


def missing_chunks(
    key: StreamKey, gateway_id: str, chunk: PlannedChunk, seqs: Sequence[int], covered: StreamCoverage
) -> list[PlannedChunk]:
    """Return the parts of the chunk that the destination lacks: its holes, and everything above its last sequence."""
    ranges = [(max(after, chunk.after), min(last, chunk.last)) for after, last in covered.holes]
    ranges.append((max(covered.last, chunk.after), chunk.last))
    return [
        _subchunk(key, gateway_id, chunk, after, last, bisect_right(seqs, last) - bisect_right(seqs, after))
        for after, last in ranges
        if after < last
    ]


def _subchunk(key: StreamKey, gateway_id: str, chunk: PlannedChunk, after: int, last: int, rows: int) -> PlannedChunk:
    part = make_chunk(key, gateway_id, chunk.incarnation, after, last)
    return PlannedChunk(part.id, part.incarnation, part.after, part.last, rows)


def to_chunk(key: StreamKey, gateway_id: str, planned: PlannedChunk) -> Chunk:
    """Return the planned chunk for the sink, under its recorded id even if the sink was renamed since."""
    return Chunk(planned.id, key, gateway_id, planned.incarnation, planned.after, planned.last)
