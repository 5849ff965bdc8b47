"""Reading an embedded lake's catalog and Iceberg metadata as plain files: no Spark, nothing changed.

`catalog.db` (SQLite, `iceberg_tables`) names each table's current and previous metadata.json; that names snapshots,
those name manifest lists, those name manifests (Avro), those name data files with their partition and statistics.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
FLUSH_ID = "hyp.flush-id"
SEGMENTS = "hyp.segments"
RETAINED_FROM = "hyp.retained-from"

_DELETED = 2


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


@dataclass(frozen=True)
class Manifest:
    path: Path
    bytes: int
    snapshot_id: int


@dataclass(frozen=True)
class DataFile:
    path: Path
    bytes: int
    rows: int
    source: str
    max_seq: int | None


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
        """The end of the newest range that ever landed here, also when its rows are gone."""
        return int(self.properties.get(FLOOR, 0))


def entries(home: Home) -> list[TableEntry]:
    if not home.catalog.is_file():
        return []
    with look_into(home.catalog) as catalog:
        if not has_table(catalog, "iceberg_tables"):
            return []
        found = catalog.execute(
            "SELECT table_name, metadata_location, previous_metadata_location FROM iceberg_tables"
            " WHERE catalog_name = ? AND table_namespace = ? ORDER BY table_name",
            (CATALOG, NAMESPACE),
        ).fetchall()
    return [TableEntry(name, local_path(now), local_path(before) if before else None) for name, now, before in found]


def entry(home: Home, table: str) -> TableEntry | None:
    return next((found for found in entries(home) if found.name == table), None)


def retained_from(home: Home, table: str) -> str | None:
    """The first day that retention has kept; what is older does not come back."""
    found = entry(home, table)
    return read(found.metadata).properties.get(RETAINED_FROM) if found else None


def read(path: Path) -> Metadata:
    held = json.loads(path.read_bytes())
    schema = next(schema for schema in held["schemas"] if schema["schema-id"] == held["current-schema-id"])
    current = held.get("current-snapshot-id")
    return Metadata(
        path=path,
        uuid=held["table-uuid"],
        properties=held.get("properties", {}),
        snapshots=tuple(
            Snapshot(found["snapshot-id"], local_path(found["manifest-list"]), found.get("summary", {}))
            for found in held.get("snapshots", [])
        ),
        current_id=None if current in (None, -1) else current,
        log=tuple(local_path(found["metadata-file"]) for found in held.get("metadata-log", [])),
        fields={found["name"]: Field(found["id"], found["type"], found["required"]) for found in schema["fields"]},
    )


def manifests(snapshot: Snapshot) -> list[Manifest]:
    return [
        Manifest(local_path(found["manifest_path"]), found["manifest_length"], found["added_snapshot_id"])
        for found in _avro(snapshot.manifest_list)
    ]


def data_files(metadata: Metadata, of: Manifest) -> Iterator[DataFile]:
    """The live files of a manifest."""
    seq_field = metadata.fields[SEQ].id if SEQ in metadata.fields else None
    for found in _avro(of.path):
        if found["status"] == _DELETED:
            continue
        file = found["data_file"]
        bounds = {bound["key"]: bound["value"] for bound in file.get("upper_bounds") or ()}
        highest = bounds.get(seq_field)
        yield DataFile(
            path=local_path(file["file_path"]),
            bytes=file["file_size_in_bytes"],
            rows=file["record_count"],
            source=str(file["partition"].get(SOURCE)),
            max_seq=int.from_bytes(highest, "little", signed=True) if highest else None,
        )


def live_files(metadata: Metadata) -> Iterator[DataFile]:
    if metadata.current:
        for manifest in manifests(metadata.current):
            yield from data_files(metadata, manifest)


def local_path(location: str) -> Path:
    """The path behind a location as Iceberg writes it: `file:/x`, `file:///x` or `/x`, and never percent-encoded."""
    path = location.removeprefix("file:")
    return Path("/" + path.lstrip("/"))


def location_of(path: Path) -> str:
    return f"file:{path}"


def _avro(path: Path) -> Iterator[dict[str, Any]]:
    import fastavro

    with open(path, "rb") as file:
        yield from fastavro.reader(file)
