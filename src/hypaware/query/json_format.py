"""The formats `json` (one array of objects) and `jsonl` (one object per line).

Text is preserved exactly; control characters are written as JSON escapes. If columns share a name, the later ones get a
number (`a`, `a_2`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import orjson
import pyarrow as pa

from hypaware.query import cells
from hypaware.terminal import harmless_json


def array(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    separator = b"["
    for objects in _objects(schema, batches):
        yield _escape(separator + b"\n" + b",\n".join(objects))
        separator = b","
    yield b"[]\n" if separator == b"[" else b"\n]\n"


def lines(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    for objects in _objects(schema, batches):
        yield _escape(b"\n".join(objects) + b"\n")


def _objects(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[list[bytes]]:
    names = distinct(schema.names)
    for batch in batches:
        if batch.num_rows:
            columns = [cells.values(column) for column in batch.columns]
            yield [orjson.dumps(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def distinct(names: Iterable[str]) -> list[str]:
    """Make names unique by numbering the repeated ones."""
    unique: list[str] = []
    taken = set(names := list(names))
    for name in names:
        shown, number = name, 2
        while shown in unique:
            while (shown := f"{name}_{number}") in taken:
                number += 1
            number += 1
        unique.append(shown)
    return unique


def _escape(chunk: bytes) -> bytes:
    if chunk.isascii() and b"\x7f" not in chunk:
        return chunk
    return harmless_json(chunk.decode()).encode()
