"""Prepare rows for a sink: apply the privacy gate, then encode. A sink never receives other rows."""

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
    """The rows of (after, reached] that may leave this machine, with their sequences and their encoded form."""

    table: pa.Table
    payload: Payload
    after: int
    reached: int
    gate_report: Audit

    @cached_property
    def seqs(self) -> Sequence[int]:
        seqs: list[int] = self.table.column(SEQ).to_pylist()
        return seqs

    def contains(self, chunk: PlannedChunk) -> bool:
        return self.after <= chunk.after and chunk.last <= self.reached

    def slice(self, chunk: PlannedChunk) -> Supply:
        after, last = chunk.after, chunk.last
        start, stop = bisect_right(self.seqs, after), bisect_right(self.seqs, last)
        rows, payload = self.table.slice(start, stop - start), self.payload.slice(start, stop)
        return Supply(rows, payload, after, last, self.gate_report.slice(after, last))


async def ready(gate: Clearance, sink: Sink, dataset: str, rows: pa.Table, after: int, reached: int) -> Supply:
    """Gate and encode all rows in (after, reached], on a worker thread."""

    def prepare() -> Supply:
        table, gate_report = gate.filter_rows(dataset, rows)
        to_encode = table if sink.wants_sequence else table.drop_columns([SEQ])
        return Supply(table, sink.encode(to_encode), after, reached, gate_report)

    return await asyncio.to_thread(prepare)
