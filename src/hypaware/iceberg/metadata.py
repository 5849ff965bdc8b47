"""Read Iceberg metadata as plain files, without Spark and without changing anything.

The catalog (table `iceberg_tables`) references each table's current and previous metadata.json. That
references snapshots, these reference manifest lists, these reference manifests (Avro), and these list data files with
their partition and statistics.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from hypaware.config.shared_lake import find_shared_lake
from hypaware.home import Home
from hypaware.home.storage import is_durable, parse_location
from hypaware.iceberg import catalog
from hypaware.model.datasets import SEQ, SOURCE

CATALOG = "hyp"
NAMESPACE = "hypaware"
FLOOR_PROPERTY = "hyp.seq-floor"
GATEWAY_ID_PROPERTY = "hyp.gateway-id"
INCARNATION_PROPERTY = "hyp.incarnation"
PARENTS_PROPERTY = "hyp.incarnation-parents"
FORKS_PROPERTY = "hyp.incarnation-forks"
FLUSH_ID_PROPERTY = "hyp.flush-id"
SEGMENTS_PROPERTY = "hyp.segments"
RETAINED_FROM_PROPERTY = "hyp.retained-from"
REBUILT_FROM_PROPERTY = "hyp.rebuilt-from"
_STATUS_DELETED = 2
_EPOCH = date(1970, 1, 1)
# Data files to cache with their statistics, a few hundred bytes each.
_MAX_CACHED_FILES = 50_000


@dataclass(frozen=True)
class CatalogEntry:
    name: str
    metadata: Path
    previous: Path | None


@dataclass(frozen=True)
class TableSnapshot:
    id: int
    manifest_list: Path
    summary: Mapping[str, str]
    at: float = 0.0
    """Commit time in seconds since 1970. The snapshot was current until the next commit."""


@dataclass(frozen=True)
class ManifestFile:
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
class TableField:
    id: int
    type: str
    required: bool


@dataclass(frozen=True)
class TableMetadata:
    path: Path
    uuid: str
    properties: Mapping[str, str]
    snapshots: tuple[TableSnapshot, ...]
    current_id: int | None
    log: tuple[Path, ...]
    """Earlier metadata files, oldest first."""
    fields: Mapping[str, TableField]

    @property
    def field_ids(self) -> dict[str, int]:
        return {name: field.id for name, field in self.fields.items()}

    @property
    def current(self) -> TableSnapshot | None:
        return next((snapshot for snapshot in self.snapshots if snapshot.id == self.current_id), None)

    @property
    def floor(self) -> int:
        """The end of the newest committed range, even if its rows have been removed."""
        return int(self.properties.get(FLOOR_PROPERTY, 0))


def list_tables(home: Home, namespace: str = NAMESPACE) -> list[CatalogEntry]:
    with catalog.read_catalog(home) as execute:
        if execute is None:
            return []
        found = execute(
            f"SELECT table_name, metadata_location, previous_metadata_location FROM {catalog.TABLES}"
            " WHERE catalog_name = ? AND table_namespace = ? ORDER BY table_name",
            (CATALOG, namespace),
        )
    return [
        CatalogEntry(name, parse_location(current), parse_location(previous) if previous else None)
        for name, current, previous in found
    ]


def find_table(home: Home, table: str, namespace: str = NAMESPACE) -> CatalogEntry | None:
    return next((found for found in list_tables(home, namespace) if found.name == table), None)


def read_retention_start(home: Home, table: str) -> str | None:
    """Return the first day that retention keeps, or None. Older rows are not imported again.

    A day in the future was set under a clock that was ahead, and does not count.
    """
    found = find_table(home, table)
    day = read_metadata(found.metadata).properties.get(RETAINED_FROM_PROPERTY) if found else None
    return day if day and day <= datetime.now(UTC).date().isoformat() else None


def read_metadata(path: Path) -> TableMetadata:
    content = json.loads(path.read_bytes())
    schema = next(schema for schema in content["schemas"] if schema["schema-id"] == content["current-schema-id"])
    current = content.get("current-snapshot-id")
    return TableMetadata(
        path=path,
        uuid=content["table-uuid"],
        properties=content.get("properties", {}),
        snapshots=tuple(
            TableSnapshot(
                found["snapshot-id"],
                parse_location(found["manifest-list"]),
                found.get("summary", {}),
                found["timestamp-ms"] / 1000,
            )
            for found in content.get("snapshots", [])
        ),
        current_id=None if current in (None, -1) else current,
        log=tuple(parse_location(found["metadata-file"]) for found in content.get("metadata-log", [])),
        fields={found["name"]: TableField(found["id"], found["type"], found["required"]) for found in schema["fields"]},
    )


def read_manifests(snapshot: TableSnapshot) -> list[ManifestFile]:
    return [
        ManifestFile(
            parse_location(found["manifest_path"]),
            found["manifest_length"],
            found["added_snapshot_id"],
            deletes=found.get("content", 0) != 0,
        )
        for found in _read_avro(snapshot.manifest_list)
    ]


def read_data_files(metadata: TableMetadata, manifest: ManifestFile) -> Iterator[DataFile]:
    seq_field = metadata.fields[SEQ].id if SEQ in metadata.fields else None
    for found in _read_avro(manifest.path):
        if found["status"] == _STATUS_DELETED:
            continue
        file = found["data_file"]
        rows = file["record_count"]
        # Writers store the day of a partition as a date or as days since 1970.
        day = next((value for name, value in file["partition"].items() if name != SOURCE), None)
        yield DataFile(
            path=parse_location(file["file_path"]),
            bytes=file["file_size_in_bytes"],
            rows=rows,
            source=str(file["partition"].get(SOURCE)),
            max_seq=_decode_long(_field_value(file.get("upper_bounds"), seq_field)),
            min_seq=_decode_long(_field_value(file.get("lower_bounds"), seq_field)),
            sequenced=rows - (_field_value(file.get("null_value_counts"), seq_field) or 0),
            day=_EPOCH + timedelta(days=day) if isinstance(day, int) else day,
            # Entries that the manifest's own snapshot added may omit the id.
            snapshot_id=found["snapshot_id"] if found["snapshot_id"] is not None else manifest.snapshot_id,
            location=file["file_path"],
        )


def has_delete_files(metadata: TableMetadata) -> bool:
    """Return whether another program has deleted rows by delete files, so that a data file holds more than its rows."""
    return metadata.current is not None and any(manifest.deletes for manifest in read_manifests(metadata.current))


def iter_live_files(metadata: TableMetadata) -> Iterator[DataFile]:
    for manifest in read_manifests(metadata.current) if metadata.current else ():
        if not manifest.deletes:
            yield from read_data_files(metadata, manifest)


def table_folders(home: Home, dataset: str) -> list[Path]:
    """Return all directories on disk that hold, or held, files of the dataset's table."""
    parent = warehouse_root(home) / NAMESPACE
    if is_durable(parent):
        # A prefix of a bucket: shared tables are never rebuilt, so each has one folder.
        return [parent / dataset]
    return sorted(path for path in parent.glob(f"{dataset}*") if dataset in (path.name, path.name.rpartition("-")[0]))


