"""Orphans: files of a table that nothing references, left by killed jobs or by an incomplete expiry.

Referenced are: the manifest lists, manifests and data files of every snapshot in the table's metadata, the earlier
metadata files of its log, and the files that the previous metadata needs if a power cut makes it current again
(`secure`). Files of an unfinished flush belong to recovery. The caller holds both locks of the table, so no other job
is writing. Directories of earlier generations (`generation`) are removed as a whole once no reader can be using them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hypaware import durable, faults
from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.lake import metadata
from hypaware.lake.metadata import Metadata, Snapshot, TableEntry
from hypaware.maintain import generation

_before_unlink = faults.point("maintain.orphans.before-unlink", "orphaned files were found")
_after_unlink = faults.point("maintain.orphans.after-unlink", "orphaned files are removed")

# Files with other names belong to others and are left alone.
_OUR_SUFFIXES = (".parquet", ".avro", ".metadata.json")


@dataclass
class Orphans:
    files: list[Path] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    """Directories of earlier generations."""
    count: int = 0
    """Number of files, including those in the directories."""
    bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.files or self.folders)


def find(home: Home, entry: TableEntry, unfinished: Collection[str], before: float) -> Orphans:
    """Find orphans. `unfinished`: ids of flushes; a generation modified since `before` may still be read."""
    found = Orphans()
    referenced, live = _referenced(entry)
    location = entry.metadata.parent.parent
    on_disk = dict(_files(location))
    if missing := live - on_disk.keys():
        # Either the table is damaged, and an orphan may be the last copy of a row; or its paths are spelled differently
        # from ours, and every file would look like an orphan.
        raise LakeError(
            f"table {entry.name}: {min(missing)} is missing from {location}; no orphan was removed", kind="lake_damaged"
        )
    for path, size in on_disk.items():
        if _is_orphan(path, referenced, unfinished):
            found.files.append(path)
            found.count, found.bytes = found.count + 1, found.bytes + size
    for folder in generation.abandoned(home, entry.name):
        if _last_modified(folder) < before:
            found.folders.append(folder)
            sizes = [size for _, size in _files(folder)]
            found.count, found.bytes = found.count + len(sizes), found.bytes + sum(sizes)
    return found


def remove(orphans: Orphans) -> None:
    if not orphans:
        return
    _before_unlink()
    for path in orphans.files:
        path.unlink(missing_ok=True)
    for folder in sorted({path.parent for path in orphans.files}):
        durable.fsync_dir(folder)
    for folder in orphans.folders:
        shutil.rmtree(folder)
        durable.fsync_dir(folder.parent)
    _after_unlink()


def _is_orphan(path: Path, referenced: Collection[Path], unfinished: Collection[str]) -> bool:
    if path.name.endswith(".crc"):
        # A checksum file that Hadoop writes for its neighbour.
        checked_file = path.with_name(path.name.removeprefix(".").removesuffix(".crc"))
        return checked_file.name.endswith(_OUR_SUFFIXES) and checked_file not in referenced
    if not path.name.endswith(_OUR_SUFFIXES) or path in referenced:
        return False
    return not any(path.name.startswith(f"{flush}-") for flush in unfinished)


def _referenced(entry: TableEntry) -> tuple[set[Path], set[Path]]:
    """Return all referenced files, and the live data files."""
    try:
        current_metadata = metadata.read(entry.metadata)
        live = {file.path for file in metadata.live_files(current_metadata)}
        referenced = {entry.metadata, *current_metadata.log, *live}
        for snapshot in current_metadata.snapshots:
            # After an expiry was undone by a power cut, files of an old snapshot may be missing: no reader can use it.
            with suppress(FileNotFoundError):
                _add_referenced(referenced, current_metadata, snapshot)
        if entry.previous is not None:
            referenced.add(entry.previous)
            # Only its current snapshot: a later expiry has removed the files of the others.
            if entry.previous.exists() and (current := (before := metadata.read(entry.previous)).current):
                _add_referenced(referenced, before, current)
    except Exception as error:
        # Damaged JSON and Avro raise many kinds of errors. Without a full list of references nothing is an orphan.
        raise LakeError(
            f"table {entry.name}: cannot read its metadata, no orphan was removed: {error}",
            kind="lake_damaged",
        ) from error
    return referenced, live


def _add_referenced(referenced: set[Path], current_metadata: Metadata, snapshot: Snapshot) -> None:
    referenced.add(snapshot.manifest_list)
    for manifest in metadata.manifests(snapshot):
        # Snapshots share most of their manifests.
        if manifest.path not in referenced:
            referenced.add(manifest.path)
            referenced.update(file.path for file in metadata.data_files(current_metadata, manifest))


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield the files below a directory without following links."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with suppress(FileNotFoundError):
                yield path, path.lstat().st_size


def _last_modified(folder: Path) -> float:
    newest = folder.lstat().st_mtime
    for parent, folders, names in os.walk(folder):
        newest = max([newest, *(Path(parent, name).lstat().st_mtime for name in (*folders, *names))])
    return newest
