"""The manifests of a destination: their names and their content.

    <dataset>/gateway=<id>/source=<source>/<dataset>.<incarnation, 8 hex>.<after>-<last>.<ext>
    <dataset>/gateway=<id>/source=<source>/_manifests/<incarnation, 8 hex>.<after>-<last>.json

An object counts only if its manifest exists; the manifest is created last and never changed:
`{"v":1,"gateway","incarnation","dataset","source","after","last","rows","objects":[{"key","rows","bytes","sha256"}],
"written_at"}`. A key is relative to the destination's prefix; the hash is that of the stored bytes.

Sequences have 20 digits, so names sort like ranges. Dataset, gateway and source are percent-encoded: letters, digits
and `-._~` are kept, everything else is escaped, so two names never share a key and no name escapes its folder. A name
that is too long for a file name is cut and ends with its hash. On a case-insensitive disk, sources that differ only in
case share a folder; manifests hold the exact names, so the second source is refused and nothing is mixed.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any
from urllib.parse import quote

import orjson

from hypaware.export.sink import Chunk
from hypaware.model.columns import format_timestamp
from hypaware.state.streams import StreamKey

MANIFEST_VERSION = 1
_TYPES: dict[str, type] = {
    "gateway": str, "incarnation": str, "dataset": str, "source": str, "after": int, "last": int, "rows": int,
    "objects": list, "written_at": str,
}  # fmt: skip
_OBJECT_TYPES: dict[str, type] = {"key": str, "rows": int, "bytes": int, "sha256": str}
MANIFESTS = "_manifests"
# File names are limited to 255 bytes, which must also hold prefixes like `gateway=` and the suffix of temporary names.
_NAME_BYTES = 160
_MANIFEST_NAME = re.compile(r"([0-9a-f]{8})\.([0-9]{20})-([0-9]{20})\.json", re.ASCII)
_HEX = re.compile(r"[0-9a-f]{8}", re.ASCII)


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
    return Manifest(
        chunk.gateway_id,
        chunk.incarnation,
        chunk.stream.dataset,
        chunk.stream.source,
        chunk.after,
        chunk.last,
        stored.rows,
        (stored,),
        format_timestamp(written_at),
    )


def format_manifest(manifest: Manifest) -> bytes:
    return orjson.dumps({"v": MANIFEST_VERSION, **asdict(manifest)}, option=orjson.OPT_APPEND_NEWLINE)


def parse_manifest(data: bytes) -> Manifest | None:
    """Parse a manifest; None if it is not one, or of an unknown version."""
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if not _has_types(found, _TYPES) or found.get("v") != MANIFEST_VERSION or not found["after"] < found["last"]:
        return None
    if not found["objects"] or not all(
        _has_types(each, _OBJECT_TYPES) and _is_inside(each["key"]) for each in found["objects"]
    ):
        return None
    objects = tuple(StoredObject(**{name: each[name] for name in _OBJECT_TYPES}) for each in found["objects"])
    return Manifest(**{name: found[name] for name in _TYPES} | {"objects": objects})


def _is_inside(key: str) -> bool:
    """Return whether the key stays below the destination."""
    return bool(key) and not {"", ".", ".."} & set(key.split("/"))


def _has_types(found: Any, types: dict[str, type]) -> bool:
    return isinstance(found, dict) and all(type(found.get(name)) is kind for name, kind in types.items())


@dataclass(frozen=True)
class ManifestName:
    incarnation: str
    """The first eight digits."""
    after: int
    last: int


def parse_manifest_name(name: str) -> ManifestName | None:
    """Parse the name of a manifest; None if it is another name."""
    found = _MANIFEST_NAME.fullmatch(name)
    return ManifestName(found[1], int(found[2]), int(found[3])) if found else None


def object_key(chunk: Chunk, extension: str) -> str:
    stem = f"{encode_name(chunk.stream.dataset)}.{_range_name(chunk)}"
    return f"{stream_folder(chunk.stream, chunk.gateway_id)}/{stem}.{extension}"


def manifest_key(chunk: Chunk) -> str:
    return f"{manifest_folder(chunk.stream, chunk.gateway_id)}/{_range_name(chunk)}.json"


def stream_folder(stream: StreamKey, gateway_id: str) -> str:
    return f"{encode_name(stream.dataset)}/gateway={encode_name(gateway_id)}/source={encode_name(stream.source)}"


def manifest_folder(stream: StreamKey, gateway_id: str) -> str:
    return f"{stream_folder(stream, gateway_id)}/{MANIFESTS}"


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
