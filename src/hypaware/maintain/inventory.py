"""The inventory of a table for a rebuild: its data files, from its metadata or, if that is damaged, from disk.

@ref keeping#rebuild
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from hypaware.errors import LakeError, Retryable
from hypaware.home import Home
from hypaware.home.storage import parse_location
from hypaware.iceberg import fsync, metadata
from hypaware.iceberg.metadata import FLOOR_PROPERTY, CatalogEntry, DataFile
from hypaware.lake import schema
from hypaware.model.datasets import SEQ

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class TableInventory:
    """The files of a table whose metadata may be damaged."""

    entry: CatalogEntry | None
    properties: Mapping[str, str]
    """The table's own `hyp.*` properties: floor, gateway, first day kept."""
    rows: Mapping[Path, int]
    """The usable data files, with their number of rows as far as the metadata tells."""
    lost: Mapping[Path, str] = field(default_factory=dict)
    """Referenced files that cannot be used, with the reason."""
    lost_rows: int = 0
    damage: str | None = None
    """Why the metadata could not be read, if so."""
    uuid: str | None = None
    known: Mapping[Path, DataFile] = field(default_factory=dict)
    """The live data files as the metadata describes them."""
    has_deletes: bool = False
    """Whether another program has written delete files."""

    @property
    def floor(self) -> int:
        return int(self.properties.get(FLOOR_PROPERTY, 0))


def take_inventory(home: Home, dataset: str) -> TableInventory:
    """Find the table's files, from its metadata or, if that is damaged, from disk."""
    entry = metadata.find_table(home, dataset)
    if entry is None:
        return _search_disk(home, dataset, None, "the table is not in the catalog")
    try:
        table_metadata = metadata.read_metadata(entry.metadata)
        live = list(metadata.iter_live_files(table_metadata))
        has_deletes = metadata.has_delete_files(table_metadata)
    except (OSError, MemoryError) as error:
        if not isinstance(error, FileNotFoundError):
            # A failure to read is not damage.
            raise Retryable(f"cannot read {entry.metadata}: {error}", kind="lake_unreadable") from error
        return _search_disk(home, dataset, entry, f"{error.filename} is missing")
    except Exception as error:
        # Damaged JSON and Avro raise many kinds of errors; all mean damage here.
        return _search_disk(home, dataset, entry, f"{type(error).__name__}: {error}")
    lost = {file: reason for file in live if (reason := fsync.find_file_damage(file.path, file.bytes))}
    return TableInventory(
        entry,
        _own_properties(table_metadata.properties),
        {file.path: file.rows for file in live if file not in lost},
        {file.path: reason for file, reason in lost.items()},
        sum(file.rows for file in lost),
        uuid=table_metadata.uuid,
        known={file.path: file for file in live},
        has_deletes=has_deletes,
    )


def _search_disk(home: Home, dataset: str, entry: CatalogEntry | None, damage: str) -> TableInventory:
    """Return all data files, and the properties with the highest floor among all readable metadata files."""
    paths: list[Path] = []
    newest: Mapping[str, str] = {}
    for folder in metadata.table_folders(home, dataset):
        paths += sorted((folder / "data").rglob("*.parquet"))
        for path in (folder / "metadata").glob("*.metadata.json"):
            with suppress(OSError, ValueError, KeyError, StopIteration):
                properties = metadata.read_metadata(path).properties
                if int(properties.get(FLOOR_PROPERTY, 0)) >= int(newest.get(FLOOR_PROPERTY, 0)):
                    newest = properties
    if found := [path for path in paths if _is_delete_file(path)]:
        raise LakeError(
            f"the metadata of table {dataset} is damaged ({damage}), so it is unknown which rows another program has "
            f"deleted by {found[0]}; restore a backup with hyp restore, or move its delete files away and rebuild "
            "the table with those rows",
            kind="delete_files",
        )
    return TableInventory(entry, _own_properties(newest), dict.fromkeys(paths, 0), damage=damage)


def _is_delete_file(path: Path) -> bool:
    try:
        names = set(pq.read_schema(path).names)
    except (OSError, pa.ArrowException):
        return False
    return SEQ not in names and {"file_path", "pos"} <= names


def find_deleted_rows(spark: SparkSession, dataset: str) -> dict[Path, tuple[int, ...]]:
    """Return the rows that another program has deleted, by data file and position."""
    table = schema.full_table_name(dataset)
    ((by_value,),) = spark.sql(f"SELECT count(*) FROM {table}.delete_files WHERE content = 2").collect()
    if by_value:
        raise LakeError(
            f"table {dataset}: another program has deleted rows by their values (equality deletes), which a rebuild "
            "cannot apply; rewrite the table's data files with that program first",
            kind="delete_files",
        )
    found = spark.sql(f"SELECT file_path, sort_array(collect_set(pos)) FROM {table}.position_deletes GROUP BY 1")
    return {parse_location(path): tuple(positions) for path, positions in found.collect()}


def _own_properties(properties: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in properties.items() if key.startswith("hyp.")}
