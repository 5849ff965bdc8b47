"""A new generation of a table: created under another namespace, then swapped in by one change of the catalog.

Until the swap no reader sees it. The next rebuild removes the generation of a killed one.

A generation has its own directory, `warehouse/hypaware/<dataset>-<8 hex>/`. The directory of the previous generation
stays for its readers; expiry removes it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from hypaware import faults
from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.lake import metadata, secure, tables
from hypaware.lake.committer import Change
from hypaware.lake.metadata import CATALOG, NAMESPACE, TableEntry
from hypaware.lake.partitions import BuiltFile
from hypaware.looking import look_into
from hypaware.model.datasets import Dataset
from hypaware.state.identity import Identity

_before_swap = faults.point("maintain.rebuild.before-swap", "the new generation is complete, the old one is live")
_after_swap = faults.point("maintain.rebuild.after-swap", "the new generation is live")

NEXT = f"{NAMESPACE}_next"


class Generation:
    def __init__(self, home: Home, spark: Any, dataset: Dataset, identity: Identity) -> None:
        # Crash points are listed, and directories searched, without Spark.
        from hypaware.lake.spark_table import SparkTable

        self._home = home
        self._dataset = dataset
        clear(home, dataset.name)
        location = home.warehouse / NAMESPACE / f"{dataset.name}-{secrets.token_hex(4)}"
        tables.create(spark, dataset, identity, namespace=NEXT, location=location)
        self.table = SparkTable(spark, dataset, namespace=NEXT)

    def fill(self, files: Sequence[BuiltFile], properties: Mapping[str, str]) -> None:
        """Commit all rows and the table's properties at once."""
        self.table.replace_files(Change("rebuild", (), files, properties=properties))
        secure.secure(self._home, self._dataset.name, NEXT)

    def swap(self, old: TableEntry | None) -> None:
        """Replace the old generation, which must not have changed since its rows were read. The caller holds the
        table's lock."""
        _before_swap()
        with closing(sqlite3.connect(self._home.catalog, timeout=30, isolation_level=None)) as catalog:
            catalog.execute("PRAGMA synchronous=FULL")
            catalog.execute("BEGIN IMMEDIATE")
            if metadata.entry(self._home, self._dataset.name) != old:
                raise LakeError(f"table {self._dataset.name} changed during the rebuild; the old table stays in place")
            _delete(catalog, NAMESPACE, self._dataset.name)
            catalog.execute(
                "UPDATE iceberg_tables SET table_namespace = ?, previous_metadata_location = NULL" + _WHERE,
                (NAMESPACE, CATALOG, NEXT, self._dataset.name),
            )
            if old is not None:
                # Expiry uses this time to tell when the last reader can have started.
                os.utime(old.metadata.parent.parent)
            catalog.execute("COMMIT")
        _after_swap()


_WHERE = " WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?"


def clear(home: Home, table: str) -> None:
    """Remove a generation left by a killed rebuild: its catalog entry first, so that no entry references a missing
    file.

    The caller holds `turns.keeping`, so no rebuild is running.
    """
    leftover = metadata.entry(home, table, NEXT)
    if leftover is None:
        return
    with closing(sqlite3.connect(home.catalog, timeout=30, isolation_level=None)) as catalog:
        _delete(catalog, NEXT, table)
    folder = leftover.metadata.parent.parent
    if folder.parent == home.warehouse / NAMESPACE:
        shutil.rmtree(folder, ignore_errors=True)


def _delete(catalog: sqlite3.Connection, namespace: str, table: str) -> None:
    catalog.execute("DELETE FROM iceberg_tables" + _WHERE, (CATALOG, namespace, table))


def abandoned(home: Home, dataset: str) -> list[Path]:
    """Return directories of the dataset that no table of the catalog uses, under any name, now or before its last
    commit.

    Paths are compared resolved: a home reached through a link has two spellings, and a live table must not look
    abandoned.
    """
    with look_into(home.catalog) as catalog:
        rows = catalog.execute("SELECT metadata_location, previous_metadata_location FROM iceberg_tables").fetchall()
    in_use = {metadata.local_path(place).parent.parent.resolve() for row in rows for place in row if place}
    return [folder for folder in folders(home, dataset) if folder.resolve() not in in_use]


def folders(home: Home, dataset: str) -> list[Path]:
    """Return all directories on disk that hold, or held, files of the dataset's table."""
    parent = home.warehouse / NAMESPACE
    return sorted(path for path in parent.glob(f"{dataset}*") if dataset in (path.name, path.name.rpartition("-")[0]))
