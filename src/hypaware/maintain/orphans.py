"""Orphans: files of a table that nothing names. What killed writers and keepers left, and what an expiry missed.

Named is what the table's metadata names: every snapshot's manifest list, manifests and data files, the earlier metadata
files of its log; and what the metadata before it needs to be current again after a power cut (`secure`). Files of a
flush that is neither recorded nor burnt belong to recovery. The caller has both turns of the table, so nobody is
writing. Folders of earlier generations (`generation`) go as a whole, when nobody can be reading them any more.
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

_before_unlink = faults.point("maintain.orphans.before-unlink", "files that nothing names were found")
_after_unlink = faults.point("maintain.orphans.after-unlink", "files that nothing named are gone")

# Whatever else lies there is somebody's, and not ours to remove.
_OURS = (".parquet", ".avro", ".metadata.json")


@dataclass
class Orphans:
    files: list[Path] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    """Of earlier generations."""
    count: int = 0
    """Files, those in the folders included."""
    bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.files or self.folders)


def find(home: Home, entry: TableEntry, unfinished: Collection[str], before: float) -> Orphans:
    """`unfinished`: ids of flushes; `before`: a generation that was touched since then may still be read."""
    found = Orphans()
    named, live = _named(entry)
    location = entry.metadata.parent.parent
    there = dict(_files(location))
    if missing := live - there.keys():
        # Either the table is damaged, and an orphan may be all that is left of a row; or its paths are spelled in
        # another way than ours, and everything would look like an orphan.
        raise LakeError(
            f"table {entry.name}: {min(missing)} is not in {location}; nothing there is removed", kind="lake_damaged"
        )
    for path, size in there.items():
        if _is_orphan(path, named, unfinished):
            found.files.append(path)
            found.count, found.bytes = found.count + 1, found.bytes + size
    for folder in generation.abandoned(home, entry.name):
        if _touched(folder) < before:
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


def _is_orphan(path: Path, named: Collection[Path], unfinished: Collection[str]) -> bool:
    if path.name.endswith(".crc"):
        # Hadoop's checksum of a neighbour.
        neighbour = path.with_name(path.name.removeprefix(".").removesuffix(".crc"))
        return neighbour.name.endswith(_OURS) and neighbour not in named
    if not path.name.endswith(_OURS) or path in named:
        return False
    return not any(path.name.startswith(f"{flush}-") for flush in unfinished)


def _named(entry: TableEntry) -> tuple[set[Path], set[Path]]:
    """Every file that is named, and the data files that are live."""
    try:
        known = metadata.read(entry.metadata)
        live = {file.path for file in metadata.live_files(known)}
        named = {entry.metadata, *known.log, *live}
        for snapshot in known.snapshots:
            # After a step back from an expiry the files of an old snapshot may be gone already: nobody can read it.
            with suppress(FileNotFoundError):
                _add_named(named, known, snapshot)
        if entry.previous is not None:
            named.add(entry.previous)
            # Of that one only what it needs to be current: an expiry since then has taken its other snapshots away.
            if entry.previous.exists() and (current := (before := metadata.read(entry.previous)).current):
                _add_named(named, before, current)
    except Exception as error:
        # Torn JSON and torn Avro fail in many ways. Who cannot tell what is named cannot tell what is not.
        raise LakeError(
            f"table {entry.name}: its metadata cannot be read to the end, nothing is removed: {error}",
            kind="lake_damaged",
        ) from error
    return named, live


def _add_named(named: set[Path], known: Metadata, snapshot: Snapshot) -> None:
    named.add(snapshot.manifest_list)
    for manifest in metadata.manifests(snapshot):
        # Snapshots share most of their manifests.
        if manifest.path not in named:
            named.add(manifest.path)
            named.update(file.path for file in metadata.data_files(known, manifest))


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    """No link is followed."""
    for at, _, names in os.walk(folder):
        for name in names:
            path = Path(at, name)
            with suppress(FileNotFoundError):
                yield path, path.lstat().st_size


def _touched(folder: Path) -> float:
    newest = folder.lstat().st_mtime
    for at, folders, names in os.walk(folder):
        newest = max([newest, *(Path(at, name).lstat().st_mtime for name in (*folders, *names))])
    return newest
