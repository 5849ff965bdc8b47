"""The blob sink: write the object, then create its manifest. Only objects with a manifest count.

Steps for one chunk: check for an existing manifest · encode · put the object, replacing that of an aborted attempt ·
create the manifest with the hash of the object · check that the object is still the same.

Two writers of one chunk (a copied home, a round that was presumed dead) may have different bytes, after a purge. So
each of them checks the object *after* the manifest, and the writer of the object makes sure that the manifest is its
own. A manifest is never changed; the writer of the object removes one that does not match and creates its own. When the
last writer is done, the manifest matches the object. One case remains that a store with two keys cannot prevent: a
writer puts its object after the other's last check, is killed before its own, and never runs again.

    <dataset>/gateway=<id>/source=<source>/<dataset>.<incarnation, 8 hex>.<after>-<last>.<ext>
    <dataset>/gateway=<id>/source=<source>/_manifests/<incarnation, 8 hex>.<after>-<last>.json

A manifest is `{"v":1,"gateway","incarnation","dataset","source","after","last","rows","objects":[{"key","rows","bytes",
"sha256"}],"written_at"}`. A key is relative to the destination's prefix; the hash is that of the stored bytes.

Sequences have 20 digits, so names sort like ranges. Dataset, gateway and source are percent-encoded: letters, digits
and `-._~` are kept, everything else is escaped, so two names never share a key and no name escapes its folder. A name
that is too long for a file name is cut and ends with its hash. On a case-insensitive disk, sources that differ only in
case share a folder; manifests hold the exact names, so the second source is refused and nothing is mixed.
"""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Protocol
from urllib.parse import quote

import orjson
import pyarrow as pa

from hypaware import extras, faults, plugins
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
from hypaware.export.sinks.blob import FolderLocation, parse_location
from hypaware.model import datasets
from hypaware.model.columns import ColumnType, format_timestamp
from hypaware.state.streams import StreamKey
from hypaware.text import did_you_mean

_before_object = faults.crash_point("export.blob.before-object", "a chunk is encoded, nothing is stored")
_after_object = faults.crash_point("export.blob.after-object", "an object is stored without a manifest")
_after_manifest = faults.crash_point("export.blob.after-manifest", "an object and its manifest are stored")
_CONCURRENT_READS = 32
_MANIFEST_VERSION = 1
_TYPES: dict[str, type] = {
    "gateway": str, "incarnation": str, "dataset": str, "source": str, "after": int, "last": int, "rows": int,
    "objects": list, "written_at": str,
}  # fmt: skip
_OBJECT_TYPES: dict[str, type] = {"key": str, "rows": int, "bytes": int, "sha256": str}
# File names are limited to 255 bytes, which must also hold prefixes like `gateway=` and the suffix of temporary names.
_NAME_BYTES = 160
_MANIFEST_NAME = re.compile(r"([0-9a-f]{8})\.([0-9]{20})-([0-9]{20})\.json", re.ASCII)
_HEX = re.compile(r"[0-9a-f]{8}", re.ASCII)


