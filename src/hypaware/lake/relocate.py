"""Point the tables of a moved or copied lake at their new location, before anything reads them.

Iceberg references files by absolute path. So metadata, manifest lists and manifests are rewritten under new names with
the paths of this home and fsynced. One catalog transaction then switches all tables to the new files, and the old
files, which reference the old location, are removed. Data files do not change. Relocation is idempotent, so it is
repeated after a kill. The caller must know that no engine runs in this home.

The metadata before the newest one is kept, because a power cut may require a rollback to it, and so are all snapshots
that the two reference.

@ref homes#relocation
"""

from __future__ import annotations

import json
import re
import sqlite3
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypaware import durable, faults
from hypaware.home import Home
from hypaware.lake import metadata
from hypaware.lake.metadata import CATALOG, local_path
from hypaware.lake.places import Place
from hypaware.lake.rewritten import Rewriter
from hypaware.looking import has_table, look_into

_before_write = faults.point("lake.relocate.before-write", "a lake was found whose tables reference another location")
_before_update = faults.point(
    "lake.relocate.before-update", "table metadata is rewritten, the catalog references the old files"
)
_after_update = faults.point(
    "lake.relocate.after-update", "the catalog references the new files, the old ones still exist"
)
_after_remove = faults.point("lake.relocate.after-remove", "nothing in the lake references another location")
_after_stamp = faults.point(
    "lake.relocate.after-stamp", "the tables of a copy have its new incarnation, its state does not"
)

_PATH_PROPERTY = re.compile(r"^write\..*\bpath$")
_STATISTICS = ("statistics", "partition-statistics")


@dataclass(frozen=True)
class _Row:
    """A table's row in the catalog."""

    namespace: str
    name: str
    current: str
    previous: str | None


def names_another_place(home: Home) -> bool:
    """Tell whether the catalog references files outside this home."""
    locations = Place.of_home(home)
    return any(locations.is_foreign(row.current) for row in _rows(home))


def relocate(home: Home) -> None:
    locations = Place.of_home(home)
    rows = _rows(home)
    relocated = [_moved(locations, row) for row in rows]
    if relocated != rows:
        _before_update()
        _name(home, locations, relocated)
        _after_update()
    for row in relocated:
        _remove_unnamed(locations, row)
    _after_remove()


def stamp(home: Home, properties: Mapping[str, str]) -> None:
    """Set properties of every table in one transaction, without an engine. Tables with torn metadata are skipped."""
    locations = Place.of_home(home)
    rows = _rows(home)
    stamped = [_stamped(locations, row, properties) for row in rows]
    if stamped != rows:
        _name(home, locations, stamped)
        _after_stamp()
        for row in stamped:
            _remove_unnamed(locations, row)


def _stamped(locations: Place, row: _Row, properties: Mapping[str, str]) -> _Row:
    content = _read(locations, row.current)
    if content is None or properties.items() <= content.get("properties", {}).items():
        return row
    current = _write(row.current, {**content, "properties": {**content.get("properties", {}), **properties}})
    return _Row(row.namespace, row.name, current, row.previous)


def _rows(home: Home) -> list[_Row]:
    if not home.catalog.is_file():
        return []
    with look_into(home.catalog) as catalog:
        if not has_table(catalog, "iceberg_tables"):
            return []
        found = catalog.execute(
            "SELECT table_namespace, table_name, metadata_location, previous_metadata_location FROM iceberg_tables"
            " WHERE catalog_name = ? AND metadata_location IS NOT NULL ORDER BY 1, 2",
            (CATALOG,),
        ).fetchall()
    return [_Row(*each) for each in found]


def _moved(locations: Place, row: _Row) -> _Row:
    if not _names_another_place(locations, row):
        return row
    _before_write()
    rewriter = Rewriter(locations)
    previous = _version(locations, rewriter, row.previous, None) if row.previous else None
    return _Row(row.namespace, row.name, _version(locations, rewriter, row.current, previous), previous)


def _names_another_place(locations: Place, row: _Row) -> bool:
    if any(locations.is_foreign(location) for location in filter(None, (row.current, row.previous))):
        return True
    content = _read(locations, row.current)
    return content is not None and locations.is_foreign(content["location"])


