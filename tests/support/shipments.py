"""Chunks and their rows, as a driver passes them to a sink."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from hypaware.export.rows import make_chunk
from hypaware.export.sink import Chunk
from hypaware.lake.build import table_from_json_lines
from hypaware.lake.schema import file_schema, table_columns
from hypaware.model import canonical
from hypaware.model.datasets import INTERNAL, SEQ, coerce_row
from hypaware.state.streams import StreamKey
from tests.support.rows import DATASET, MESSAGES, row

GATEWAY, INCARNATION = "gw-0011223344556677", "a" * 32


def chunk(after: int, last: int, source: str = "claude", **whose: str) -> Chunk:
    gateway, incarnation = whose.get("gateway", GATEWAY), whose.get("incarnation", INCARNATION)
    return make_chunk(StreamKey("team", DATASET, source), gateway, incarnation, after, last)


def rows_of(seqs: Sequence[int], **columns: Any) -> pa.Table:
    """Return rows as the driver reads them. The sequence comes first and determines the identity of a row."""
    schema = file_schema(MESSAGES, {column.name: place for place, column in enumerate(table_columns(MESSAGES), 1)})
    lines = [canonical.serialize_row(coerce_row(MESSAGES, row(seq, **columns), GATEWAY))[1] for seq in seqs]
    internal = {name: pa.repeat("", len(seqs)) for name in INTERNAL} | {SEQ: pa.array(seqs, pa.int64())}
    found = table_from_json_lines(schema, lines, internal)
    plain = pa.schema([pa.field(name, found.schema.field(name).type) for name in found.column_names])
    return found.cast(plain).select([SEQ, *(column.name for column in MESSAGES.columns)])
