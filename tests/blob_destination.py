"""What the tests of blob sinks share: chunks with their rows, and a reader that knows the format and not the code."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from hypaware.export.encoders.encoder import Encoder
from hypaware.export.encoders.parquet import PARQUET
from hypaware.export.payload import Rows
from hypaware.export.ranges import chunk_of
from hypaware.export.sink import Chunk, Unreachable
from hypaware.export.sinks.blob.address import place_of
from hypaware.export.sinks.blob.sink import BlobSink
from hypaware.export.sinks.blob.store import Store, store_of
from hypaware.lake.arrow import file_schema, from_json_lines
from hypaware.model import canonical
from hypaware.model.coerce import coerce_row
from hypaware.model.datasets import INTERNAL
from hypaware.state.stream_key import StreamKey
from tests.rows import DATASET, MESSAGES, rows

GATEWAY = "gw-0011223344556677"
INCARNATION = "00c0ffee00c0ffee00c0ffee00c0ffee"
_COLUMNS = [column.name for column in MESSAGES.columns]
_SCHEMA = file_schema(MESSAGES, {name: number for number, name in enumerate([*_COLUMNS, *INTERNAL], 1)})
_PUBLIC = pa.schema([field for field in _SCHEMA if field.name in _COLUMNS])


def table(count: int, start: int = 0, **columns: Any) -> pa.Table:
    """Rows as the driver hands them over."""
    return table_of(rows(count, start, **columns))


def table_of(raw: Sequence[dict[str, Any]]) -> pa.Table:
    coerced = [coerce_row(MESSAGES, row, GATEWAY) for row in raw]
    return from_json_lines(_PUBLIC, [canonical.row_id_and_text(row)[1] for row in coerced], {})


def payload(count: int, start: int = 0, **columns: Any) -> Rows:
    return Rows(table(count, start, **columns))


def chunk(
    after: int, last: int, *, source: str = "claude", gateway_id: str = GATEWAY, incarnation: str = INCARNATION
) -> Chunk:
    return chunk_of(StreamKey("archive", DATASET, source), gateway_id, incarnation, after, last)


def sink_to(
    options: dict[str, Any] | Path, encoder: Encoder = PARQUET, around: Callable[[Store], Store] = lambda store: store
) -> BlobSink:
    """A sink that is not open yet. `around` may come between it and its store."""
    given = {"destination": str(options)} if isinstance(options, Path) else options
    return BlobSink(around(store_of(given)), encoder, place_of(given).address)


async def opened(
    options: dict[str, Any] | Path, encoder: Encoder = PARQUET, around: Callable[[Store], Store] = lambda store: store
) -> BlobSink:
    sink = sink_to(options, encoder, around)
    await sink.open()
    return sink


async def until_landed(sink: BlobSink, what: Chunk, rows: Rows) -> None:
    """As the driver does: the same chunk again after a while, when it was asked about."""
    for tries in range(100):
        try:
            await sink.ship(what, rows, 0)
            return
        except Unreachable:
            if await sink.has_chunk(what):
                return
            await asyncio.sleep(random.uniform(0, 0.001 * 2 ** min(tries, 8)))
    raise AssertionError("it never landed")


def files(root: Path) -> dict[str, bytes]:
    """Everything in a folder, by its path."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def manifests(held: dict[str, bytes]) -> list[dict[str, Any]]:
    return [json.loads(data) for key, data in sorted(held.items()) if "/_manifests/" in key and key.endswith(".json")]


def untrue(held: dict[str, bytes]) -> list[str]:
    """Keys of objects that are not what their manifest says."""
    named = [each for manifest in manifests(held) for each in manifest["objects"]]
    return [
        each["key"]
        for each in named
        if each["key"] not in held
        or len(held[each["key"]]) != each["bytes"]
        or hashlib.sha256(held[each["key"]]).hexdigest() != each["sha256"]
    ]


class Between:
    """A store with somebody at its door: `meet` is awaited before each call, with its verb and key."""

    def __init__(self, store: Store, meet: Callable[[str, str], Awaitable[None]]) -> None:
        self._store, self._meet = store, meet

    async def open(self) -> None:
        await self._store.open()

    async def write(self, key: str, data: memoryview, content_type: str) -> str:
        await self._meet("write", key)
        return await self._store.write(key, data, content_type)

    async def create(self, key: str, data: bytes, content_type: str) -> bool:
        await self._meet("create", key)
        return await self._store.create(key, data, content_type)

    async def read(self, key: str) -> bytes | None:
        await self._meet("read", key)
        return await self._store.read(key)

    async def version(self, key: str) -> str | None:
        await self._meet("version", key)
        return await self._store.version(key)

    async def remove(self, key: str) -> None:
        await self._meet("remove", key)
        await self._store.remove(key)

    async def names(self, folder: str, after: str) -> AsyncIterator[str]:
        await self._meet("names", folder)
        async for name in self._store.names(folder, after):
            yield name
