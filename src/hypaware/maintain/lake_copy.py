"""Copying the lake into a backup: the current snapshot of each table and every file that it needs.

Earlier snapshots are left out: they hold rows that were rewritten or removed. `keys.db` is included, because only it
knows the keys of rows that retention has dropped. The copied table metadata is rewritten to name the current snapshot
only. It keeps the paths of the original home; opening the copy relocates it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.lake import metadata
from hypaware.lake.metadata import CATALOG, NAMESPACE, Metadata, TableEntry
from hypaware.lake.places import Place
from hypaware.looking import has_table
from hypaware.maintain.copying import Copier

CATALOG_NAME = "lake/catalog.db"


@dataclass(frozen=True)
class TableCopy:
    """A table at the moment of the backup."""

    entry: TableEntry
    document: dict[str, Any]
    metadata: Metadata


def tables(home: Home) -> list[TableCopy]:
    """Read the current metadata of each table. Later commits do not change it, but may remove its file."""
    found = []
    for entry in metadata.entries(home):
        document = json.loads(entry.metadata.read_bytes())
        found.append(TableCopy(entry, document, metadata.read(entry.metadata)))
    return found


def databases(home: Home, copier: Copier) -> None:
    """Copy the catalog and every other database of the lake."""
    if home.catalog.is_file():
        copier.copy_database(home.catalog, CATALOG_NAME)
    for path in sorted(home.lake.glob("*.db")) if home.lake.is_dir() else []:
        if path != home.catalog:
            copier.copy_database(path, f"lake/{path.name}")


def waiting_settlements(home: Home, copier: Copier) -> None:
    """Copy pending settlements. They are small and must match the copied key index."""
    for path in sorted((home.lake / "settlements").glob("*/*.parquet")):
        copier.copy(path, path.relative_to(home.root).as_posix())


def files(home: Home, table: TableCopy) -> Iterator[tuple[Path, str]]:
    """Yield every file that the current snapshot needs, with its name in the copy."""
    if table.metadata.current is None:
        return
    place = Place.of_home(home)
    yield _named(place, table.metadata.current.manifest_list)
    for manifest in metadata.manifests(table.metadata.current):
        yield _named(place, manifest.path)
        for file in metadata.data_files(table.metadata, manifest):
            yield _named(place, file.path)


def copy_table(home: Home, table: TableCopy, copier: Copier) -> int:
    """Copy one table and return its number of rows."""
    for path, name in files(home, table):
        try:
            copier.copy(path, name)
        except FileNotFoundError as missing:
            raise LakeError(
                f"cannot back up table {table.entry.name}: {path} is missing",
                kind="lake_damaged",
                repair=f"hyp maintain {table.entry.name} --rebuild",
            ) from missing
    _, name = _named(Place.of_home(home), table.entry.metadata)
    copier.write(name, json.dumps(newest_only(table.document)).encode())
    current = table.metadata.current
    return int(current.summary.get("total-records", 0)) if current else 0


def newest_only(document: dict[str, Any]) -> dict[str, Any]:
    """Return a table's metadata reduced to the current snapshot, without earlier metadata files."""
    newest = document.get("current-snapshot-id")
    reduced = dict(document)
    for name in ("snapshots", "snapshot-log"):
        if name in document:
            reduced[name] = [each for each in document[name] if each["snapshot-id"] == newest]
    # Statistics are recomputed on demand.
    for name in ("statistics", "partition-statistics", "metadata-log"):
        if name in document:
            reduced[name] = []
    if "refs" in document:
        reduced["refs"] = {name: ref for name, ref in document["refs"].items() if ref["snapshot-id"] == newest}
    return reduced


def forget_the_rest(copier: Copier) -> None:
    """Remove every catalog entry whose table was not copied."""
    path = copier.folder / CATALOG_NAME
    if not path.is_file():
        return
    with closing(sqlite3.connect(path, isolation_level=None)) as catalog:
        if has_table(catalog, "iceberg_tables"):
            catalog.execute(
                "DELETE FROM iceberg_tables WHERE catalog_name <> ? OR table_namespace <> ?", (CATALOG, NAMESPACE)
            )
            catalog.execute("UPDATE iceberg_tables SET previous_metadata_location = NULL")
    copier.record(CATALOG_NAME)


def _named(place: Place, path: Path) -> tuple[Path, str]:
    local = place.local_file(str(path))
    return local, local.relative_to(place.root).as_posix()
