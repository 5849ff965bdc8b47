"""Combine the small Arrow batches of the JVM, which are small so that long rows fit its memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

_BATCH_ROWS, _BATCH_BYTES = 1000, 4 << 20


def joined(small: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of about 4 MiB or 1000 rows."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in small:
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield _one(held)
            held, rows, size = [], 0, 0
    if held:
        yield _one(held)


def _one(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    return held[0] if len(held) == 1 else pa.concat_batches(held)
