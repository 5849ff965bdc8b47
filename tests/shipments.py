"""Chunks and their rows, as a driver hands them to a sink."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from hypaware.export.ranges import chunk_of
from hypaware.export.sink import Chunk
from hypaware.lake.arrow import file_schema, from_json_lines, table_columns
from hypaware.model import canonical
from hypaware.model.coerce import coerce_row
from hypaware.model.datasets import INTERNAL, SEQ
from hypaware.state.stream_key import StreamKey
from tests.rows import DATASET, MESSAGES, row

GATEWAY, INCARNATION = "gw-0011223344556677", "a" * 32


def chunk(after: int, last: int, source: str = "claude", **whose: str) -> Chunk:
    gateway, incarnation = whose.get("gateway", GATEWAY), whose.get("incarnation", INCARNATION)
    return chunk_of(StreamKey("team", DATASET, source), gateway, incarnation, after, last)


def rows_of(seqs: Sequence[int], **columns: Any) -> pa.Table:
    """As the driver reads them: the sequence, then the public columns. The sequence makes the row's identity."""
    schema = file_schema(MESSAGES, {column.name: place for place, column in enumerate(table_columns(MESSAGES), 1)})
    lines = [canonical.row_id_and_text(coerce_row(MESSAGES, row(seq, **columns), GATEWAY))[1] for seq in seqs]
    internal = {name: pa.repeat("", len(seqs)) for name in INTERNAL} | {SEQ: pa.array(seqs, pa.int64())}
    found = from_json_lines(schema, lines, internal)
    plain = pa.schema([pa.field(name, found.schema.field(name).type) for name in found.column_names])
    return found.cast(plain).select([SEQ, *(column.name for column in MESSAGES.columns)])
