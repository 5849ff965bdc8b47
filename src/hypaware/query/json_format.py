"""`json`: one array of objects. `jsonl`: one object a line. Text is kept exactly; what could act on a terminal is
written as a JSON escape. Of columns that share a name, the later ones get a number (`a`, `a_2`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import orjson
import pyarrow as pa

from hypaware.query import cells
from hypaware.terminal import harmless_json


def array(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    before = b"["
    for written in _objects(schema, batches):
        yield _harmless(before + b"\n" + b",\n".join(written))
        before = b","
    yield b"[]\n" if before == b"[" else b"\n]\n"


def lines(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    for written in _objects(schema, batches):
        yield _harmless(b"\n".join(written) + b"\n")


def _objects(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[list[bytes]]:
    names = distinct(schema.names)
    for batch in batches:
        if batch.num_rows:
            columns = [cells.values(column) for column in batch.columns]
            yield [orjson.dumps(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def distinct(names: Iterable[str]) -> list[str]:
    found: list[str] = []
    taken = set(names := list(names))
    for name in names:
        shown, number = name, 2
        while shown in found:
            while (shown := f"{name}_{number}") in taken:
                number += 1
            number += 1
        found.append(shown)
    return found


def _harmless(chunk: bytes) -> bytes:
    if chunk.isascii() and b"\x7f" not in chunk:
        return chunk
    return harmless_json(chunk.decode()).encode()