class BlobSink(Sink):
    limits = ChunkLimits(rows=50_000, bytes=64 << 20)

    def __init__(self, store: BlobStore, encoder: Encoder, address: str) -> None:
        self._store, self._encoder, self._address = store, encoder, address

    @classmethod
    def from_settings(cls, settings: SinkSettings) -> BlobSink:
        options, name = settings.options, str(settings.options["encoder"])
        known = {encoder.name: encoder for encoder in plugins.load_plugins(plugins.ENCODERS, Encoder)}
        if name not in known:
            raise ConfigError(f"unknown encoder {name!r}.{did_you_mean(name, tuple(known))}", repair="hyp plugin list")
        return cls(make_store(options), known[name], parse_location(options).address)

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

    async def highest(self, stream: StreamKey, gateway_id: str, incarnation: str, above: int) -> int:
        beyond = Chunk("", stream, gateway_id, incarnation, above, 10**20)
        found = await self._overlapping(beyond, above)
        return max((last for (_, last), each in found.items() if each and each.is_same_stream(beyond)), default=0)

    def encode(self, rows: pa.Table) -> Payload:
        return TablePayload(rows)

    async def ship(self, chunk: Chunk, payload: Payload, acked_to: int) -> int:
        assert isinstance(payload, TablePayload)
        overlapping = await self._overlapping(chunk, acked_to)
        if chunk.is_fresh and any(each and each.is_same_stream(chunk) for each in overlapping.values()):
            raise RangeOverlap(await self.coverage(chunk.stream, chunk.gateway_id, chunk.incarnation))
        if (chunk.after, chunk.last) in overlapping:
            existing = self._checked(chunk, overlapping[chunk.after, chunk.last])
            if await self._matches_objects(existing):
                return existing.bytes
        elif any(each and each.is_same_stream(chunk) for each in overlapping.values()):
            raise RangeOverlap(await self.coverage(chunk.stream, chunk.gateway_id, chunk.incarnation))
        data, stored = await asyncio.to_thread(self._encode_object, chunk, payload.table)
        return await self._put(chunk, data, stored)

    async def close(self) -> None:
        pass

    async def _put(self, chunk: Chunk, data: memoryview, stored: StoredObject) -> int:
        _before_object()
        version = await self._store.write(stored.key, data, self._encoder.content_type)
        _after_object()
        key = manifest_key(chunk)
        mine = make_manifest(chunk, stored, datetime.now(UTC))
        for _ in range(2):
            created = await self._store.create(key, format_manifest(mine), "application/json")
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
        key = object_key(chunk, self._encoder.extension)
        return data, StoredObject(key, len(table), len(data), sha256(data).hexdigest())

    async def _read_manifest(self, chunk: Chunk) -> Manifest | None:
        data = await self._store.read(manifest_key(chunk))
        return None if data is None else self._checked(chunk, parse_manifest(data))

    def _checked(self, chunk: Chunk, found: Manifest | None) -> Manifest:
        if found and found.describes(chunk):
            return found
        problem = f"belongs to {found.source!r} of {found.gateway}" if found else "is not a manifest"
        raise DestinationDenied(
            f"{self._address}: {manifest_key(chunk)} {problem}, but rows of {chunk.stream.source!r} must be "
            "stored there. Inspect the file, and remove it if it is not needed",
            kind="foreign_manifest",
        )

    async def _overlapping(self, chunk: Chunk, acked_to: int) -> dict[tuple[int, int], Manifest | None]:
        """Return the manifests whose ranges overlap the chunk; None for files that are not manifests.

        Ranges that begin below `acked_to` also end there, so the listing can start there.
        """
        folder = f"{_stream_folder(chunk)}/_manifests"
        digits = incarnation_digits(chunk.incarnation)
        names: dict[str, tuple[int, int]] = {}
        start = name_before(chunk.incarnation, min(acked_to, chunk.after))
        async for name in self._store.names(folder, start):
            if found := parse_manifest_name(name):
                incarnation, after, last = found
                if incarnation == digits and after < chunk.last and last > chunk.after:
                    names[name] = (after, last)
        slots = asyncio.Semaphore(_CONCURRENT_READS)

        async def read(name: str) -> bytes | None:
            async with slots:
                return await self._store.read(f"{folder}/{name}")

        contents = await asyncio.gather(*map(read, names))
        overlapping: dict[tuple[int, int], Manifest | None] = {}
        for span, data in zip(names.values(), contents, strict=True):
            if data is not None:
                parsed = parse_manifest(data)
                overlapping[span] = parsed if parsed and (parsed.after, parsed.last) == span else None
        return overlapping

    async def _matches_objects(self, found: Manifest) -> bool:
        """Return whether the stored objects match the manifest."""
        for each in found.objects:
            data = await self._store.read(each.key)
            if data is None or len(data) != each.bytes:
                return False
            digest = await asyncio.to_thread(sha256, data)
            if digest.hexdigest() != each.sha256:
                return False
        return True


class BlobStore(Protocol):
    """A destination of the blob sink. Keys are relative to its prefix.

    Every operation raises DestinationDenied, -Busy or -Unreachable on failure; the message names the place.
    """

    async def open(self) -> None: ...

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
    extras.require("s3")
    from hypaware.export.sinks.blob.object_store import BucketStore

    return BucketStore(location, options)


