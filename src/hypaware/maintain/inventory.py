"""What is there of a table whose metadata may be damaged: its files, what it knew about itself, what is missing.

Where the metadata can be read to the end, it says which files are live. Where not, every data file on disk counts; rows
of flushes that did not land, or may not have, still wait in the spool or in their transcripts and would come twice, so
whoever reads the files leaves those out. Rows that lie in two files (before and after a compaction) have one sequence,
by which they are told apart.
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
    """The table's own `hyp.*` properties: floor, whose it is, from where on it is kept."""
    paths: tuple[Path, ...]
    lost: Mapping[Path, str] = field(default_factory=dict)
    """Files that are named and cannot be used, with the reason."""
    lost_rows: int = 0
    damage: str | None = None
    """Why the metadata could not be followed."""
    uuid: str | None = None
    """The table's id, where its metadata could."""


def take(home: Home, dataset: str) -> Inventory:
    entry = metadata.entry(home, dataset)
    if entry is None:
        return _from_disk(home, dataset, None, "the catalog does not know the table")
    try:
        known = metadata.read(entry.metadata)
        live = list(metadata.live_files(known))
    except (OSError, MemoryError) as error:
        if not isinstance(error, FileNotFoundError):
            # Trouble in looking is not damage.
            raise Retryable(f"{entry.metadata} could not be read: {error}", kind="lake_unreadable") from error
        return _from_disk(home, dataset, entry, f"{error.filename} is missing")
    except Exception as error:
        # Torn JSON and torn Avro fail in many ways, all of them mean the same here.
        return _from_disk(home, dataset, entry, f"{type(error).__name__}: {error}")
    return _from_metadata(entry, known, live)


def _from_metadata(entry: TableEntry, known: Metadata, live: list[DataFile]) -> Inventory:
    lost = {file: reason for file in live if (reason := secure.file_damage(file.path, file.bytes))}
    return Inventory(
        entry,
        _own(known.properties),
        tuple(file.path for file in live if file not in lost),
        {file.path: reason for file, reason in lost.items()},
        sum(file.rows for file in lost),
        uuid=known.uuid,
    )


def _from_disk(home: Home, dataset: str, entry: TableEntry | None, damage: str) -> Inventory:
    paths = [
        path for folder in generation.folders(home, dataset) for path in sorted((folder / "data").rglob("*.parquet"))
    ]
    return Inventory(entry, _newest_properties(home, dataset), tuple(paths), damage=damage)


def _newest_properties(home: Home, dataset: str) -> Mapping[str, str]:
    """Of the metadata that has seen most, among all that can still be read."""
    found: Mapping[str, str] = {}
    for folder in generation.folders(home, dataset):
        for path in (folder / "metadata").glob("*.metadata.json"):
            with contextlib.suppress(OSError, ValueError, KeyError, StopIteration):
                properties = metadata.read(path).properties
                if int(properties.get(FLOOR, 0)) >= int(found.get(FLOOR, 0)):
                    found = properties
    return _own(found)


def _own(properties: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in properties.items() if key.startswith("hyp.")}
