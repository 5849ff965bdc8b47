"""Dead letters with their rows: packed into the state, shown to the user, and sent again.

A replay is the same chunk under the same id: asked for first, and counted once however often it is tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hypaware.model.columns import Type
from hypaware.state import streams
from hypaware.state.dead_letters import DeadLetter
from hypaware.state.intents import PlannedChunk
from hypaware.state.stream_key import StreamKey

if TYPE_CHECKING:
    from hypaware.model.datasets import Dataset


def of_chunk(key: StreamKey, chunk: PlannedChunk, reason: str) -> DeadLetter:
    return DeadLetter(chunk.id, key, chunk.incarnation, chunk.after, chunk.last, chunk.rows, reason, streams.now())


def packed(rows: pa.Table) -> bytes:
    # Copied first: Arrow writes buffers out to the next 64 bytes, and behind a slice lies its neighbours' text.
    rows = rows.combine_chunks().take(pa.array(range(rows.num_rows), pa.int64()))
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(rows)
    body: bytes = out.getvalue().to_pybytes()
    return body


def unpacked(body: bytes) -> pa.Table:
    with pa.ipc.open_stream(body) as reader:
        return reader.read_all()


def shown(dataset: Dataset, rows: pa.Table) -> list[dict[str, Any]]:
    """Rows for people: JSON columns as JSON, times as text, nulls left out."""
    import orjson

    json_columns = {column.name for column in dataset.columns if column.type is Type.JSON}
    found = []
    for row in rows.to_pylist():
        kept = {name: value for name, value in row.items() if value is not None and name in dataset.coercers}
        for name in json_columns & kept.keys():
            kept[name] = orjson.loads(kept[name])
        found.append(
            {name: value.isoformat() if hasattr(value, "isoformat") else value for name, value in kept.items()}
        )
    return found