@dataclass(frozen=True)
class StoredObject:
    key: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    gateway: str
    incarnation: str
    dataset: str
    source: str
    after: int
    last: int
    rows: int
    objects: tuple[StoredObject, ...]
    written_at: str

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.objects)

    def describes(self, chunk: Chunk) -> bool:
        return self.is_same_stream(chunk) and (self.after, self.last) == (chunk.after, chunk.last)

    def is_same_stream(self, chunk: Chunk) -> bool:
        """Return whether it belongs to the chunk's stream and incarnation."""
        expected = (chunk.gateway_id, chunk.incarnation, chunk.stream.dataset, chunk.stream.source)
        return (self.gateway, self.incarnation, self.dataset, self.source) == expected


def make_manifest(chunk: Chunk, stored: StoredObject, written_at: datetime) -> Manifest:
    origin = (chunk.gateway_id, chunk.incarnation, chunk.stream.dataset, chunk.stream.source)
    return Manifest(*origin, chunk.after, chunk.last, stored.rows, (stored,), format_timestamp(written_at))


def format_manifest(manifest: Manifest) -> bytes:
    return orjson.dumps({"v": _MANIFEST_VERSION, **asdict(manifest)}, option=orjson.OPT_APPEND_NEWLINE)


def parse_manifest(data: bytes) -> Manifest | None:
    """Parse a manifest; None if it is not one, or of an unknown version."""
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if not _has_types(found, _TYPES) or found.get("v") != _MANIFEST_VERSION or not found["objects"]:
        return None
    if found["after"] >= found["last"]:
        return None
    for each in found["objects"]:
        # A key must stay below the destination.
        if not _has_types(each, _OBJECT_TYPES) or {"", ".", ".."} & set(each["key"].split("/")):
            return None
    objects = tuple(StoredObject(**{name: each[name] for name in _OBJECT_TYPES}) for each in found["objects"])
    return Manifest(**{name: found[name] for name in _TYPES} | {"objects": objects})


def _has_types(found: Any, types: dict[str, type]) -> bool:
    return isinstance(found, dict) and all(type(found.get(name)) is kind for name, kind in types.items())


def parse_manifest_name(name: str) -> tuple[str, int, int] | None:
    """Return the digits of the incarnation and the range (after, last] in the name; None if it is another name."""
    found = _MANIFEST_NAME.fullmatch(name)
    return (found[1], int(found[2]), int(found[3])) if found else None


def object_key(chunk: Chunk, extension: str) -> str:
    return f"{_stream_folder(chunk)}/{encode_name(chunk.stream.dataset)}.{_range_name(chunk)}.{extension}"


def manifest_key(chunk: Chunk) -> str:
    return f"{_stream_folder(chunk)}/_manifests/{_range_name(chunk)}.json"


def _stream_folder(chunk: Chunk) -> str:
    gateway, source = encode_name(chunk.gateway_id), encode_name(chunk.stream.source)
    return f"{encode_name(chunk.stream.dataset)}/gateway={gateway}/source={source}"


def name_before(incarnation: str, after: int) -> str:
    """Return a name that sorts before the manifests of ranges that begin at or above `after`, and after all others."""
    return f"{incarnation_digits(incarnation)}.{after:020d}"


def encode_name(name: str) -> str:
    escaped = quote(name, safe="")
    if not escaped.strip("."):
        escaped = escaped.replace(".", "%2E")
    if len(escaped) <= _NAME_BYTES:
        return escaped
    cut = escaped[: _NAME_BYTES - 40]
    return f"{re.sub('%.?$', '', cut)}~{sha256(name.encode()).hexdigest()[:32]}"


def incarnation_digits(incarnation: str) -> str:
    start = incarnation[:8]
    return start if _HEX.fullmatch(start) else sha256(incarnation.encode()).hexdigest()[:8]


def _range_name(chunk: Chunk) -> str:
    return f"{incarnation_digits(chunk.incarnation)}.{chunk.after:020d}-{chunk.last:020d}"
