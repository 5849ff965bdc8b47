"""Point the tables of a moved or copied lake at their new location, before anything reads them.

Iceberg references files by absolute path. So metadata, manifest lists and manifests are rewritten under new names with
the paths of this home and fsynced; schema, statistics and sequence numbers do not change. One catalog transaction then
switches all tables to the new files, and the old files, which reference the old location, are removed. Data files do
not change. Relocation is idempotent, so it is repeated after a kill. No engine may run in this home.

The metadata before the newest one is kept for a rollback, and so are all snapshots that the two reference. A file that
a power cut has torn stays unchanged, so that the damage check finds it.

@ref homes#relocation
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hypaware import faults
from hypaware.errors import HypError, LakeError
from hypaware.home import Home, durable_files
from hypaware.home.sqlite_readonly import has_table, open_readonly
from hypaware.home.storage import ObjectPath, parse_location, write_object
from hypaware.iceberg import metadata
from hypaware.iceberg.metadata import CATALOG

_WAREHOUSE = "/lake/warehouse"
_SCHEME_PATTERN = re.compile(r"^(?:([a-z][a-z0-9+.-]*):)?(//(?=/))?", re.IGNORECASE)
_Record = dict[str, Any]
_before_rewrite = faults.crash_point(
    "iceberg.relocate.before-write", "a lake was found whose tables reference another location"
)
_before_catalog_update = faults.crash_point(
    "iceberg.relocate.before-update", "table metadata is rewritten, the catalog references the old files"
)
_after_catalog_update = faults.crash_point(
    "iceberg.relocate.after-update", "the catalog references the new files, the old ones still exist"
)
_after_relocate = faults.crash_point("iceberg.relocate.after-remove", "nothing in the lake references another location")
_after_set_properties = faults.crash_point(
    "iceberg.relocate.after-stamp", "the tables of a copy have its new incarnation, its state does not"
)
_PATH_PROPERTY = re.compile(r"^write\..*\bpath$")
_STATISTICS = ("statistics", "partition-statistics")


def lake_names_other_home(home: Home) -> bool:
    locations = LakeLocations.of_home(home)
    return any(locations.is_foreign(row.current) for row in _read_catalog(home))


def rewrite_lake_paths(home: Home) -> None:
    locations = LakeLocations.of_home(home)
    rows = _read_catalog(home)
    relocated = [_rewrite_table(locations, row) for row in rows]
    if relocated != rows:
        _before_catalog_update()
        _update_catalog(home, locations, relocated)
        _after_catalog_update()
    for row in relocated:
        _remove_unreferenced(locations, row)
    _after_relocate()


def set_table_properties(home: Home, properties: Mapping[str, str]) -> None:
    """Set properties of every table in one transaction, without an engine. Tables with torn metadata are skipped."""
    locations = LakeLocations.of_home(home)
    rows = _read_catalog(home)
    stamped = []
    for row in rows:
        content = read_metadata_json(locations.local_file(row.current))
        if content is not None and not properties.items() <= content.get("properties", {}).items():
            content["properties"] = {**content.get("properties", {}), **properties}
            row = replace(row, current=write_metadata_json(row.current, content))
        stamped.append(row)
    if stamped != rows:
        _update_catalog(home, locations, stamped)
        _after_set_properties()
        for row in stamped:
            _remove_unreferenced(locations, row)


@dataclass(frozen=True)
class LakeLocations:
    """Translates locations to the current path of a home."""

    root: Path

    @classmethod
    def of_home(cls, home: Home) -> LakeLocations:
        return cls(home.root.resolve())

    def is_foreign(self, location: str) -> bool:
        return self.localize(location) != location

    def localize(self, location: str) -> str:
        """Return the location of the same file in this home. Locations outside the file system stay unchanged."""
        scheme = _SCHEME_PATTERN.match(location)
        assert scheme is not None
        path = parse_location(location)
        if (scheme[1] or "file").lower() != "file" or path.is_relative_to(f"{self.root}{_WAREHOUSE}"):
            return location
        _, found, relative = f"{path}/".rpartition(f"{_WAREHOUSE}/")
        if not found:
            raise LakeError(
                f"the lake of {self.root} references {location}, which is outside the warehouse of any home",
                kind="lake_foreign_file",
            )
        return f"{scheme[0]}{self.root}{_WAREHOUSE}/{relative}".rstrip("/")

    def local_file(self, location: str) -> Path:
        return parse_location(self.localize(location))


@dataclass(frozen=True)
class _CatalogRow:
    namespace: str
    name: str
    current: str
    previous: str | None


def _read_catalog(home: Home) -> list[_CatalogRow]:
    if not home.catalog.is_file():
        return []
    with open_readonly(home.catalog) as catalog:
        if not has_table(catalog, "iceberg_tables"):
            return []
        found = catalog.execute(
            "SELECT table_namespace, table_name, metadata_location, previous_metadata_location FROM iceberg_tables"
            " WHERE catalog_name = ? AND metadata_location IS NOT NULL ORDER BY 1, 2",
            (CATALOG,),
        ).fetchall()
    return [_CatalogRow(*each) for each in found]


def _update_catalog(home: Home, locations: LakeLocations, rows: list[_CatalogRow]) -> None:
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


def _rewrite_table(locations: LakeLocations, row: _CatalogRow) -> _CatalogRow:
    content = read_metadata_json(locations.local_file(row.current))
    named = (row.current, row.previous, content["location"] if content else None)
    if not any(locations.is_foreign(location) for location in filter(None, named)):
        return row
    _before_rewrite()
    rewriter = ManifestRewriter(locations)
    previous = _rewrite_metadata(locations, rewriter, row.previous, None) if row.previous else None
    current = _rewrite_metadata(locations, rewriter, row.current, previous)
    return replace(row, current=current, previous=previous)


def _rewrite_metadata(locations: LakeLocations, rewriter: ManifestRewriter, location: str, previous: str | None) -> str:
    """Rewrite a metadata.json. Return its new location, or the localized old one if the file is torn."""
    content = read_metadata_json(locations.local_file(location))
    if content is None:
        return locations.localize(location)
    log = content.get("metadata-log", [])
    changed = {
        **content,
        "location": locations.localize(content["location"]),
        "properties": {
            key: locations.localize(value) if _PATH_PROPERTY.match(key) else value
            for key, value in content.get("properties", {}).items()
        },
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
    return write_metadata_json(locations.localize(location), changed)


def read_metadata_json(path: Path) -> dict[str, Any] | None:
    """Return the content of a metadata.json, or None if it is missing or torn."""
    try:
        content = json.loads(path.read_bytes())
        return content if isinstance(content, dict) and "location" in content else None
    except (FileNotFoundError, ValueError):
        return None


def write_metadata_json(location: str, content: Mapping[str, Any]) -> str:
    """Write a metadata.json next to an existing one, with the next number. Return its location. Durable."""
    folder, _, name = location.rpartition("/")
    number = re.match(r"\d+(?=-)", name)
    new = f"{folder}/{int(number[0]) + 1 if number else 1:05d}-{uuid.uuid4()}.metadata.json"
    path, data = parse_location(new), json.dumps(content).encode()
    if isinstance(path, ObjectPath):
        write_object(path, data)
    else:
        durable_files.write_atomic(path, data)
    return new


def _remove_unreferenced(locations: LakeLocations, row: _CatalogRow) -> None:
    """Remove the old metadata files, and those that a killed relocation has left."""
    folder = parse_location(row.current).parent
    referenced = {
        path
        for location in filter(None, (row.current, row.previous))
        for path in _referenced_files(locations, location)
    }
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        is_metadata = path.name.endswith((".metadata.json", ".avro"))
        # Checksums, and unfinished files of a killed process.
        is_temporary = path.name.startswith(".") and path.suffix in (".crc", ".tmp")
        if is_temporary or (is_metadata and path not in referenced):
            path.unlink(missing_ok=True)
    if folder.is_dir():
        durable_files.fsync_dir(folder)


def _referenced_files(locations: LakeLocations, location: str) -> Iterator[Path]:
    yield locations.local_file(location)
    content = read_metadata_json(locations.local_file(location))
    for each in content.get("metadata-log", []) if content else []:
        yield locations.local_file(each["metadata-file"])
    for each in content.get("snapshots", []) if content else []:
        found = locations.local_file(each["manifest-list"])
        yield found
        try:
            yield from (entry.path for entry in metadata.read_manifests(metadata.TableSnapshot(0, found, {})))
        except FileNotFoundError:
            continue
        except (OSError, MemoryError):
            raise
        except Exception:
            # A torn file: the damage check reports it later.
            continue


class TornFile(Exception):
    """The file is missing, truncated or malformed."""


class ManifestRewriter:
    """Rewrites the manifests of one table. A manifest that several snapshots share is written once."""

    def __init__(self, locations: LakeLocations) -> None:
        self._locations = locations
        self._rewritten: dict[str, tuple[str, int | None]] = {}

    def manifest_list(self, location: str) -> str:
        """Rewrite a manifest list. Return its new location, or the localized old one if the file is torn."""
        snapshot = Path(location).name.removeprefix("snap-").partition("-")[0]
        return self._rewrite(location, f"snap-{snapshot}-1-{uuid.uuid4()}.avro", self._manifest_entry)[0]

    def _manifest_entry(self, entry: _Record) -> _Record:
        location, length = self._rewrite(entry["manifest_path"], f"{uuid.uuid4()}-m0.avro", self._file_entry)
        return {**entry, "manifest_path": location, "manifest_length": length or entry["manifest_length"]}

    def _file_entry(self, entry: _Record) -> _Record:
        file = entry["data_file"]
        return {**entry, "data_file": {**file, "file_path": self._locations.localize(file["file_path"])}}

    def _rewrite(self, location: str, name: str, change: Callable[[_Record], _Record]) -> tuple[str, int | None]:
        if location not in self._rewritten:
            localized, old = self._locations.localize(location), self._locations.local_file(location)
            try:
                size = rewrite_avro(old, old.with_name(name), change)
                self._rewritten[location] = f"{localized.rpartition('/')[0]}/{name}", size
            except TornFile:
                self._rewritten[location] = localized, None
        return self._rewritten[location]


def rewrite_avro(old: Path, new: Path, change: Callable[[_Record], _Record]) -> int:
    """Write a copy of an Avro file with every record changed, fsynced. Return its size."""
    import fastavro

    try:
        with open(old, "rb") as source, open(new, "xb", opener=partial(os.open, mode=0o600)) as out:
            reader = fastavro.reader(source)
            header = {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
            fastavro.writer(out, reader.writer_schema, map(change, reader), codec=reader.codec, metadata=header)
            out.flush()
            durable_files.fsync_fd(out.fileno())
            return os.fstat(out.fileno()).st_size
    except BaseException as error:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        # fastavro raises many kinds of errors for a torn file.
        is_torn = isinstance(error, Exception) and not isinstance(error, OSError | MemoryError | HypError)
        if is_torn or isinstance(error, FileNotFoundError):
            raise TornFile(str(old)) from error
        raise
