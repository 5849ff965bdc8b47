"""An Iceberg table of the original, read as plain files from its present location.

`metadata/v<N>.metadata.json` with the highest N is current: a commit creates the next one, and `version-hint.text` may
lag behind. Paths in the metadata start with the table's `location` at the time of writing; that prefix is replaced by
the directory in which the table was found. No file outside that directory is ever opened.

Deleted rows are given by deletion vectors and position-delete files. A deletion vector is a blob in a Puffin file:
length, magic, the positions as 32-bit Roaring bitmaps (one for each upper half), checksum. A position-delete file is
Parquet with `file_path` and `pos`.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow.parquet as pq

from hypaware.errors import HypError

_VECTOR_MAGIC = 0xD1D33964
_NO_RUNS, _WITH_RUNS = 12346, 12347
_ARRAY_MAX = 4096
_BITMAP_BYTES = 8192
_VERSION = re.compile(r"v(\d+)\.metadata\.json")
_DELETED = 2
_DATA, _POSITION_DELETES = 0, 1


class CacheDamaged(HypError):
    """A part of a cache cannot be read, so rows would be missing silently."""

    kind = "cache_unreadable"


@dataclass(frozen=True)
class CacheDataFile:
    path: Path
    name: str
    """Its path within the table, which never changes."""
    bytes: int
    records: int
    deleted: frozenset[int]
    """Positions of deleted rows."""
    order: int
    """Increases with the commits that added files."""

    @property
    def rows(self) -> int:
        return self.records - len(self.deleted)


@dataclass(frozen=True)
class CacheTable:
    folder: Path
    metadata: Path
    document: Mapping[str, Any]

    @property
    def uuid(self) -> str:
        return str(self.document["table-uuid"])

    @cached_property
    def columns(self) -> dict[int, str]:
        """Current column names by field id."""
        schemas = self.document.get("schemas") or [self.document["schema"]]
        current = self.document.get("current-schema-id", 0)
        schema = next((each for each in schemas if each.get("schema-id", 0) == current), schemas[-1])
        for field in schema["fields"]:
            if field.get("initial-default") is not None:
                raise CacheDamaged(
                    f"{self.metadata}: column {field['name']} has a default value, which is not supported"
                )
        return {field["id"]: field["name"] for field in schema["fields"]}

    @cached_property
    def files(self) -> tuple[CacheDataFile, ...]:
        """The live data files, each with its deleted rows."""
        try:
            return tuple(self._live_files())
        except CacheDamaged:
            raise
        except Exception as error:  # a damaged Avro file raises many kinds of errors
            raise CacheDamaged(f"cannot read the table {self.folder}: {type(error).__name__}: {error}") from error

    def _live_files(self) -> Iterator[CacheDataFile]:
        current = self.document.get("current-snapshot-id")
        if current in (None, -1):
            return
        snapshots = self.document.get("snapshots", ())
        snapshot = next((each for each in snapshots if each["snapshot-id"] == current), None)
        if snapshot is None:
            raise CacheDamaged(f"{self.metadata}: the current snapshot is missing")
        data: list[tuple[dict[str, Any], int]] = []
        deleted: defaultdict[str, set[int]] = defaultdict(set)
        for manifest in _read_avro(self._local_path(snapshot["manifest-list"])):
            for entry in _read_avro(self._local_path(manifest["manifest_path"])):
                if entry["status"] == _DELETED:
                    continue
                file, inherited = entry["data_file"], manifest.get("sequence_number") or 0
                if file.get("content", _DATA) == _DATA:
                    data.append((file, entry.get("sequence_number") or inherited))
                else:
                    self._add_deletes(file, deleted)
        for file, order in data:
            if file["file_format"].upper() != "PARQUET":
                raise CacheDamaged(f"{self.folder}: {file['file_path']} is {file['file_format']}, not Parquet")
            path = self._local_path(file["file_path"])
            name = path.relative_to(self.folder).as_posix()
            positions = frozenset(deleted[file["file_path"]])
            yield CacheDataFile(path, name, file["file_size_in_bytes"], file["record_count"], positions, order)

    def _add_deletes(self, file: Mapping[str, Any], deleted: defaultdict[str, set[int]]) -> None:
        path = self._local_path(file["file_path"])
        if file["content"] != _POSITION_DELETES:
            raise CacheDamaged(
                f"{path} is an equality delete, which is not supported: compact the table with the original first"
            )
        if file["file_format"].upper() == "PUFFIN":
            target = deleted[file["referenced_data_file"]]
            target.update(read_deletion_vector(path, file["content_offset"], file["content_size_in_bytes"]))
        else:
            with pq.ParquetFile(path) as parquet:
                for batch in parquet.iter_batches(columns=["file_path", "pos"]):
                    for name, position in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                        deleted[name].add(position)

    def _local_path(self, location: str) -> Path:
        """Return the present location of a file of the table."""
        prefix = _normalise(str(self.document["location"])).rstrip("/") + "/"
        path = _normalise(location)
        inside = PurePosixPath(path.removeprefix(prefix))
        if not path.startswith(prefix) or inside.is_absolute() or ".." in inside.parts:
            raise CacheDamaged(f"{self.metadata} names {location}, which is outside its table")
        return self.folder / inside


def open_table(folder: Path) -> CacheTable:
    """Open the table in a directory by its newest metadata; raise CacheDamaged if there is none that can be read."""
    versions = {int(found[1]): each for each in _metadata_files(folder) if (found := _VERSION.fullmatch(each.name))}
    hinted = _version_hint(folder)
    newest = max(versions, default=0)
    if not versions or hinted > newest:
        missing = f"v{hinted}.metadata.json" if hinted else "a v<number>.metadata.json"
        raise CacheDamaged(f"the table {folder} has no {missing}")
    path = versions[newest]
    try:
        document = json.loads(path.read_bytes())
        if not isinstance(document, dict) or not {"table-uuid", "location"} <= document.keys():
            raise ValueError("not the metadata of a table")
    except (OSError, ValueError) as error:
        raise CacheDamaged(f"cannot read {path}: {error}") from error
    return CacheTable(folder, path, document)


def is_table(folder: Path) -> bool:
    return any(_VERSION.fullmatch(each.name) for each in _metadata_files(folder)) or _version_hint(folder) > 0


def _metadata_files(folder: Path) -> list[Path]:
    try:
        return list((folder / "metadata").iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _version_hint(folder: Path) -> int:
    try:
        return int((folder / "metadata" / "version-hint.text").read_text())
    except (OSError, ValueError):
        return 0


def _normalise(location: str) -> str:
    """Normalise a location and remove its scheme."""
    return "/" + location.removeprefix("file:").lstrip("/")


def _read_avro(path: Path) -> Iterator[dict[str, Any]]:
    import fastavro

    with open(path, "rb") as file:
        yield from fastavro.reader(file)


def read_deletion_vector(path: Path, offset: int, size: int) -> Iterator[int]:
    """Yield the positions of one deletion vector; raise ValueError if it is damaged."""
    with open(path, "rb") as file:
        file.seek(offset)
        blob = file.read(size)
    try:
        length, magic = struct.unpack_from(">II", blob)
        (checksum,) = struct.unpack_from(">I", blob, len(blob) - 4)
        if length != len(blob) - 8 or magic != _VECTOR_MAGIC or checksum != zlib.crc32(blob[4:-4]):
            raise ValueError(f"{path}: the deletion vector at {offset} is damaged")
        data = blob[8:-4]
        (bitmaps,) = struct.unpack_from("<Q", data)
        at = 8
        for _ in range(bitmaps):
            (upper,) = struct.unpack_from("<I", data, at)
            found, at = _roaring(data, at + 4)
            yield from (upper << 32 | lower for lower in found)
    except (struct.error, IndexError) as error:
        raise ValueError(f"{path}: the deletion vector at {offset} is cut short") from error


def _roaring(data: bytes, offset: int) -> tuple[list[int], int]:
    """Return the numbers of a 32-bit bitmap and the offset of its end."""
    (cookie,) = struct.unpack_from("<I", data, offset)
    runs = b""
    if cookie == _NO_RUNS:
        (count,) = struct.unpack_from("<I", data, offset + 4)
        offset += 8
    elif cookie & 0xFFFF == _WITH_RUNS:
        count = (cookie >> 16) + 1
        runs = data[offset + 4 : offset + 4 + (count + 7) // 8]
        offset += 4 + len(runs)
    else:
        raise ValueError(f"{cookie} is not the cookie of a Roaring bitmap")
    headers = [struct.unpack_from("<HH", data, offset + 4 * index) for index in range(count)]
    offset += 4 * count
    if not runs or count >= 4:
        offset += 4 * count  # container offsets, not needed: containers follow each other
    found: list[int] = []
    for index, (key, size_minus_one) in enumerate(headers):
        is_run = bool(runs) and bool(runs[index // 8] >> index % 8 & 1)
        lowers, offset = _container(data, offset, size_minus_one + 1, is_run)
        found.extend(key << 16 | lower for lower in lowers)
    return found, offset


def _container(data: bytes, offset: int, size: int, is_run: bool) -> tuple[Iterator[int] | array[int], int]:
    if is_run:
        (count,) = struct.unpack_from("<H", data, offset)
        pairs = struct.unpack_from(f"<{2 * count}H", data, offset + 2)
        spans = [range(start, start + length + 1) for start, length in zip(pairs[::2], pairs[1::2], strict=True)]
        return (number for span in spans for number in span), offset + 2 + 4 * count
    if size <= _ARRAY_MAX:
        return array("H", struct.unpack_from(f"<{size}H", data, offset)), offset + 2 * size
    bits = int.from_bytes(data[offset : offset + _BITMAP_BYTES], "little")
    return (number for number in range(1 << 16) if bits >> number & 1), offset + _BITMAP_BYTES
