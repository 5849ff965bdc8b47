"""The rows of dead letters: pack them into the state, unpack them, format them for the user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypaware.model.columns import Type
from hypaware.state import streams
from hypaware.state.dead_letters import DeadLetter
from hypaware.state.intents import PlannedChunk
from hypaware.state.stream_key import StreamKey

if TYPE_CHECKING:
    import pyarrow as pa

    from hypaware.model.datasets import Dataset


def of_chunk(key: StreamKey, chunk: PlannedChunk, reason: str) -> DeadLetter:
    return DeadLetter(chunk.id, key, chunk.incarnation, chunk.after, chunk.last, chunk.rows, reason, streams.now())


def packed(rows: pa.Table) -> bytes:
    # Imported here: listing dead letters must not load Arrow.
    import pyarrow as pa

    # Copied first: Arrow pads buffers to 64 bytes, and the padding of a slice holds text of the neighbouring rows.
    rows = rows.combine_chunks().take(pa.array(range(rows.num_rows), pa.int64()))
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(rows)
    body: bytes = out.getvalue().to_pybytes()
    return body


def unpacked(body: bytes) -> pa.Table:
    import pyarrow as pa

    with pa.ipc.open_stream(body) as reader:
        return reader.read_all()


def shown(dataset: Dataset, rows: pa.Table) -> list[dict[str, Any]]:
    """Format rows for people: JSON columns as JSON, times as text, nulls left out."""
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
