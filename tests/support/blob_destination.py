"""Helpers for tests of blob sinks: chunks with rows, and an independent reader of the format."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from hypaware.export.encoders import PARQUET, Encoder
from hypaware.export.rows import make_chunk
from hypaware.export.sink import Chunk, DestinationUnreachable, TablePayload
from hypaware.export.sinks.blob import parse_location
from hypaware.export.sinks.blob.blob_sink import BlobSink, BlobStore, make_store
from hypaware.lake.build import table_from_json_lines
from hypaware.lake.schema import file_schema
from hypaware.model import canonical
from hypaware.model.datasets import INTERNAL, coerce_row
from hypaware.state.streams import StreamKey
from tests.support.rows import DATASET, MESSAGES, rows

GATEWAY = "gw-0011223344556677"
INCARNATION = "00c0ffee00c0ffee00c0ffee00c0ffee"
_COLUMNS = [column.name for column in MESSAGES.columns]
_SCHEMA = file_schema(MESSAGES, {name: number for number, name in enumerate([*_COLUMNS, *INTERNAL], 1)})
_PUBLIC = pa.schema([field for field in _SCHEMA if field.name in _COLUMNS])


def table(count: int, start: int = 0, **columns: Any) -> pa.Table:
    """Return rows as the driver passes them to a sink."""
    return table_of(rows(count, start, **columns))


def table_of(raw: Sequence[dict[str, Any]]) -> pa.Table:
    coerced = [coerce_row(MESSAGES, row, GATEWAY) for row in raw]
    return table_from_json_lines(_PUBLIC, [canonical.serialize_row(row)[1] for row in coerced], {})


def payload(count: int, start: int = 0, **columns: Any) -> TablePayload:
    return TablePayload(table(count, start, **columns))


def chunk(
    after: int, last: int, *, source: str = "claude", gateway_id: str = GATEWAY, incarnation: str = INCARNATION
) -> Chunk:
    return make_chunk(StreamKey("archive", DATASET, source), gateway_id, incarnation, after, last)


def sink_to(
    options: dict[str, Any] | Path,
    encoder: Encoder = PARQUET,
    around: Callable[[BlobStore], BlobStore] = lambda store: store,
) -> BlobSink:
    """Return a sink that is not open yet; `around` may wrap its store."""
    given = {"destination": str(options)} if isinstance(options, Path) else options
    return BlobSink(around(make_store(given)), encoder, parse_location(given).address)


async def opened(
    options: dict[str, Any] | Path,
    encoder: Encoder = PARQUET,
    around: Callable[[BlobStore], BlobStore] = lambda store: store,
) -> BlobSink:
    sink = sink_to(options, encoder, around)
    await sink.open()
    return sink


async def until_landed(sink: BlobSink, what: Chunk, rows: TablePayload) -> None:
    """Deliver like the driver: query for the chunk, and send it again after a while."""
    for tries in range(100):
        try:
            await sink.ship(what, rows, 0)
            return
        except DestinationUnreachable:
            if await sink.has_chunk(what):
                return
            await asyncio.sleep(random.uniform(0, 0.001 * 2 ** min(tries, 8)))
    raise AssertionError("it never landed")


def files(root: Path) -> dict[str, bytes]:
    """Return all files of a folder by path."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    # Without the object that shows whether the store honours conditional writes.
    return {str(path.relative_to(root)): path.read_bytes() for path in files if path.parent.name != "_hypaware"}


def manifests(held: dict[str, bytes]) -> list[dict[str, Any]]:
    return [json.loads(data) for key, data in sorted(held.items()) if "/_manifests/" in key and key.endswith(".json")]


def untrue(held: dict[str, bytes]) -> list[str]:
    """Return the keys of objects that do not match their manifest."""
    named = [each for manifest in manifests(held) for each in manifest["objects"]]
    return [
        each["key"]
        for each in named
        if each["key"] not in held
        or len(held[each["key"]]) != each["bytes"]
        or hashlib.sha256(held[each["key"]]).hexdigest() != each["sha256"]
    ]


class Between:
    """A store that awaits `meet` before each call, with its operation and key."""

    def __init__(self, store: BlobStore, meet: Callable[[str, str], Awaitable[None]]) -> None:
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
