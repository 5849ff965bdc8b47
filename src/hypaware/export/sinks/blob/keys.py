"""Names of objects and manifests, below the destination's prefix:

    <dataset>/gateway=<id>/source=<source>/<dataset>.<incarnation, 8 hex>.<after>-<last>.<ext>
    <dataset>/gateway=<id>/source=<source>/_manifests/<incarnation, 8 hex>.<after>-<last>.json

Sequences have 20 digits, so names sort like ranges. Dataset, gateway and source are percent-encoded: letters, digits
and `-._~` are kept, everything else is escaped, so two names never share a key and no name escapes its folder. A name
that is too long for a file name is cut and ends with its hash. On a case-insensitive disk, sources that differ only in
case share a folder; manifests hold the exact names, so the second source is refused and nothing is mixed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import quote

from hypaware.export.sink import Chunk
from hypaware.state.stream_key import StreamKey

MANIFESTS = "_manifests"
# File names are limited to 255 bytes, which must also hold prefixes like `gateway=` and the suffix of temporary names.
_NAME_BYTES = 160
_MANIFEST_NAME = re.compile(r"([0-9a-f]{8})\.([0-9]{20})-([0-9]{20})\.json", re.ASCII)
_HEX = re.compile(r"[0-9a-f]{8}", re.ASCII)


@dataclass(frozen=True)
class ManifestName:
    incarnation: str
    """The first eight digits."""
    after: int
    last: int


def stream_folder(stream: StreamKey, gateway_id: str) -> str:
    return f"{encoded(stream.dataset)}/gateway={encoded(gateway_id)}/source={encoded(stream.source)}"


def manifest_folder(stream: StreamKey, gateway_id: str) -> str:
    return f"{stream_folder(stream, gateway_id)}/{MANIFESTS}"


def object_key(chunk: Chunk, extension: str) -> str:
    stem = f"{encoded(chunk.stream.dataset)}.{_range_name(chunk)}"
    return f"{stream_folder(chunk.stream, chunk.gateway_id)}/{stem}.{extension}"


def manifest_key(chunk: Chunk) -> str:
    return f"{manifest_folder(chunk.stream, chunk.gateway_id)}/{_range_name(chunk)}.json"


def before(incarnation: str, after: int) -> str:
    """Return a name that sorts before the manifests of ranges that begin at or above `after`, and after all others."""
    return f"{eight_digits(incarnation)}.{after:020d}"


def read_manifest_name(name: str) -> ManifestName | None:
    """Parse the name of a manifest; None if it is another name."""
    found = _MANIFEST_NAME.fullmatch(name)
    return ManifestName(found[1], int(found[2]), int(found[3])) if found else None


def eight_digits(incarnation: str) -> str:
    start = incarnation[:8]
    return start if _HEX.fullmatch(start) else sha256(incarnation.encode()).hexdigest()[:8]


def encoded(name: str) -> str:
    escaped = quote(name, safe="")
    if not escaped.strip("."):
        escaped = escaped.replace(".", "%2E")
    if len(escaped) <= _NAME_BYTES:
        return escaped
    cut = escaped[: _NAME_BYTES - 40]
    return f"{re.sub('%.?$', '', cut)}~{sha256(name.encode()).hexdigest()[:32]}"


def _range_name(chunk: Chunk) -> str:
    return f"{eight_digits(chunk.incarnation)}.{chunk.after:020d}-{chunk.last:020d}"
