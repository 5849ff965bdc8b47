"""The manifest of an object. The object counts only if its manifest exists; it is created last and never changed.

`{"v":1,"gateway","incarnation","dataset","source","after","last","rows","objects":[{"key","rows","bytes","sha256"}],
"written_at"}`. A key is relative to the destination's prefix; the hash is that of the stored bytes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import orjson

from hypaware.export.sink import Chunk
from hypaware.model.columns import timestamp_text

VERSION = 1
_TYPES: dict[str, type] = {
    "gateway": str, "incarnation": str, "dataset": str, "source": str, "after": int, "last": int, "rows": int,
    "objects": list, "written_at": str,
}  # fmt: skip
_OBJECT_TYPES: dict[str, type] = {"key": str, "rows": int, "bytes": int, "sha256": str}


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


def of_chunk(chunk: Chunk, stored: StoredObject, written_at: datetime) -> Manifest:
    return Manifest(
        chunk.gateway_id,
        chunk.incarnation,
        chunk.stream.dataset,
        chunk.stream.source,
        chunk.after,
        chunk.last,
        stored.rows,
        (stored,),
        timestamp_text(written_at),
    )


def write(manifest: Manifest) -> bytes:
    return orjson.dumps({"v": VERSION, **asdict(manifest)}, option=orjson.OPT_APPEND_NEWLINE)


def read(data: bytes) -> Manifest | None:
    """Parse a manifest; None if it is not one, or of an unknown version."""
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if not _has(found, _TYPES) or found.get("v") != VERSION or not found["after"] < found["last"]:
        return None
    if not found["objects"] or not all(
        _has(each, _OBJECT_TYPES) and _is_below(each["key"]) for each in found["objects"]
    ):
        return None
    objects = tuple(StoredObject(**{name: each[name] for name in _OBJECT_TYPES}) for each in found["objects"])
    return Manifest(**{name: found[name] for name in _TYPES} | {"objects": objects})


def _is_below(key: str) -> bool:
    """Return whether the key stays below the destination."""
    return bool(key) and not {"", ".", ".."} & set(key.split("/"))


def _has(found: Any, types: dict[str, type]) -> bool:
    return isinstance(found, dict) and all(type(found.get(name)) is kind for name, kind in types.items())
