"""Read the lake's catalog and Iceberg metadata as plain files, without Spark and without changing anything.

`catalog.db` (SQLite, table `iceberg_tables`) references each table's current and previous metadata.json. That
references snapshots, these reference manifest lists, these reference manifests (Avro), and these list data files with
their partition and statistics.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from hypaware.home import Home
from hypaware.looking import has_table, look_into
from hypaware.model.datasets import SEQ, SOURCE

CATALOG = "hyp"
NAMESPACE = "hypaware"
FLOOR = "hyp.seq-floor"
GATEWAY_ID = "hyp.gateway-id"
INCARNATION = "hyp.incarnation"
PARENTS = "hyp.incarnation-parents"
FORKS = "hyp.incarnation-forks"
FLUSH_ID = "hyp.flush-id"
SEGMENTS = "hyp.segments"
RETAINED_FROM = "hyp.retained-from"
REBUILT_FROM = "hyp.rebuilt-from"

_DELETED = 2
_EPOCH = date(1970, 1, 1)
# Data files to cache with their statistics, a few hundred bytes each.
_REMEMBERED_FILES = 50_000


@dataclass(frozen=True)
class TableEntry:
    """A table's row in the catalog."""

    name: str
    metadata: Path
    previous: Path | None


@dataclass(frozen=True)
class Snapshot:
    id: int
    manifest_list: Path
    summary: Mapping[str, str]
    at: float = 0.0
    """Commit time in seconds since 1970. The snapshot was current until the next commit."""


@dataclass(frozen=True)
class Manifest:
    path: Path
    bytes: int
    snapshot_id: int
    deletes: bool = False
    """Whether it lists delete files. HypAware rewrites data files instead."""


@dataclass(frozen=True)
class DataFile:
    path: Path
    bytes: int
    rows: int
    source: str
    max_seq: int | None
    min_seq: int | None
    sequenced: int
    """Number of rows with a sequence: all of them, unless another program wrote the file."""
    day: date | None = None
    """The day of the rows; None for rows without a time."""
    snapshot_id: int | None = None
    """The snapshot that added the file."""
    location: str = ""
    """The path exactly as the table spells it."""


@dataclass(frozen=True)
class Field:
    id: int
    type: str
    required: bool


@dataclass(frozen=True)
class Metadata:
    path: Path
    uuid: str
    properties: Mapping[str, str]
    snapshots: tuple[Snapshot, ...]
    current_id: int | None
    log: tuple[Path, ...]
    """Earlier metadata files, oldest first."""
    fields: Mapping[str, Field]

    @property
    def field_ids(self) -> dict[str, int]:
        return {name: field.id for name, field in self.fields.items()}

    @property
    def current(self) -> Snapshot | None:
        return next((snapshot for snapshot in self.snapshots if snapshot.id == self.current_id), None)

    @property
    def floor(self) -> int:
        """The end of the newest committed range, even if its rows have been removed."""
        return int(self.properties.get(FLOOR, 0))


def entries(home: Home, namespace: str = NAMESPACE) -> list[TableEntry]:
    if not home.catalog.is_file():
        return []
    with look_into(home.catalog) as catalog:
        if not has_table(catalog, "iceberg_tables"):
            return []
        found = catalog.execute(
            "SELECT table_name, metadata_location, previous_metadata_location FROM iceberg_tables"
            " WHERE catalog_name = ? AND table_namespace = ? ORDER BY table_name",
            (CATALOG, namespace),
        ).fetchall()
    return [
        TableEntry(name, local_path(current), local_path(previous) if previous else None)
        for name, current, previous in found
    ]


def entry(home: Home, table: str, namespace: str = NAMESPACE) -> TableEntry | None:
    return next((found for found in entries(home, namespace) if found.name == table), None)


def retained_from(home: Home, table: str) -> str | None:
    """Return the first day that retention keeps, or None. Older rows are not imported again."""
    found = entry(home, table)
    return read(found.metadata).properties.get(RETAINED_FROM) if found else None


