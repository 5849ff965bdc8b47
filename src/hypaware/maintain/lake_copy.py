"""A lake as one moment knew it, copied: of each table the newest snapshot, and what that needs.

Earlier snapshots are left out: they hold rows that were rewritten or are gone. `keys.db` comes along: of rows that
retention has dropped nothing else knows.
The table's metadata is written anew for that, and keeps the paths of the home that it is a copy of; whoever opens the
copy relocates it.
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
    held: dict[str, Any]
    known: Metadata


def tables(home: Home) -> list[TableCopy]:
    """The newest metadata of each, read now: later commits do not change it, and may remove its file."""
    found = []
    for entry in metadata.entries(home):
        held = json.loads(entry.metadata.read_bytes())
        found.append(TableCopy(entry, held, metadata.read(entry.metadata)))
    return found


def databases(home: Home, copier: Copier) -> None:
    """Catalog, tombstones and what else has a database there."""
    if home.catalog.is_file():
        copier.database(home.catalog, CATALOG_NAME)
    for path in sorted(home.lake.glob("*.db")) if home.lake.is_dir() else []:
        if path != home.catalog:
            copier.database(path, f"lake/{path.name}")


def waiting_settlements(home: Home, copier: Copier) -> None:
    """Small, and in step with the keys."""
    for path in sorted((home.lake / "settlements").glob("*/*.parquet")):
        copier.copy(path, path.relative_to(home.root).as_posix())


def files(home: Home, table: TableCopy) -> Iterator[tuple[Path, str]]:
    """Every file that the newest snapshot needs, and its name in the copy."""
    if table.known.current is None:
        return
    place = Place.of(home)
    yield _named(place, table.known.current.manifest_list)
    for manifest in metadata.manifests(table.known.current):
        yield _named(place, manifest.path)
        for file in metadata.data_files(table.known, manifest):
            yield _named(place, file.path)


def copy_table(home: Home, table: TableCopy, copier: Copier) -> int:
    """How many rows it has."""
    for path, name in files(home, table):
        try:
            copier.copy(path, name)
        except FileNotFoundError as missing:
            raise LakeError(
                f"table {table.entry.name} misses {path}: a copy of it would miss it too",
                kind="lake_damaged",
                repair=f"hyp maintain {table.entry.name} --rebuild",
            ) from missing
    _, name = _named(Place.of(home), table.entry.metadata)
    copier.write(name, json.dumps(newest_only(table.held)).encode())
    current = table.known.current
    return int(current.summary.get("total-records", 0)) if current else 0


def newest_only(held: dict[str, Any]) -> dict[str, Any]:
    """A table's metadata that knows no snapshot but the newest, and no earlier metadata."""
    newest = held.get("current-snapshot-id")
    cut = dict(held)
    for name in ("snapshots", "snapshot-log"):
        if name in held:
            cut[name] = [each for each in held[name] if each["snapshot-id"] == newest]
    # Statistics are made anew by whoever wants them.
    for name in ("statistics", "partition-statistics", "metadata-log"):
        if name in held:
            cut[name] = []
    if "refs" in held:
        cut["refs"] = {name: ref for name, ref in held["refs"].items() if ref["snapshot-id"] == newest}
    return cut


def forget_the_rest(copier: Copier) -> None:
    """The copied catalog names what was copied, and nothing else."""
    path = copier.into / CATALOG_NAME
    if not path.is_file():
        return
    with closing(sqlite3.connect(path, isolation_level=None)) as catalog:
        if has_table(catalog, "iceberg_tables"):
            catalog.execute(
                "DELETE FROM iceberg_tables WHERE catalog_name <> ? OR table_namespace <> ?", (CATALOG, NAMESPACE)
            )
            catalog.execute("UPDATE iceberg_tables SET previous_metadata_location = NULL")
    copier.note(CATALOG_NAME)


def _named(place: Place, path: Path) -> tuple[Path, str]:
    here = place.file(str(path))
    return here, here.relative_to(place.root).as_posix()
