"""Read the raw exchanges of a lake in the order in which they were stored, across all sources.

This is the order in which they ended, and the one that decoders need: a request is read after those whose history it
repeats, even if a client's session has two sources. Memory holds one page of each source.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from hypaware.home import Home
from hypaware.lake import metadata, since
from hypaware.model.columns import timestamp_text
from hypaware.model.datasets import SEQ, Row
from hypaware.model.exchanges import AI_GATEWAY_EXCHANGES
from hypaware.state import flushes
from hypaware.state.store import Store

_PAGE_ROWS = 2_000
_ROWS_AT_ONCE = 64

Through = Mapping[str, int]
"""Source → its last recorded sequence."""


def recorded(store: Store) -> Through:
    with store.reading() as connection:
        return flushes.high_water(connection, AI_GATEWAY_EXCHANGES.name).get(AI_GATEWAY_EXCHANGES.name, {})


def count(home: Home) -> int:
    """Count the stored exchanges, including those that are not recorded yet."""
    entry = metadata.entry(home, AI_GATEWAY_EXCHANGES.name)
    return sum(file.rows for file in metadata.remembered_files(metadata.read(entry.metadata))) if entry else 0


def rows(home: Home, through: Through) -> Iterator[Row]:
    """Yield the exchanges up to the recorded sequences, in producer form. Later ones are left to the next run."""
    sources = [_of_source(home, source, last) for source, last in sorted(through.items())]
    for _, row in heapq.merge(*sources, key=lambda found: found[0]):
        yield row


def _of_source(home: Home, source: str, last: int) -> Iterator[tuple[int, Row]]:
    after = 0
    while after < last:
        found = since.page(home, AI_GATEWAY_EXCHANGES.name, source, after, last, _PAGE_ROWS)
        after = found.reached
        for batch in found.rows.to_batches(max_chunksize=_ROWS_AT_ONCE):
            for row in batch.to_pylist():
                yield row.pop(SEQ), {name: _as_coerced(value) for name, value in row.items() if value is not None}


def _as_coerced(value: Any) -> Any:
    return timestamp_text(value) if isinstance(value, datetime) else value