def _version(locations: Place, rewriter: Rewriter, location: str, previous: str | None) -> str:
    """Rewrite a metadata.json. Return its new location, or the localized old one if the file is torn."""
    content = _read(locations, location)
    if content is None:
        return locations.localize(location)
    log = content.get("metadata-log", [])
    changed = {
        **content,
        "location": locations.localize(content["location"]),
        "properties": {key: _property(locations, key, value) for key, value in content.get("properties", {}).items()},
        "snapshots": [
            {**each, "manifest-list": rewriter.manifest_list(each["manifest-list"])}
            for each in content.get("snapshots", [])
        ],
        "metadata-log": [{**log[-1], "metadata-file": previous}] if log and previous else [],
    }
    for kind in _STATISTICS:
        if kind in content:
            changed[kind] = [
                {**each, "statistics-path": locations.localize(each["statistics-path"])} for each in content[kind]
            ]
    return _write(locations.localize(location), changed)


def _property(locations: Place, key: str, value: str) -> str:
    return locations.localize(value) if _PATH_PROPERTY.match(key) else value


def _read(locations: Place, location: str) -> dict[str, Any] | None:
    try:
        content = json.loads(locations.local_file(location).read_bytes())
        return content if isinstance(content, dict) and "location" in content else None
    except (FileNotFoundError, ValueError):
        return None


def _write(location: str, content: Mapping[str, Any]) -> str:
    """Write a metadata.json next to an existing one, with the next number. Return its location. Durable."""
    folder, _, name = location.rpartition("/")
    number = re.match(r"\d+(?=-)", name)
    new = f"{folder}/{int(number[0]) + 1 if number else 1:05d}-{uuid.uuid4()}.metadata.json"
    durable.write_file(local_path(new), json.dumps(content).encode())
    return new


def _name(home: Home, locations: Place, rows: list[_Row]) -> None:
    with closing(sqlite3.connect(home.catalog, timeout=30, isolation_level=None)) as catalog:
        catalog.execute("PRAGMA synchronous=FULL")
        catalog.execute("BEGIN IMMEDIATE")
        catalog.executemany(
            "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = ?"
            " WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?",
            [(row.current, row.previous, CATALOG, row.namespace, row.name) for row in rows],
        )
        if has_table(catalog, "iceberg_namespace_properties"):
            key = "catalog_name = ? AND property_key = 'location'"
            found = catalog.execute(
                f"SELECT property_value, namespace FROM iceberg_namespace_properties WHERE {key}", (CATALOG,)
            ).fetchall()
            catalog.executemany(
                f"UPDATE iceberg_namespace_properties SET property_value = ? WHERE {key} AND namespace = ?",
                [(locations.localize(location), CATALOG, namespace) for location, namespace in found],
            )
        catalog.execute("COMMIT")


def _remove_unnamed(locations: Place, row: _Row) -> None:
    """Remove the old metadata files, and those that a killed relocation has left."""
    folder = local_path(row.current).parent
    referenced = {
        path for location in filter(None, (row.current, row.previous)) for path in _named(locations, location)
    }
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        is_metadata = path.name.endswith((".metadata.json", ".avro"))
        # Checksums, and unfinished files of a killed process.
        is_temporary = path.name.startswith(".") and path.suffix in (".crc", ".tmp")
        if is_temporary or (is_metadata and path not in referenced):
            path.unlink(missing_ok=True)
    if folder.is_dir():
        durable.fsync_dir(folder)


def _named(locations: Place, location: str) -> Iterator[Path]:
    yield locations.local_file(location)
    content = _read(locations, location)
    for each in content.get("metadata-log", []) if content else []:
        yield locations.local_file(each["metadata-file"])
    for each in content.get("snapshots", []) if content else []:
        found = locations.local_file(each["manifest-list"])
        yield found
        try:
            yield from (entry.path for entry in metadata.manifests(metadata.Snapshot(0, found, {})))
        except FileNotFoundError:
            continue
        except (OSError, MemoryError):
            raise
        except Exception:
            # A torn file: the damage check reports it later.
            continue
