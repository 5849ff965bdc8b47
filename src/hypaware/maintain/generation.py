"""Generations of a table: a rebuild creates a new one under another namespace and swaps it in by one catalog change.

Until the swap no reader sees it. The next rebuild removes the generation of a killed one. A generation has its own
directory, `warehouse/hypaware/<dataset>-<8 hex>/`. The directory of the previous generation stays for its readers;
expiry removes it.

The inventory lists the files of a table whose metadata may be damaged. If the metadata can be read completely, it tells
which files are live. Otherwise every data file on disk counts. Rows of flushes that were not committed, or possibly
not, are still in the spool or in their transcripts and would be added twice, so the reader of the files leaves them
out. Rows present in two files (before and after a compaction) have the same sequence, by which the copies are
recognised.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypaware import faults
from hypaware.errors import LakeError, Retryable
from hypaware.home import Home
from hypaware.home.identity import Identity
from hypaware.home.sqlite_readonly import open_readonly
from hypaware.iceberg import fsync, metadata
from hypaware.iceberg.metadata import CATALOG, FLOOR_PROPERTY, NAMESPACE, CatalogEntry
from hypaware.lake import schema
from hypaware.lake.parquet import BuiltFile
from hypaware.lake.table import TableChange
from hypaware.model.datasets import Dataset

_before_swap = faults.crash_point("maintain.rebuild.before-swap", "the new generation is complete, the old one is live")
_after_swap = faults.crash_point("maintain.rebuild.after-swap", "the new generation is live")
NEXT_NAMESPACE = f"{NAMESPACE}_next"
_WHERE = " WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?"


class TableGeneration:
    def __init__(self, home: Home, spark: Any, dataset: Dataset, identity: Identity) -> None:
        # Crash points are listed, and directories searched, without Spark.
        from hypaware.lake.spark_table import SparkTable

        self._home = home
        self._dataset = dataset
        clear_unfinished(home, dataset.name)
        location = home.warehouse / NAMESPACE / f"{dataset.name}-{secrets.token_hex(4)}"
        schema.create_table(spark, dataset, identity, namespace=NEXT_NAMESPACE, location=location)
        self.table = SparkTable(spark, dataset, namespace=NEXT_NAMESPACE)

    def fill(self, files: Sequence[BuiltFile], properties: Mapping[str, str]) -> None:
        """Commit all rows and the table's properties at once."""
        self.table.replace_files(TableChange("rebuild", (), files, properties=properties))
        fsync.fsync_commit(self._home, self._dataset.name, NEXT_NAMESPACE)

    def swap(self, old: CatalogEntry | None) -> None:
        """Replace the old generation, which must not have changed since its rows were read. The caller holds the
        table's lock."""
        _before_swap()
        with closing(sqlite3.connect(self._home.catalog, timeout=30, isolation_level=None)) as catalog:
            catalog.execute("PRAGMA synchronous=FULL")
            catalog.execute("BEGIN IMMEDIATE")
            if metadata.find_table(self._home, self._dataset.name) != old:
                raise LakeError(f"table {self._dataset.name} changed during the rebuild; the old table stays in place")
            _delete_entry(catalog, NAMESPACE, self._dataset.name)
            catalog.execute(
                "UPDATE iceberg_tables SET table_namespace = ?, previous_metadata_location = NULL" + _WHERE,
                (NAMESPACE, CATALOG, NEXT_NAMESPACE, self._dataset.name),
            )
            if old is not None:
                # Expiry uses this time to tell when the last reader can have started.
                os.utime(old.metadata.parent.parent)
            catalog.execute("COMMIT")
        _after_swap()


def _delete_entry(catalog: sqlite3.Connection, namespace: str, table: str) -> None:
    catalog.execute("DELETE FROM iceberg_tables" + _WHERE, (CATALOG, namespace, table))


