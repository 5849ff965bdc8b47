"""A lake whose home lies elsewhere now: its tables are told, before anything reads them.

Iceberg names files by absolute paths. So metadata, manifest lists and manifests are written anew, under new names, with
the paths of this home, and synced; one transaction of the catalog then names the new ones for all tables; the old ones,
which name files of another place, are removed. Data files stay as they are. Killed at any point, it is done again; done
again, it changes nothing. Only for who knows that no engine is at work here.

Of the earlier forms of a table the one before the newest is kept, which a power cut may have to step back to, and with
them every snapshot that they know.

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

_before_write = faults.point("lake.relocate.before-write", "a lake was found whose tables name another place")
_before_update = faults.point("lake.relocate.before-update", "tables are written anew, the catalog names the old ones")
_after_update = faults.point("lake.relocate.after-update", "the catalog names the new ones, the old are still there")
_after_remove = faults.point("lake.relocate.after-remove", "nothing in the lake names another place")
_after_stamp = faults.point("lake.relocate.after-stamp", "the tables of a copy know its new life, its state does not")

_PATH_PROPERTY = re.compile(r"^write\..*\bpath$")
_STATISTICS = ("statistics", "partition-statistics")


@dataclass(frozen=True)
class _Row:
    """A table as the catalog names it."""

    namespace: str
    name: str
    now: str
    before: str | None


def names_another_place(home: Home) -> bool:
    """Whether the catalog names files that do not lie in this home."""
    place = Place.of(home)
    return any(place.is_foreign(row.now) for row in _rows(home))


def relocate(home: Home) -> None:
    place = Place.of(home)
    rows = _rows(home)
    moved = [_moved(place, row) for row in rows]
    if moved != rows:
        _before_update()
        _name(home, place, moved)
        _after_update()
    for row in moved:
        _remove_unnamed(place, row)
    _after_remove()


def stamp(home: Home, properties: Mapping[str, str]) -> None:
    """Sets properties of every table, in one transaction, without an engine. A torn one is left to who mends it."""
    place = Place.of(home)
    rows = _rows(home)
    stamped = [_stamped(place, row, properties) for row in rows]
    if stamped != rows:
        _name(home, place, stamped)
        _after_stamp()
        for row in stamped:
            _remove_unnamed(place, row)


def _stamped(place: Place, row: _Row, properties: Mapping[str, str]) -> _Row:
    held = _read(place, row.now)
    if held is None or properties.items() <= held.get("properties", {}).items():
        return row
    now = _write(row.now, {**held, "properties": {**held.get("properties", {}), **properties}})
    return _Row(row.namespace, row.name, now, row.before)


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


def _moved(place: Place, row: _Row) -> _Row:
    if not _names_another_place(place, row):
        return row
    _before_write()
    rewriter = Rewriter(place)
    before = _version(place, rewriter, row.before, None) if row.before else None
    return _Row(row.namespace, row.name, _version(place, rewriter, row.now, before), before)


def _names_another_place(place: Place, row: _Row) -> bool:
    locations = filter(None, (row.now, row.before))
    if any(place.is_foreign(location) for location in locations):
        return True
    held = _read(place, row.now)
    return held is not None and place.is_foreign(held["location"])


def _version(place: Place, rewriter: Rewriter, location: str, before: str | None) -> str:
    """Where the new form of a metadata.json lies. One that is torn is only named as it should be named here."""
    held = _read(place, location)
    if held is None:
        return place.here(location)
    log = held.get("metadata-log", [])
    changed = {
        **held,
        "location": place.here(held["location"]),
        "properties": {key: _property(place, key, value) for key, value in held.get("properties", {}).items()},
        "snapshots": [
            {**each, "manifest-list": rewriter.manifest_list(each["manifest-list"])}
            for each in held.get("snapshots", [])
        ],
        "metadata-log": [{**log[-1], "metadata-file": before}] if log and before else [],
    }
    for kind in _STATISTICS:
        if kind in held:
            changed[kind] = [{**each, "statistics-path": place.here(each["statistics-path"])} for each in held[kind]]
    return _write(place.here(location), changed)


def _property(place: Place, key: str, value: str) -> str:
    return place.here(value) if _PATH_PROPERTY.match(key) else value


def _read(place: Place, location: str) -> dict[str, Any] | None:
    try:
        held = json.loads(place.file(location).read_bytes())
        return held if isinstance(held, dict) and "location" in held else None
    except (FileNotFoundError, ValueError):
        return None


def _write(location: str, held: Mapping[str, Any]) -> str:
    """Beside the one at the location, under the next number: its location. The folder is synced with it."""
    folder, _, name = location.rpartition("/")
    number = re.match(r"\d+(?=-)", name)
    new = f"{folder}/{int(number[0]) + 1 if number else 1:05d}-{uuid.uuid4()}.metadata.json"
    durable.write_file(local_path(new), json.dumps(held).encode())
    return new


def _name(home: Home, place: Place, rows: list[_Row]) -> None:
    with closing(sqlite3.connect(home.catalog, timeout=30, isolation_level=None)) as catalog:
        catalog.execute("PRAGMA synchronous=FULL")
        catalog.execute("BEGIN IMMEDIATE")
        catalog.executemany(
            "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = ?"
            " WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?",
            [(row.now, row.before, CATALOG, row.namespace, row.name) for row in rows],
        )
        if has_table(catalog, "iceberg_namespace_properties"):
            key = "catalog_name = ? AND property_key = 'location'"
            found = catalog.execute(
                f"SELECT property_value, namespace FROM iceberg_namespace_properties WHERE {key}", (CATALOG,)
            ).fetchall()
            catalog.executemany(
                f"UPDATE iceberg_namespace_properties SET property_value = ? WHERE {key} AND namespace = ?",
                [(place.here(location), CATALOG, namespace) for location, namespace in found],
            )
        catalog.execute("COMMIT")


def _remove_unnamed(place: Place, row: _Row) -> None:
    """What is left of the old forms, and of one that was killed while it wrote new ones."""
    folder = local_path(row.now).parent
    named = {path for location in filter(None, (row.now, row.before)) for path in _named(place, location)}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        ours = path.name.endswith((".metadata.json", ".avro"))
        # Checksums, and what a killed one had begun to write.
        passing = path.name.startswith(".") and path.suffix in (".crc", ".tmp")
        if passing or (ours and path not in named):
            path.unlink(missing_ok=True)
    if folder.is_dir():
        durable.fsync_dir(folder)


def _named(place: Place, location: str) -> Iterator[Path]:
    yield place.file(location)
    held = _read(place, location)
    for each in held.get("metadata-log", []) if held else []:
        yield place.file(each["metadata-file"])
    for each in held.get("snapshots", []) if held else []:
        found = place.file(each["manifest-list"])
        yield found
        try:
            yield from (entry.path for entry in metadata.manifests(metadata.Snapshot(0, found, {})))
        except FileNotFoundError:
            continue
        except (OSError, MemoryError):
            raise
        except Exception:
            # Torn: whoever looks for damage finds it; what it may have named goes.
            continue
