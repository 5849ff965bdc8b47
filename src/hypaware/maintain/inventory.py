"""The inventory of a table whose metadata may be damaged: its files, its properties, missing files.

If the metadata can be read completely, it tells which files are live. Otherwise every data file on disk counts. Rows of
flushes that were not committed, or possibly not, are still in the spool or in their transcripts and would be added
twice, so the reader of the files leaves them out. Rows present in two files (before and after a compaction) have the
same sequence, by which the copies are recognised.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hypaware.errors import Retryable
from hypaware.home import Home
from hypaware.lake import metadata, secure
from hypaware.lake.metadata import FLOOR, DataFile, Metadata, TableEntry
from hypaware.maintain import generation


@dataclass(frozen=True)
class Inventory:
    entry: TableEntry | None
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


def take(home: Home, dataset: str) -> Inventory:
    """Take the inventory of a dataset's table."""
    entry = metadata.entry(home, dataset)
    if entry is None:
        return _from_disk(home, dataset, None, "the table is not in the catalog")
    try:
        table_metadata = metadata.read(entry.metadata)
        live = list(metadata.live_files(table_metadata))
    except (OSError, MemoryError) as error:
        if not isinstance(error, FileNotFoundError):
            # A failure to read is not damage.
            raise Retryable(f"cannot read {entry.metadata}: {error}", kind="lake_unreadable") from error
        return _from_disk(home, dataset, entry, f"{error.filename} is missing")
    except Exception as error:
        # Damaged JSON and Avro raise many kinds of errors; all mean damage here.
        return _from_disk(home, dataset, entry, f"{type(error).__name__}: {error}")
    return _from_metadata(entry, table_metadata, live)


def _from_metadata(entry: TableEntry, table_metadata: Metadata, live: list[DataFile]) -> Inventory:
    lost = {file: reason for file in live if (reason := secure.file_damage(file.path, file.bytes))}
    return Inventory(
        entry,
        _own_properties(table_metadata.properties),
        tuple(file.path for file in live if file not in lost),
        {file.path: reason for file, reason in lost.items()},
        sum(file.rows for file in lost),
        uuid=table_metadata.uuid,
    )


def _from_disk(home: Home, dataset: str, entry: TableEntry | None, damage: str) -> Inventory:
    paths = [
        path for folder in generation.folders(home, dataset) for path in sorted((folder / "data").rglob("*.parquet"))
    ]
    return Inventory(entry, _newest_properties(home, dataset), tuple(paths), damage=damage)


def _newest_properties(home: Home, dataset: str) -> Mapping[str, str]:
    """Return the properties with the highest floor among all readable metadata files."""
    found: Mapping[str, str] = {}
    for folder in generation.folders(home, dataset):
        for path in (folder / "metadata").glob("*.metadata.json"):
            with contextlib.suppress(OSError, ValueError, KeyError, StopIteration):
                properties = metadata.read(path).properties
                if int(properties.get(FLOOR, 0)) >= int(found.get(FLOOR, 0)):
                    found = properties
    return _own_properties(found)


def _own_properties(properties: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in properties.items() if key.startswith("hyp.")}
