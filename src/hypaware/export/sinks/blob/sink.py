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
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256

import pyarrow as pa

from hypaware import faults, plugins
from hypaware.errors import ConfigError
from hypaware.export.encoders import typed
from hypaware.export.encoders.encoder import Encoder
from hypaware.export.payload import Payload, Rows
from hypaware.export.sink import (
    Chunk,
    Delivered,
    Denied,
    Destination,
    Limits,
    Overlap,
    Sink,
    SinkSettings,
    Unreachable,
)
from hypaware.export.sinks.blob import keys, manifest
from hypaware.export.sinks.blob.address import place_of
from hypaware.export.sinks.blob.coverage import delivered_by
from hypaware.export.sinks.blob.manifest import Manifest, StoredObject
from hypaware.export.sinks.blob.store import Store, store_of
from hypaware.model import datasets
from hypaware.model.columns import Type
from hypaware.nearest import nearest
from hypaware.state.stream_key import StreamKey

_before_object = faults.point("export.blob.before-object", "a chunk is encoded, nothing is stored")
_after_object = faults.point("export.blob.after-object", "an object is stored without a manifest")
_after_manifest = faults.point("export.blob.after-manifest", "an object and its manifest are stored")

_CONCURRENT_READS = 32


@dataclass(frozen=True)
class _Body:
    data: memoryview
    stored: StoredObject


class BlobSink(Sink):
    limits = Limits(rows=50_000, bytes=64 << 20)

    def __init__(
        self,
        store: Store,
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
        return cls(store_of(options), _encoder_called(str(options["encoder"])), place_of(options).address)

    async def open(self) -> Destination:
        await self._store.open()
        return Destination(self._address)

    async def has_chunk(self, chunk: Chunk) -> bool:
        found = (await self._overlapping(chunk, chunk.after)).get((chunk.after, chunk.last))
        return found is not None and found.describes(chunk) and await self._matches_objects(found)

    async def coverage(self, stream: StreamKey, gateway_id: str, incarnation: str) -> Delivered:
        everything = Chunk("", stream, gateway_id, incarnation, 0, 10**20)
        found = await self._overlapping(everything, 0)
        return delivered_by(span for span, each in found.items() if each and each.is_same_stream(everything))

    def encode(self, rows: pa.Table) -> Payload:
        return Rows(rows)

    async def ship(self, chunk: Chunk, payload: Payload, acked_to: int) -> int:
        assert isinstance(payload, Rows)
        existing = await self._find_manifest(chunk, acked_to)
        if existing and await self._matches_objects(existing):
            return existing.bytes
        body = await asyncio.to_thread(self._encoded, chunk, payload.table)
        return await self._put(chunk, body)

    async def close(self) -> None:
        pass

    async def _put(self, chunk: Chunk, body: _Body) -> int:
        _before_object()
        version = await self._store.write(body.stored.key, body.data, self._encoder.content_type)
        _after_object()
        key = keys.manifest_key(chunk)
        mine = manifest.of_chunk(chunk, body.stored, self._now())
        for _ in range(2):
            created = await self._store.create(key, manifest.write(mine), "application/json")
            if created:
                _after_manifest()
            if await self._store.version(body.stored.key) != version:
                break
            current = mine if created else await self._read_manifest(chunk)
            if current and current.objects == mine.objects:
                return mine.bytes
            await self._store.remove(key)
        current = await self._read_manifest(chunk)
        if current and await self._matches_objects(current):
            return current.bytes
        raise Unreachable(f"another process is delivering the same rows to {self._address}: {key}")

    def _encoded(self, chunk: Chunk, table: pa.Table) -> _Body:
        columns = datasets.get(chunk.stream.dataset).columns
        json_columns = {column.name for column in columns if column.type is Type.JSON}
        file = io.BytesIO()
        self._encoder.write(typed.mark(table, json_columns), file)
        data = file.getbuffer()
        key = keys.object_key(chunk, self._encoder.extension)
        return _Body(data, StoredObject(key, len(table), len(data), sha256(data).hexdigest()))

    async def _find_manifest(self, chunk: Chunk, acked_to: int) -> Manifest | None:
        """Return the chunk's own manifest. Raises Overlap if rows of its range are stored under another one."""
        overlapping = await self._overlapping(chunk, acked_to)
        if (chunk.after, chunk.last) in overlapping:
            return self._checked(chunk, overlapping[chunk.after, chunk.last])
        if any(existing and existing.is_same_stream(chunk) for existing in overlapping.values()):
            raise Overlap(await self.coverage(chunk.stream, chunk.gateway_id, chunk.incarnation))
        return None

    async def _read_manifest(self, chunk: Chunk) -> Manifest | None:
        data = await self._store.read(keys.manifest_key(chunk))
        return None if data is None else self._checked(chunk, manifest.read(data))

    def _checked(self, chunk: Chunk, found: Manifest | None) -> Manifest:
        if found and found.describes(chunk):
            return found
        problem = f"belongs to {found.source!r} of {found.gateway}" if found else "is not a manifest"
        raise Denied(
            f"{self._address}: {keys.manifest_key(chunk)} {problem}, but rows of {chunk.stream.source!r} must be "
            "stored there. Inspect the file, and remove it if it is not needed",
            kind="foreign_manifest",
        )

    async def _overlapping(self, chunk: Chunk, acked_to: int) -> dict[tuple[int, int], Manifest | None]:
        """Return the manifests whose ranges overlap the chunk; None for files that are not manifests.

        Ranges that begin below `acked_to` also end there, so the listing can start there.
        """
        folder = keys.manifest_folder(chunk.stream, chunk.gateway_id)
        digits = keys.eight_digits(chunk.incarnation)
        names: dict[str, tuple[int, int]] = {}
        start = keys.before(chunk.incarnation, min(acked_to, chunk.after))
        async for name in self._store.names(folder, start):
            found = keys.read_manifest_name(name)
            if found and found.incarnation == digits and found.after < chunk.last and found.last > chunk.after:
                names[name] = (found.after, found.last)
        slots = asyncio.Semaphore(_CONCURRENT_READS)

        async def read(name: str) -> bytes | None:
            async with slots:
                return await self._store.read(f"{folder}/{name}")

        contents = await asyncio.gather(*map(read, names))
        return {
            names[name]: parsed
            if (parsed := manifest.read(data)) and (parsed.after, parsed.last) == names[name]
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
            if await asyncio.to_thread(_hash, data) != each.sha256:
                return False
        return True


def _hash(data: bytes) -> str:
    return sha256(data).hexdigest()


def _encoder_called(name: str) -> Encoder:
    known = {encoder.name: encoder for encoder in plugins.load(plugins.ENCODERS, Encoder)}
    if name not in known:
        raise ConfigError(f"unknown encoder {name!r}.{nearest(name, tuple(known))}", repair="hyp plugin list")
    return known[name]
