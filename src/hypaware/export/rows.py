"""Read the rows to deliver, apply the privacy gate, encode them for a sink, and cut them into chunks.

Tables begin with the sequence (`_hyp_ingest_seq`), followed by the public columns, in sequence order. A sink never
receives rows that did not pass the gate. `RowReader` is a protocol so that delivery can be tested without Spark.

Chunks are cut in sequence order, by rows and bytes, never across two incarnations. The ranges of a plan are contiguous,
so the only gaps at a destination are ranges that it refused.

@ref delivery#plan
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from hypaware.errors import HypError
from hypaware.export.privacy_gate import GateReport, PrivacyGate
from hypaware.export.sink import Chunk, ChunkLimits, Payload, Sink, StreamCoverage, make_chunk
from hypaware.home.identity import Identity, IncarnationRange
from hypaware.lake import read
from hypaware.lake.read import RowPage
from hypaware.model.datasets import SEQ
from hypaware.state.intents import PlannedChunk
from hypaware.state.streams import StreamKey

if TYPE_CHECKING:
    import pyarrow as pa

    from hypaware.home import Home


class RowReader(Protocol):
    async def page(self, dataset: str, source: str, after: int, until: int, most: int) -> RowPage:
        """Return the next rows, at most `most` of them. Advances by at least one sequence and never beyond `until`."""
        ...

    async def between(self, dataset: str, source: str, after: int, last: int) -> pa.Table:
        """Return all rows in (after, last]."""
        ...

    def count(self, dataset: str, source: str, after: int, last: int) -> int:
        """Count the rows in (after, last]."""
        ...


class LakeRowReader:
    """Rows from the home's own lake."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self.scanned = 0
        """Rows read in total, including those that did not match."""

    async def page(self, dataset: str, source: str, after: int, until: int, most: int) -> RowPage:
        found = await asyncio.to_thread(read.read_page_after, self._home, dataset, source, after, until, most)
        self.scanned += found.scanned
        return found

    async def between(self, dataset: str, source: str, after: int, last: int) -> pa.Table:
        found = await asyncio.to_thread(read.read_between, self._home, dataset, source, after, last)
        self.scanned += found.scanned
        return found.rows

    def count(self, dataset: str, source: str, after: int, last: int) -> int:
        return read.count_rows_between(self._home, dataset, source, after, last)


@dataclass(frozen=True)
class PreparedRows:
    """The rows of (after, reached] that may leave this machine, with their sequences and their encoded form."""

    table: pa.Table
    payload: Payload
    after: int
    reached: int
    gate_report: GateReport

    @cached_property
    def seqs(self) -> Sequence[int]:
        seqs: list[int] = self.table.column(SEQ).to_pylist()
        return seqs

    def contains(self, chunk: PlannedChunk) -> bool:
        return self.after <= chunk.after and chunk.last <= self.reached

    def slice(self, chunk: PlannedChunk) -> PreparedRows:
        after, last = chunk.after, chunk.last
        start, stop = bisect_right(self.seqs, after), bisect_right(self.seqs, last)
        rows, payload = self.table.slice(start, stop - start), self.payload.slice(start, stop)
        return PreparedRows(rows, payload, after, last, self.gate_report.slice(after, last))


async def prepare_rows(
    gate: PrivacyGate, sink: Sink, key: StreamKey, rows: pa.Table, after: int, reached: int
) -> PreparedRows:
    """Gate and encode all rows in (after, reached], on a worker thread.

    Raises HypError (`sink_failed`) if the sink cannot encode them: that cannot be cured by a retry.
    """

    def prepare() -> PreparedRows:
        table, gate_report = gate.filter_rows(key.dataset, rows)
        try:
            payload = sink.encode(table if sink.wants_sequence else table.drop_columns([SEQ]))
        except HypError:
            raise
        except Exception as error:
            problem = f"the sink {key.sink} could not encode {len(table)} rows: {type(error).__name__}: {error}"
            raise HypError(problem, kind="sink_failed") from error
        return PreparedRows(table, payload, after, reached, gate_report)

    return await asyncio.to_thread(prepare)


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
