"""The rows of dead letters: pack them into the state, list, show and drop them. `replay` sends them again.

@ref delivery#refusal
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hypaware.export.stream_locks import lock_streams
from hypaware.home import Home
from hypaware.model.columns import ColumnType
from hypaware.state import dead_letters, mirror, schema, streams
from hypaware.state.dead_letters import DeadLetter
from hypaware.state.streams import PlannedChunk, StreamKey

if TYPE_CHECKING:
    import pyarrow as pa

    from hypaware.export.rows import PrivacyGate
    from hypaware.model.datasets import Dataset
    from hypaware.state.store import StateStore

ReadJob = Callable[[dict[str, Any]], tuple[dict[str, Any], bytes]]
"""Runs the job `read` with these arguments. Returns its result and its bytes."""


def make_letter(key: StreamKey, chunk: PlannedChunk, reason: str) -> DeadLetter:
    return DeadLetter(chunk.id, key, chunk.incarnation, chunk.after, chunk.last, chunk.rows, reason, schema.utc_now())


def pack_rows(rows: pa.Table) -> bytes:
    # Imported here: listing dead letters must not load Arrow.
    import pyarrow as pa

    # Copied first: Arrow pads buffers to 64 bytes, and the padding of a slice holds text of the neighbouring rows.
    rows = rows.combine_chunks().take(pa.array(range(rows.num_rows), pa.int64()))
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(rows)
    body: bytes = out.getvalue().to_pybytes()
    return body


def unpack_rows(body: bytes) -> pa.Table:
    import pyarrow as pa

    with pa.ipc.open_stream(body) as reader:
        return reader.read_all()


def list_letters(store: StateStore, sink: str | None = None) -> list[DeadLetter]:
    with store.reading() as connection:
        return dead_letters.list_letters(connection, sink)


def find_letters(store: StateStore, ids: Sequence[str]) -> list[DeadLetter]:
    """Return the dead letters with these ids or unique id prefixes, each once."""
    with store.reading() as connection:
        found = [dead_letters.find_letter(connection, each) for each in ids]
    return list({letter.id: letter for letter in found}.values())


def read_rows(store: StateStore, letter: DeadLetter, read_lake: ReadJob, gate: PrivacyGate) -> list[dict[str, Any]]:
    """Return the refused rows, from the lake if the state lost its copy.

    Secrets are redacted as for delivery, because the user may show the output to others.
    """
    from hypaware.model import datasets

    with store.reading() as connection:
        body = dead_letters.load_payload(connection, letter.id)
    dataset = datasets.get(letter.key.dataset)
    if body is not None:
        return _format_redacted(dataset, body, gate)
    found: list[dict[str, Any]] = []
    wanted = {"dataset": letter.key.dataset, "source": letter.key.source, "until": letter.last}
    after: int | None = letter.after
    while after is not None:
        result, page = read_lake({**wanted, "since": after, "include_legacy": False})
        found += _format_redacted(dataset, page, gate) if page else []
        after = result["next"]
    return found


def _format_redacted(dataset: Dataset, body: bytes, gate: PrivacyGate) -> list[dict[str, Any]]:
    """Format packed rows for people: without secrets, JSON columns as JSON, times as text, nulls left out."""
    import orjson

    json_columns = {column.name for column in dataset.columns if column.type is ColumnType.JSON}
    found: list[dict[str, Any]] = []
    for row in gate.redact(dataset.name, unpack_rows(body)).to_pylist():
        kept = {name: value for name, value in row.items() if value is not None and name in dataset.coercers}
        for name in json_columns & kept.keys():
            kept[name] = orjson.loads(kept[name])
        found.append(
            {name: value.isoformat() if hasattr(value, "isoformat") else value for name, value in kept.items()}
        )
    return found


def drop_letters(home: Home, store: StateStore, selected: Sequence[DeadLetter]) -> None:
    """Delete dead letters without delivering them. Takes the stream locks, so that no replay of them is running."""
    if not selected:
        return
    with lock_streams(home, {letter.key for letter in selected}):
        with store.transaction() as connection:
            for letter in selected:
                dead_letters.drop_letter(connection, letter.id)
            streams.advance_delivery_step(connection)
        mirror.write_mirror(home.mirror, store)
