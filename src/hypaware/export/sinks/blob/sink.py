"""The blob sink: write the object, then create its manifest. Only objects with a manifest count.

Steps for one chunk: check for an existing manifest · encode · put the object, replacing that of an aborted attempt ·
create the manifest with the hash of the object · check that the object is still the same.

Two writers of one chunk (a copied home, a round that was presumed dead) may have different bytes, after a purge. The
one that creates the manifest and the one that puts the object last need not be the same. So each of them checks the
object *after* the manifest, and the writer of the object makes sure that the manifest is its own:

- `ship` and `has_chunk` report success only after they have seen an object with the hash in the manifest;
- a manifest is never changed; the writer of the object removes a manifest that does not match and creates its own.

When the last writer is done, the manifest matches the object. One case remains that a store with two keys cannot
prevent: a writer puts its object after the other's last check, is killed before its own, and never runs again.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Protocol

import pyarrow as pa

from hypaware import faults, plugins
from hypaware.errors import ConfigError
from hypaware.export import encoders
from hypaware.export.encoders import Encoder
from hypaware.export.sink import (
    Chunk,
    ChunkLimits,
    Destination,
    DestinationDenied,
    DestinationUnreachable,
    Payload,
    RangeOverlap,
    Sink,
    SinkSettings,
    StreamCoverage,
    TablePayload,
)
from hypaware.export.sinks.blob import manifest
from hypaware.export.sinks.blob.location import FolderLocation, parse_location
from hypaware.export.sinks.blob.manifest import Manifest, StoredObject
from hypaware.model import datasets
from hypaware.model.columns import ColumnType
from hypaware.state.streams import StreamKey
from hypaware.text import did_you_mean

_before_object = faults.crash_point("export.blob.before-object", "a chunk is encoded, nothing is stored")
_after_object = faults.crash_point("export.blob.after-object", "an object is stored without a manifest")
_after_manifest = faults.crash_point("export.blob.after-manifest", "an object and its manifest are stored")
_CONCURRENT_READS = 32


class BlobSink(Sink):
    limits = ChunkLimits(rows=50_000, bytes=64 << 20)

    def __init__(
        self,
        store: BlobStore,
        encoder: Encoder,
        address: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._encoder = encoder
        self._address = address
        self._now = now

    @classmethod
    def from_settings(cls, settings: SinkSettings) -> BlobSink:
        options = settings.options
        return cls(make_store(options), _find_encoder(str(options["encoder"])), parse_location(options).address)

    async def open(self) -> Destination:
        await self._store.open()
        return Destination(self._address)

    async def has_chunk(self, chunk: Chunk) -> bool:
        found = (await self._overlapping(chunk, chunk.after)).get((chunk.after, chunk.last))
        return found is not None and found.describes(chunk) and await self._matches_objects(found)

    async def coverage(self, stream: StreamKey, gateway_id: str, incarnation: str) -> StreamCoverage:
        everything = Chunk("", stream, gateway_id, incarnation, 0, 10**20)
        found = await self._overlapping(everything, 0)
        return StreamCoverage.from_ranges(
            span for span, each in found.items() if each and each.is_same_stream(everything)
        )

    def encode(self, rows: pa.Table) -> Payload:
        return TablePayload(rows)

    async def ship(self, chunk: Chunk, payload: Payload, acked_to: int) -> int:
        assert isinstance(payload, TablePayload)
        existing = await self._find_manifest(chunk, acked_to)
        if existing and await self._matches_objects(existing):
            return existing.bytes
        data, stored = await asyncio.to_thread(self._encode_object, chunk, payload.table)
        return await self._put(chunk, data, stored)

    async def close(self) -> None:
        pass

    async def _put(self, chunk: Chunk, data: memoryview, stored: StoredObject) -> int:
        _before_object()
        version = await self._store.write(stored.key, data, self._encoder.content_type)
        _after_object()
        key = manifest.manifest_key(chunk)
        mine = manifest.make_manifest(chunk, stored, self._now())
        for _ in range(2):
            created = await self._store.create(key, manifest.format_manifest(mine), "application/json")
            if created:
                _after_manifest()
            if await self._store.version(stored.key) != version:
                break
            current = mine if created else await self._read_manifest(chunk)
            if current and current.objects == mine.objects:
                return mine.bytes
            await self._store.remove(key)
        current = await self._read_manifest(chunk)
        if current and await self._matches_objects(current):
            return current.bytes
        raise DestinationUnreachable(f"another process is delivering the same rows to {self._address}: {key}")

    def _encode_object(self, chunk: Chunk, table: pa.Table) -> tuple[memoryview, StoredObject]:
        columns = datasets.get(chunk.stream.dataset).columns
        json_columns = {column.name for column in columns if column.type is ColumnType.JSON}
        file = io.BytesIO()
        self._encoder.write(encoders.mark_json_columns(table, json_columns), file)
        data = file.getbuffer()
        key = manifest.object_key(chunk, self._encoder.extension)
        return data, StoredObject(key, len(table), len(data), sha256(data).hexdigest())

    async def _find_manifest(self, chunk: Chunk, acked_to: int) -> Manifest | None:
        """Return the chunk's own manifest. Raises RangeOverlap if rows of its range are stored under another one."""
        overlapping = await self._overlapping(chunk, acked_to)
        if (chunk.after, chunk.last) in overlapping:
            return self._checked(chunk, overlapping[chunk.after, chunk.last])
        if any(existing and existing.is_same_stream(chunk) for existing in overlapping.values()):
            raise RangeOverlap(await self.coverage(chunk.stream, chunk.gateway_id, chunk.incarnation))
        return None

    async def _read_manifest(self, chunk: Chunk) -> Manifest | None:
        data = await self._store.read(manifest.manifest_key(chunk))
        return None if data is None else self._checked(chunk, manifest.parse_manifest(data))

    def _checked(self, chunk: Chunk, found: Manifest | None) -> Manifest:
        if found and found.describes(chunk):
            return found
        problem = f"belongs to {found.source!r} of {found.gateway}" if found else "is not a manifest"
        raise DestinationDenied(
            f"{self._address}: {manifest.manifest_key(chunk)} {problem}, but rows of {chunk.stream.source!r} must be "
            "stored there. Inspect the file, and remove it if it is not needed",
            kind="foreign_manifest",
        )

    async def _overlapping(self, chunk: Chunk, acked_to: int) -> dict[tuple[int, int], Manifest | None]:
        """Return the manifests whose ranges overlap the chunk; None for files that are not manifests.

        Ranges that begin below `acked_to` also end there, so the listing can start there.
        """
        folder = manifest.manifest_folder(chunk.stream, chunk.gateway_id)
        digits = manifest.incarnation_digits(chunk.incarnation)
        names: dict[str, tuple[int, int]] = {}
        start = manifest.name_before(chunk.incarnation, min(acked_to, chunk.after))
        async for name in self._store.names(folder, start):
            found = manifest.parse_manifest_name(name)
            if found and found.incarnation == digits and found.after < chunk.last and found.last > chunk.after:
                names[name] = (found.after, found.last)
        slots = asyncio.Semaphore(_CONCURRENT_READS)

        async def read(name: str) -> bytes | None:
            async with slots:
                return await self._store.read(f"{folder}/{name}")

        contents = await asyncio.gather(*map(read, names))
        return {
            names[name]: parsed
            if (parsed := manifest.parse_manifest(data)) and (parsed.after, parsed.last) == names[name]
            else None
            for name, data in zip(names, contents, strict=True)
            if data is not None
        }

    async def _matches_objects(self, found: Manifest) -> bool:
        """Return whether the stored objects match the manifest."""
        for each in found.objects:
            data = await self._store.read(each.key)
            if data is None or len(data) != each.bytes:
                return False
            if await asyncio.to_thread(_sha256_hex, data) != each.sha256:
                return False
        return True


