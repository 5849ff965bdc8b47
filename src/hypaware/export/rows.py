"""Read the rows to deliver, and prepare them for a sink: apply the privacy gate, then encode.

Tables begin with the sequence (`_hyp_ingest_seq`), followed by the public columns, in sequence order. A sink never
receives rows that did not pass the gate. `RowReader` is a protocol so that delivery can be tested without Spark.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from hypaware.errors import HypError
from hypaware.export.privacy_gate import GateReport, PrivacyGate
from hypaware.lake import read
from hypaware.lake.read import RowPage
from hypaware.model.datasets import SEQ
from hypaware.state.intents import PlannedChunk
from hypaware.state.streams import StreamKey

if TYPE_CHECKING:
    import pyarrow as pa

    from hypaware.export.sink import Payload, Sink
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
