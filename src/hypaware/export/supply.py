"""Rows at hand, ready to travel: cleared to leave, then encoded. No sink is given anything else."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from hypaware.export.clearance import Audit, Clearance
from hypaware.model.datasets import SEQ
from hypaware.state.intents import PlannedChunk

if TYPE_CHECKING:
    import pyarrow as pa

    from hypaware.export.payload import Payload
    from hypaware.export.sink import Sink


@dataclass(frozen=True)
class Supply:
    """All of (after, reached] that may leave, with sequences, in the form in which it travels."""

    table: pa.Table
    payload: Payload
    after: int
    reached: int
    audit: Audit

    @cached_property
    def seqs(self) -> Sequence[int]:
        found: list[int] = self.table.column(SEQ).to_pylist()
        return found

    def holds(self, chunk: PlannedChunk) -> bool:
        return self.after <= chunk.after and chunk.last <= self.reached

    def part(self, chunk: PlannedChunk) -> Supply:
        after, last = chunk.after, chunk.last
        start, stop = bisect_right(self.seqs, after), bisect_right(self.seqs, last)
        rows, payload = self.table.slice(start, stop - start), self.payload.part(start, stop)
        return Supply(rows, payload, after, last, self.audit.part(after, last))


async def ready(clearance: Clearance, sink: Sink, dataset: str, rows: pa.Table, after: int, reached: int) -> Supply:
    """Of all rows in (after, reached]: those that may leave, as they may, as the sink wants them."""

    def prepared() -> Supply:
        table, audit = clearance.cleared(dataset, rows)
        wanted = table if sink.wants_sequence else table.drop_columns([SEQ])
        return Supply(table, sink.encode(wanted), after, reached, audit)

    return await asyncio.to_thread(prepared)