def _sha256_hex(data: bytes) -> str:
    return sha256(data).hexdigest()


def _find_encoder(name: str) -> Encoder:
    known = {encoder.name: encoder for encoder in plugins.load_plugins(plugins.ENCODERS, Encoder)}
    if name not in known:
        raise ConfigError(f"unknown encoder {name!r}.{did_you_mean(name, tuple(known))}", repair="hyp plugin list")
    return known[name]


class BlobStore(Protocol):
    """The operations that the blob sink needs of a destination. Keys are relative to the destination's prefix.

    Every operation raises DestinationDenied, -Busy or -Unreachable on failure; the message names the place.
    """

    async def open(self) -> None:
        """Connect to the destination."""
        ...

    async def write(self, key: str, data: memoryview, content_type: str) -> str:
        """Write or replace an object. It is durable when this returns, and never visible in part.

        Returns the version of the object, which changes whenever it is written with other bytes; see `version`.
        """
        ...

    async def create(self, key: str, data: bytes, content_type: str) -> bool:
        """Create an object, durable when this returns. Returns False, without a change, if one exists."""
        ...

    async def read(self, key: str) -> bytes | None: ...

    async def version(self, key: str) -> str | None: ...

    async def remove(self, key: str) -> None: ...

    def names(self, folder: str, after: str) -> AsyncIterator[str]:
        """Yield the names in a folder that sort after the given one, in any order; none if the folder is missing."""
        ...


def make_store(options: Mapping[str, Any]) -> BlobStore:
    location = parse_location(options)
    if isinstance(location, FolderLocation):
        from hypaware.export.sinks.blob.folder import FolderStore

        return FolderStore(location)
    from hypaware.export.sinks.blob.object_store import BucketStore

    return BucketStore(location, options)
