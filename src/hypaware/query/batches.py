"""Small Arrow batches into larger ones: the JVM makes them small, so that rows of any length fit its memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

ROWS_FROM_JVM = 64
_ROWS, _BYTES = 1000, 4 << 20


def joined(small: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, in batches of some MiB."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in small:
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _ROWS or size >= _BYTES:
            yield _one(held)
            held, rows, size = [], 0, 0
    if held:
        yield _one(held)


def _one(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    return held[0] if len(held) == 1 else pa.concat_batches(held)