def clear_unfinished(home: Home, table: str) -> None:
    """Remove a generation left by a killed rebuild. The caller holds the maintenance lock, so no rebuild is running.

    The catalog entry is removed first, so that no entry references a missing file.
    """
    leftover = metadata.find_table(home, table, NEXT_NAMESPACE)
    if leftover is None:
        return
    with closing(sqlite3.connect(home.catalog, timeout=30, isolation_level=None)) as catalog:
        _delete_entry(catalog, NEXT_NAMESPACE, table)
    folder = leftover.metadata.parent.parent
    if folder.parent == home.warehouse / NAMESPACE:
        shutil.rmtree(folder, ignore_errors=True)


def find_abandoned(home: Home, dataset: str) -> list[Path]:
    """Return directories of the dataset that no catalog table uses, under any name, now or before its last commit.

    Paths are compared resolved: a home reached through a link has two spellings, and a live table must not look
    abandoned.
    """
    with open_readonly(home.catalog) as catalog:
        rows = catalog.execute("SELECT metadata_location, previous_metadata_location FROM iceberg_tables").fetchall()
    in_use = {metadata.local_path(place).parent.parent.resolve() for row in rows for place in row if place}
    return [folder for folder in table_folders(home, dataset) if folder.resolve() not in in_use]


def table_folders(home: Home, dataset: str) -> list[Path]:
    """Return all directories on disk that hold, or held, files of the dataset's table."""
    parent = home.warehouse / NAMESPACE
    return sorted(path for path in parent.glob(f"{dataset}*") if dataset in (path.name, path.name.rpartition("-")[0]))


@dataclass(frozen=True)
class TableInventory:
    entry: CatalogEntry | None
    properties: Mapping[str, str]
    """The table's own `hyp.*` properties: floor, gateway, first day kept."""
    paths: tuple[Path, ...]
    lost: Mapping[Path, str] = field(default_factory=dict)
    """Referenced files that cannot be used, with the reason."""
    lost_rows: int = 0
    damage: str | None = None
    """Why the metadata could not be read, if so."""
    uuid: str | None = None
    """The table's id, if its metadata could be read."""


def take_inventory(home: Home, dataset: str) -> TableInventory:
    """Find the table's files, from its metadata or, if that is damaged, from disk."""
    entry = metadata.find_table(home, dataset)
    if entry is None:
        return _from_disk(home, dataset, None, "the table is not in the catalog")
    try:
        table_metadata = metadata.read_metadata(entry.metadata)
        live = list(metadata.iter_live_files(table_metadata))
    except (OSError, MemoryError) as error:
        if not isinstance(error, FileNotFoundError):
            # A failure to read is not damage.
            raise Retryable(f"cannot read {entry.metadata}: {error}", kind="lake_unreadable") from error
        return _from_disk(home, dataset, entry, f"{error.filename} is missing")
    except Exception as error:
        # Damaged JSON and Avro raise many kinds of errors; all mean damage here.
        return _from_disk(home, dataset, entry, f"{type(error).__name__}: {error}")
    lost = {file: reason for file in live if (reason := fsync.find_file_damage(file.path, file.bytes))}
    return TableInventory(
        entry,
        _own_properties(table_metadata.properties),
        tuple(file.path for file in live if file not in lost),
        {file.path: reason for file, reason in lost.items()},
        sum(file.rows for file in lost),
        uuid=table_metadata.uuid,
    )


def _from_disk(home: Home, dataset: str, entry: CatalogEntry | None, damage: str) -> TableInventory:
    paths = [path for folder in table_folders(home, dataset) for path in sorted((folder / "data").rglob("*.parquet"))]
    return TableInventory(entry, _newest_properties(home, dataset), tuple(paths), damage=damage)


def _newest_properties(home: Home, dataset: str) -> Mapping[str, str]:
    """Return the properties with the highest floor among all readable metadata files."""
    found: Mapping[str, str] = {}
    for folder in table_folders(home, dataset):
        for path in (folder / "metadata").glob("*.metadata.json"):
            with contextlib.suppress(OSError, ValueError, KeyError, StopIteration):
                properties = metadata.read_metadata(path).properties
                if int(properties.get(FLOOR_PROPERTY, 0)) >= int(found.get(FLOOR_PROPERTY, 0)):
                    found = properties
    return _own_properties(found)


def _own_properties(properties: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in properties.items() if key.startswith("hyp.")}