def read(path: Path) -> Metadata:
    content = json.loads(path.read_bytes())
    schema = next(schema for schema in content["schemas"] if schema["schema-id"] == content["current-schema-id"])
    current = content.get("current-snapshot-id")
    return Metadata(
        path=path,
        uuid=content["table-uuid"],
        properties=content.get("properties", {}),
        snapshots=tuple(
            Snapshot(
                found["snapshot-id"],
                local_path(found["manifest-list"]),
                found.get("summary", {}),
                found["timestamp-ms"] / 1000,
            )
            for found in content.get("snapshots", [])
        ),
        current_id=None if current in (None, -1) else current,
        log=tuple(local_path(found["metadata-file"]) for found in content.get("metadata-log", [])),
        fields={found["name"]: Field(found["id"], found["type"], found["required"]) for found in schema["fields"]},
    )


def manifests(snapshot: Snapshot) -> list[Manifest]:
    return [
        Manifest(
            local_path(found["manifest_path"]),
            found["manifest_length"],
            found["added_snapshot_id"],
            deletes=found.get("content", 0) != 0,
        )
        for found in _avro(snapshot.manifest_list)
    ]


def data_files(metadata: Metadata, manifest: Manifest) -> Iterator[DataFile]:
    """Yield the live data files of a manifest."""
    seq_field = metadata.fields[SEQ].id if SEQ in metadata.fields else None
    for found in _avro(manifest.path):
        if found["status"] == _DELETED:
            continue
        file = found["data_file"]
        rows = file["record_count"]
        yield DataFile(
            path=local_path(file["file_path"]),
            bytes=file["file_size_in_bytes"],
            rows=rows,
            source=str(file["partition"].get(SOURCE)),
            max_seq=_long(_of_field(file.get("upper_bounds"), seq_field)),
            min_seq=_long(_of_field(file.get("lower_bounds"), seq_field)),
            sequenced=rows - (_of_field(file.get("null_value_counts"), seq_field) or 0),
            day=_day(file["partition"]),
            # Entries that the manifest's own snapshot added may omit the id.
            snapshot_id=found["snapshot_id"] if found["snapshot_id"] is not None else manifest.snapshot_id,
            location=file["file_path"],
        )


def live_files(metadata: Metadata) -> Iterator[DataFile]:
    if metadata.current:
        for manifest in manifests(metadata.current):
            yield from data_files(metadata, manifest)


def remembered_files(metadata: Metadata) -> Iterator[DataFile]:
    """Yield the live data files from cached manifests, which never change. Do not use it to look for damage."""
    if metadata.current:
        for manifest in manifests(metadata.current):
            yield from _memory.files(metadata, manifest)


class _Memory:
    """The data files of the manifests used last, bounded by the number of data files."""

    def __init__(self, max_files: int) -> None:
        self._max_files = max_files
        self._files = 0
        self._by_manifest: OrderedDict[tuple[str, Path], tuple[DataFile, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def files(self, metadata: Metadata, manifest: Manifest) -> tuple[DataFile, ...]:
        key = (metadata.uuid, manifest.path)
        with self._lock:
            if key in self._by_manifest:
                self._by_manifest.move_to_end(key)
                return self._by_manifest[key]
        files = tuple(data_files(metadata, manifest))
        with self._lock:
            if key not in self._by_manifest:
                self._by_manifest[key] = files
                self._files += len(files)
            while self._files > self._max_files:
                self._files -= len(self._by_manifest.popitem(last=False)[1])
        return files


_memory = _Memory(_REMEMBERED_FILES)


def local_path(location: str) -> Path:
    """Convert an Iceberg location (`file:/x`, `file:///x` or `/x`, never percent-encoded) to a path."""
    path = location.removeprefix("file:")
    return Path("/" + path.lstrip("/"))


def location_of(path: Path) -> str:
    return f"file:{path}"


def _avro(path: Path) -> Iterator[dict[str, Any]]:
    import fastavro

    with open(path, "rb") as file:
        yield from fastavro.reader(file)


def _of_field(by_field: Any, field: int | None) -> Any:
    """Return the value of a field id. Avro stores a map with integer keys as a list of pairs."""
    return next((pair["value"] for pair in by_field or () if pair["key"] == field), None)


def _day(partition: Mapping[str, Any]) -> date | None:
    """Return the day of a partition. Writers store it as a date or as days since 1970."""
    day = next((value for name, value in partition.items() if name != SOURCE), None)
    return _EPOCH + timedelta(days=day) if isinstance(day, int) else day


def _long(bound: bytes | None) -> int | None:
    return int.from_bytes(bound, "little", signed=True) if bound else None