def warehouse_root(home: Home) -> Path:
    """Return where the data files are: below the home, or in the bucket of a shared lake."""
    shared = find_shared_lake(home)
    return home.warehouse if shared is None else shared.root


def list_files_on_disk(home: Home, dataset: str) -> list[Path]:
    """Return every data file of the dataset's table on disk, live or not. For tables whose metadata is damaged."""
    return [path for folder in table_folders(home, dataset) for path in sorted((folder / "data").rglob("*.parquet"))]


def iter_cached_files(metadata: TableMetadata) -> Iterator[DataFile]:
    """Yield the live data files from cached manifests, which never change. Do not use it to look for damage."""
    for manifest in read_manifests(metadata.current) if metadata.current else ():
        if not manifest.deletes:
            yield from read_cached_files(metadata, manifest)


def read_cached_files(metadata: TableMetadata, manifest: ManifestFile) -> tuple[DataFile, ...]:
    """Return the live data files of a manifest, which is read once in the lifetime of the process."""
    return _manifest_cache.files(metadata, manifest)


class _ManifestCache:
    """The data files of the manifests used last, bounded by the number of data files."""

    def __init__(self, max_files: int) -> None:
        self._max_files = max_files
        self._files = 0
        self._by_manifest: OrderedDict[tuple[str, Path], tuple[DataFile, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def files(self, metadata: TableMetadata, manifest: ManifestFile) -> tuple[DataFile, ...]:
        key = (metadata.uuid, manifest.path)
        with self._lock:
            if key in self._by_manifest:
                self._by_manifest.move_to_end(key)
                return self._by_manifest[key]
        files = tuple(read_data_files(metadata, manifest))
        with self._lock:
            if key not in self._by_manifest:
                self._by_manifest[key] = files
                self._files += len(files)
            while self._files > self._max_files:
                self._files -= len(self._by_manifest.popitem(last=False)[1])
        return files


_manifest_cache = _ManifestCache(_MAX_CACHED_FILES)


def _read_avro(path: Path) -> Iterator[dict[str, Any]]:
    import fastavro

    with path.open("rb") as file:
        yield from fastavro.reader(file)


def _field_value(by_field: Any, field: int | None) -> Any:
    """Return the value of a field id. Avro stores a map with integer keys as a list of pairs."""
    return next((pair["value"] for pair in by_field or () if pair["key"] == field), None)


def _decode_long(bound: bytes | None) -> int | None:
    return int.from_bytes(bound, "little", signed=True) if bound else None
