"""The blob sink: the object first, then its manifest, create-only. Only manifests count.

One chunk, step by step: what is there already? · encode · put the object (over what a dead try left) · create the
manifest with the hash of what was put · look whether the object is still that one.

Two writers of one chunk (a copied home, a round that was thought dead) may have other bytes, after a purge. One of
them creates the manifest, one of them puts the object last, and these need not be the same. So everybody looks at the
object *behind* the manifest, and whoever finds its own bytes there sees to it that the manifest is its own:

- `ship` and `landed` tell of success only after they saw an object with the hash that the manifest tells;
- a manifest is never changed; one that is not true is removed by the writer of the object, which then creates its own.

So when the last of them is done, the manifest is true. What two keys of a store cannot give: a writer that puts its
object after the other's last look and is killed before its own, and never runs again, leaves one that is not.
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

_before_object = faults.point("export.blob.before-object", "a chunk is encoded, nothing of it is stored")
_after_object = faults.point("export.blob.after-object", "an object is stored that no manifest names")
_after_manifest = faults.point("export.blob.after-manifest", "an object and its manifest are stored")

_MANIFESTS_AT_ONCE = 32


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
    def of(cls, settings: SinkSettings) -> BlobSink:
        options = settings.options
        return cls(store_of(options), _encoder_called(str(options["encoder"])), place_of(options).address)

    async def open(self) -> Destination:
        await self._store.open()
        return Destination(self._address)

    async def landed(self, chunk: Chunk) -> bool:
        found = (await self._overlapping(chunk, chunk.after)).get((chunk.after, chunk.last))
        return found is not None and found.is_of(chunk) and await self._is_true(found)

    async def delivered(self, stream: StreamKey, gateway_id: str, incarnation: str) -> Delivered:
        everything = Chunk("", stream, gateway_id, incarnation, 0, 10**20)
        found = await self._overlapping(everything, 0)
        return delivered_by(each for each, said in found.items() if said and said.is_in(everything))

    def encode(self, rows: pa.Table) -> Payload:
        return Rows(rows)

    async def ship(self, chunk: Chunk, payload: Payload, acked_to: int) -> int:
        assert isinstance(payload, Rows)
        standing = await self._standing(chunk, acked_to)
        if standing and await self._is_true(standing):
            return standing.bytes
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
            said = mine if created else await self._own(chunk)
            if said and said.objects == mine.objects:
                return mine.bytes
            await self._store.remove(key)
        said = await self._own(chunk)
        if said and await self._is_true(said):
            return said.bytes
        raise Unreachable(f"another program is delivering the same rows to {self._address}: {key}")

    def _encoded(self, chunk: Chunk, table: pa.Table) -> _Body:
        columns = datasets.get(chunk.stream.dataset).columns
        json_columns = {column.name for column in columns if column.type is Type.JSON}
        file = io.BytesIO()
        self._encoder.write(typed.mark(table, json_columns), file)
        data = file.getbuffer()
        key = keys.object_key(chunk, self._encoder.extension)
        return _Body(data, StoredObject(key, len(table), len(data), sha256(data).hexdigest()))

    async def _standing(self, chunk: Chunk, acked_to: int) -> Manifest | None:
        """The chunk's own manifest. Raises Overlap where rows of its range are there under another one."""
        overlapping = await self._overlapping(chunk, acked_to)
        if (chunk.after, chunk.last) in overlapping:
            return self._checked(chunk, overlapping[chunk.after, chunk.last])
        if any(said and said.is_in(chunk) for said in overlapping.values()):
            raise Overlap(await self.delivered(chunk.stream, chunk.gateway_id, chunk.incarnation))
        return None

    async def _own(self, chunk: Chunk) -> Manifest | None:
        data = await self._store.read(keys.manifest_key(chunk))
        return None if data is None else self._checked(chunk, manifest.read(data))

    def _checked(self, chunk: Chunk, found: Manifest | None) -> Manifest:
        if found and found.is_of(chunk):
            return found
        whose = f"is of {found.source!r} of {found.gateway}" if found else "is not a manifest"
        raise Denied(
            f"{self._address}: {keys.manifest_key(chunk)} {whose}, and stands where rows of {chunk.stream.source!r} "
            "must go. Look at it; if it is of no use, remove it",
            kind="foreign_manifest",
        )

    async def _overlapping(self, chunk: Chunk, acked_to: int) -> dict[tuple[int, int], Manifest | None]:
        """What stands under names that share rows with the chunk; None for what is not a manifest.

        Ranges that begin below `acked_to` end there: no need to look at all that was ever delivered.
        """
        folder = keys.manifest_folder(chunk.stream, chunk.gateway_id)
        digits = keys.eight_digits(chunk.incarnation)
        names: dict[str, tuple[int, int]] = {}
        start = keys.before(chunk.incarnation, min(acked_to, chunk.after))
        async for name in self._store.names(folder, start):
            found = keys.read_manifest_name(name)
            if found and found.incarnation == digits and found.after < chunk.last and found.last > chunk.after:
                names[name] = (found.after, found.last)
        turns = asyncio.Semaphore(_MANIFESTS_AT_ONCE)

        async def read(name: str) -> bytes | None:
            async with turns:
                return await self._store.read(f"{folder}/{name}")

        held = await asyncio.gather(*map(read, names))
        return {
            names[name]: said if (said := manifest.read(data)) and (said.after, said.last) == names[name] else None
            for name, data in zip(names, held, strict=True)
            if data is not None
        }

    async def _is_true(self, said: Manifest) -> bool:
        """Whether the objects are what the manifest says."""
        for each in said.objects:
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
        raise ConfigError(f"there is no encoder {name!r}.{nearest(name, tuple(known))}", repair="hyp plugin list")
    return known[name]
