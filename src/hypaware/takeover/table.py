"""An Iceberg table of the original as plain files, read where it lies now.

`metadata/v<N>.metadata.json` with the highest N is the table: a commit creates the next one, `version-hint.text` may
lag behind it. Paths inside begin with the table's `location`, which was true where it was written; that prefix is
replaced by the folder in which the table was found, and nothing outside that folder is ever opened.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from hypaware.errors import HypError
from hypaware.takeover import deletes

_VERSION = re.compile(r"v(\d+)\.metadata\.json")
_DELETED = 2
_DATA, _POSITIONS = 0, 1


class CacheDamaged(HypError):
    """Some of a cache cannot be read: its rows would be missing without a word."""

    kind = "cache_unreadable"


@dataclass(frozen=True)
class TableFile:
    path: Path
    name: str
    """Its path within the table, as long as the table lives."""
    bytes: int
    records: int
    deleted: frozenset[int]
    """Positions of rows that are not there any more."""
    order: int
    """Grows with the commits that added files."""

    @property
    def rows(self) -> int:
        return self.records - len(self.deleted)


@dataclass(frozen=True)
class Table:
    folder: Path
    metadata: Path
    held: Mapping[str, Any]

    @property
    def uuid(self) -> str:
        return str(self.held["table-uuid"])

    @cached_property
    def columns(self) -> dict[int, str]:
        """Names by field id, as the table has them now."""
        schemas = self.held.get("schemas") or [self.held["schema"]]
        current = self.held.get("current-schema-id", 0)
        schema = next((each for each in schemas if each.get("schema-id", 0) == current), schemas[-1])
        for field in schema["fields"]:
            if field.get("initial-default") is not None:
                raise CacheDamaged(f"{self.metadata}: column {field['name']} has a default, which is not read here")
        return {field["id"]: field["name"] for field in schema["fields"]}

    @cached_property
    def files(self) -> tuple[TableFile, ...]:
        """The live data files, each with the rows that were deleted from it."""
        try:
            return tuple(self._live_files())
        except CacheDamaged:
            raise
        except Exception as error:  # whatever a torn Avro file makes its reader raise
            raise CacheDamaged(f"the table {self.folder} cannot be read: {type(error).__name__}: {error}") from error

    def _live_files(self) -> Iterator[TableFile]:
        snapshot = self._snapshot()
        if snapshot is None:
            return
        data: list[tuple[dict[str, Any], int]] = []
        deleted: defaultdict[str, set[int]] = defaultdict(set)
        for manifest in _avro(self._here(snapshot["manifest-list"])):
            for entry in _avro(self._here(manifest["manifest_path"])):
                if entry["status"] == _DELETED:
                    continue
                file, inherited = entry["data_file"], manifest.get("sequence_number") or 0
                if file.get("content", _DATA) == _DATA:
                    data.append((file, entry.get("sequence_number") or inherited))
                else:
                    self._note_deletes(file, deleted)
        for file, order in data:
            if file["file_format"].upper() != "PARQUET":
                raise CacheDamaged(f"{self.folder}: {file['file_path']} is {file['file_format']}, not Parquet")
            path = self._here(file["file_path"])
            name = path.relative_to(self.folder).as_posix()
            gone = frozenset(deleted[file["file_path"]])
            yield TableFile(path, name, file["file_size_in_bytes"], file["record_count"], gone, order)

    def _note_deletes(self, file: Mapping[str, Any], deleted: defaultdict[str, set[int]]) -> None:
        path = self._here(file["file_path"])
        if file["content"] != _POSITIONS:
            raise CacheDamaged(f"{path} deletes rows by their values, which is not read here: compact the table first")
        if file["file_format"].upper() == "PUFFIN":
            target = deleted[file["referenced_data_file"]]
            target.update(deletes.in_vector(path, file["content_offset"], file["content_size_in_bytes"]))
        else:
            for target_path, position in deletes.in_file(path):
                deleted[target_path].add(position)

    def _snapshot(self) -> Mapping[str, Any] | None:
        current = self.held.get("current-snapshot-id")
        if current in (None, -1):
            return None
        found = next((each for each in self.held.get("snapshots", ()) if each["snapshot-id"] == current), None)
        if found is None:
            raise CacheDamaged(f"{self.metadata} names a snapshot that it does not have")
        return dict(found)

    def _here(self, location: str) -> Path:
        """Where a file of the table lies now."""
        prefix = _plain(str(self.held["location"])).rstrip("/") + "/"
        path = _plain(location)
        inside = PurePosixPath(path.removeprefix(prefix))
        if not path.startswith(prefix) or inside.is_absolute() or ".." in inside.parts:
            raise CacheDamaged(f"{self.metadata} names {location}, which lies outside of its table")
        return self.folder / inside


def opened(folder: Path) -> Table:
    """The table in a folder, as its newest metadata says; raises CacheDamaged where there is none to be read."""
    versions = {int(found[1]): each for each in _listed(folder) if (found := _VERSION.fullmatch(each.name))}
    hinted = _hint(folder)
    newest = max(versions, default=0)
    if not versions or hinted > newest:
        missing = f"v{hinted}.metadata.json" if hinted else "a v<number>.metadata.json"
        raise CacheDamaged(f"the table {folder} has no {missing}")
    path = versions[newest]
    try:
        held = json.loads(path.read_bytes())
        if not isinstance(held, dict) or not {"table-uuid", "location"} <= held.keys():
            raise ValueError("it is no table's metadata")
    except (OSError, ValueError) as error:
        raise CacheDamaged(f"{path} cannot be read: {error}") from error
    return Table(folder, path, held)


def is_table(folder: Path) -> bool:
    return any(_VERSION.fullmatch(each.name) for each in _listed(folder)) or _hint(folder) > 0


def _listed(folder: Path) -> list[Path]:
    try:
        return list((folder / "metadata").iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _hint(folder: Path) -> int:
    try:
        return int((folder / "metadata" / "version-hint.text").read_text())
    except (OSError, ValueError):
        return 0


def _plain(location: str) -> str:
    """One spelling of a location, without its scheme."""
    return "/" + location.removeprefix("file:").lstrip("/")


def _avro(path: Path) -> Iterator[dict[str, Any]]:
    import fastavro

    with open(path, "rb") as file:
        for record in fastavro.reader(file):
            assert isinstance(record, dict)
            yield record
