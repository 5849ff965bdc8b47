"""Names in a destination, below its prefix:

    <dataset>/gateway=<id>/source=<source>/<dataset>.<incarnation, 8 hex>.<after>-<last>.<ext>
    <dataset>/gateway=<id>/source=<source>/_manifests/<incarnation, 8 hex>.<after>-<last>.json

Sequences have 20 digits, so names sort as ranges do. Dataset, gateway and source are percent-encoded: letters, digits
and `-._~` stay, everything else is escaped, so two names are never one key and none leads out of its place. What is
too long for a file's name is cut and ends in its hash. On a disk that does not tell `A` from `a`, two such sources
meet in one folder; the manifests hold the exact names, so the second is refused and nothing is mixed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import quote

from hypaware.export.sink import Chunk
from hypaware.state.stream_key import StreamKey

MANIFESTS = "_manifests"
# A file's name has 255 bytes at most; `gateway=` and its like, and an end for temporary names, must fit in as well.
_NAME_BYTES = 160
_MANIFEST_NAME = re.compile(r"([0-9a-f]{8})\.([0-9]{20})-([0-9]{20})\.json", re.ASCII)
_HEX = re.compile(r"[0-9a-f]{8}", re.ASCII)


@dataclass(frozen=True)
class ManifestName:
    incarnation: str
    """The eight digits."""
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
    """A name that sorts before every manifest of a range that begins there or later, and after those before it."""
    return f"{eight_digits(incarnation)}.{after:020d}"


def read_manifest_name(name: str) -> ManifestName | None:
    """None where the name is not a manifest's."""
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
