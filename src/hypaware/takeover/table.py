"""An Iceberg table of the original, read as plain files from its present location.

`metadata/v<N>.metadata.json` with the highest N is current: a commit creates the next one, and `version-hint.text` may
lag behind. Paths in the metadata start with the table's `location` at the time of writing; that prefix is replaced by
the directory in which the table was found. No file outside that directory is ever opened.
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
    """A part of a cache cannot be read, so rows would be missing silently."""

    kind = "cache_unreadable"


@dataclass(frozen=True)
class TableFile:
    path: Path
    name: str
    """Its path within the table, which never changes."""
    bytes: int
    records: int
    deleted: frozenset[int]
    """Positions of deleted rows."""
    order: int
    """Increases with the commits that added files."""

    @property
    def rows(self) -> int:
        return self.records - len(self.deleted)


@dataclass(frozen=True)
class Table:
    folder: Path
    metadata: Path
    document: Mapping[str, Any]

    @property
    def uuid(self) -> str:
        return str(self.document["table-uuid"])

    @cached_property
    def columns(self) -> dict[int, str]:
        """Current column names by field id."""
        schemas = self.document.get("schemas") or [self.document["schema"]]
        current = self.document.get("current-schema-id", 0)
        schema = next((each for each in schemas if each.get("schema-id", 0) == current), schemas[-1])
        for field in schema["fields"]:
            if field.get("initial-default") is not None:
                raise CacheDamaged(
                    f"{self.metadata}: column {field['name']} has a default value, which is not supported"
                )
        return {field["id"]: field["name"] for field in schema["fields"]}

    @cached_property
    def files(self) -> tuple[TableFile, ...]:
        """The live data files, each with its deleted rows."""
        try:
            return tuple(self._live_files())
        except CacheDamaged:
            raise
        except Exception as error:  # a damaged Avro file raises many kinds of errors
            raise CacheDamaged(f"cannot read the table {self.folder}: {type(error).__name__}: {error}") from error

    def _live_files(self) -> Iterator[TableFile]:
        snapshot = self._snapshot()
        if snapshot is None:
            return
        data: list[tuple[dict[str, Any], int]] = []
        deleted: defaultdict[str, set[int]] = defaultdict(set)
        for manifest in _avro(self._local_path(snapshot["manifest-list"])):
            for entry in _avro(self._local_path(manifest["manifest_path"])):
                if entry["status"] == _DELETED:
                    continue
                file, inherited = entry["data_file"], manifest.get("sequence_number") or 0
                if file.get("content", _DATA) == _DATA:
                    data.append((file, entry.get("sequence_number") or inherited))
                else:
                    self._add_deletes(file, deleted)
        for file, order in data:
            if file["file_format"].upper() != "PARQUET":
                raise CacheDamaged(f"{self.folder}: {file['file_path']} is {file['file_format']}, not Parquet")
            path = self._local_path(file["file_path"])
            name = path.relative_to(self.folder).as_posix()
            positions = frozenset(deleted[file["file_path"]])
            yield TableFile(path, name, file["file_size_in_bytes"], file["record_count"], positions, order)

    def _add_deletes(self, file: Mapping[str, Any], deleted: defaultdict[str, set[int]]) -> None:
        path = self._local_path(file["file_path"])
        if file["content"] != _POSITIONS:
            raise CacheDamaged(
                f"{path} is an equality delete, which is not supported: compact the table with the original first"
            )
        if file["file_format"].upper() == "PUFFIN":
            target = deleted[file["referenced_data_file"]]
            target.update(deletes.in_vector(path, file["content_offset"], file["content_size_in_bytes"]))
        else:
            for target_path, position in deletes.in_file(path):
                deleted[target_path].add(position)

    def _snapshot(self) -> Mapping[str, Any] | None:
        current = self.document.get("current-snapshot-id")
        if current in (None, -1):
            return None
        found = next((each for each in self.document.get("snapshots", ()) if each["snapshot-id"] == current), None)
        if found is None:
            raise CacheDamaged(f"{self.metadata}: the current snapshot is missing")
        return dict(found)

    def _local_path(self, location: str) -> Path:
        """Return the present location of a file of the table."""
        prefix = _normalise(str(self.document["location"])).rstrip("/") + "/"
        path = _normalise(location)
        inside = PurePosixPath(path.removeprefix(prefix))
        if not path.startswith(prefix) or inside.is_absolute() or ".." in inside.parts:
            raise CacheDamaged(f"{self.metadata} names {location}, which is outside its table")
        return self.folder / inside


def opened(folder: Path) -> Table:
    """Open the table in a directory by its newest metadata; raise CacheDamaged if there is none that can be read."""
    versions = {int(found[1]): each for each in _metadata_files(folder) if (found := _VERSION.fullmatch(each.name))}
    hinted = _hint(folder)
    newest = max(versions, default=0)
    if not versions or hinted > newest:
        missing = f"v{hinted}.metadata.json" if hinted else "a v<number>.metadata.json"
        raise CacheDamaged(f"the table {folder} has no {missing}")
    path = versions[newest]
    try:
        document = json.loads(path.read_bytes())
        if not isinstance(document, dict) or not {"table-uuid", "location"} <= document.keys():
            raise ValueError("not the metadata of a table")
    except (OSError, ValueError) as error:
        raise CacheDamaged(f"cannot read {path}: {error}") from error
    return Table(folder, path, document)


def is_table(folder: Path) -> bool:
    return any(_VERSION.fullmatch(each.name) for each in _metadata_files(folder)) or _hint(folder) > 0


def _metadata_files(folder: Path) -> list[Path]:
    try:
        return list((folder / "metadata").iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _hint(folder: Path) -> int:
    try:
        return int((folder / "metadata" / "version-hint.text").read_text())
    except (OSError, ValueError):
        return 0


def _normalise(location: str) -> str:
    """Normalise a location and remove its scheme."""
    return "/" + location.removeprefix("file:").lstrip("/")


def _avro(path: Path) -> Iterator[dict[str, Any]]:
    import fastavro

    with open(path, "rb") as file:
        for record in fastavro.reader(file):
            assert isinstance(record, dict)
            yield record
