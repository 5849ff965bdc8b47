"""A new generation of a table: made beside the old one, under another namespace, and swapped in by one change of the
catalog. Until then nobody sees it; what a killed rebuild left there goes with the next one.

The generation lies in a folder of its own, `warehouse/hypaware/<dataset>-<8 hex>/`. The folder of the one before stays
for those who still read it; expiry removes it.
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

_before_swap = faults.point("maintain.rebuild.before-swap", "the new generation is whole, the old one is live")
_after_swap = faults.point("maintain.rebuild.after-swap", "the new generation is live")

NEXT = f"{NAMESPACE}_next"


class Generation:
    def __init__(self, home: Home, spark: Any, dataset: Dataset, identity: Identity) -> None:
        # Crash points are listed, and folders looked for, without Spark.
        from hypaware.lake.spark_table import SparkTable

        self._home = home
        self._dataset = dataset
        clear(home, dataset.name)
        location = home.warehouse / NAMESPACE / f"{dataset.name}-{secrets.token_hex(4)}"
        tables.create(spark, dataset, identity, namespace=NEXT, location=location)
        self.table = SparkTable(spark, dataset, namespace=NEXT)

    def fill(self, files: Sequence[BuiltFile], properties: Mapping[str, str]) -> None:
        """All rows and what the table knows about itself, in one commit."""
        self.table.change(Change("rebuild", (), files, properties=properties))
        secure.secure(self._home, self._dataset.name, NEXT)

    def swap(self, old: TableEntry | None) -> None:
        """The old one must still be what it was when its rows were read; the caller has the table's turn."""
        _before_swap()
        with closing(sqlite3.connect(self._home.catalog, timeout=30, isolation_level=None)) as catalog:
            catalog.execute("PRAGMA synchronous=FULL")
            catalog.execute("BEGIN IMMEDIATE")
            if metadata.entry(self._home, self._dataset.name) != old:
                raise LakeError(f"table {self._dataset.name} was changed while it was rebuilt; nothing was swapped")
            _delete(catalog, NAMESPACE, self._dataset.name)
            catalog.execute(
                "UPDATE iceberg_tables SET table_namespace = ?, previous_metadata_location = NULL" + _WHERE,
                (NAMESPACE, CATALOG, NEXT, self._dataset.name),
            )
            if old is not None:
                # Expiry asks since when nobody can have begun to read it.
                os.utime(old.metadata.parent.parent)
            catalog.execute("COMMIT")
        _after_swap()


_WHERE = " WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?"


def clear(home: Home, table: str) -> None:
    """What a killed rebuild left: its entry first, so that nothing ever names a file that is gone.

    The caller keeps the table, so no rebuild is under way.
    """
    left = metadata.entry(home, table, NEXT)
    if left is None:
        return
    with closing(sqlite3.connect(home.catalog, timeout=30, isolation_level=None)) as catalog:
        _delete(catalog, NEXT, table)
    folder = left.metadata.parent.parent
    if folder.parent == home.warehouse / NAMESPACE:
        shutil.rmtree(folder, ignore_errors=True)


def _delete(catalog: sqlite3.Connection, namespace: str, table: str) -> None:
    catalog.execute("DELETE FROM iceberg_tables" + _WHERE, (CATALOG, namespace, table))


def abandoned(home: Home, dataset: str) -> list[Path]:
    """Folders of the dataset that no table of the catalog, by whatever name, has or had before its last commit.

    By their resolved paths: a home that is reached through a link has two spellings, and a live table must not look
    like an old one.
    """
    with look_into(home.catalog) as catalog:
        rows = catalog.execute("SELECT metadata_location, previous_metadata_location FROM iceberg_tables").fetchall()
    in_use = {metadata.local_path(place).parent.parent.resolve() for row in rows for place in row if place}
    return [folder for folder in folders(home, dataset) if folder.resolve() not in in_use]


def folders(home: Home, dataset: str) -> list[Path]:
    """All folders on disk that hold, or held, files of the dataset's table."""
    where = home.warehouse / NAMESPACE
    return sorted(path for path in where.glob(f"{dataset}*") if dataset in (path.name, path.name.rpartition("-")[0]))
