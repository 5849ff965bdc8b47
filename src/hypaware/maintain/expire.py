"""Expiry: remove snapshots that no reader can be using, the files that only they reference, and orphaned files.

No row is removed. The caller holds the maintenance lock. While files are removed no other job changes the table, and
its current metadata is durable before the first file is removed.

Orphans are files of a table that nothing references, left by killed jobs or by an incomplete expiry. References are
those of every snapshot, of the metadata log, and of the previous metadata, which a power cut may make current again
(`iceberg/fsync`). Files of an unfinished flush belong to recovery. Directories of earlier generations are removed as a
whole once no reader can be using them.

@ref keeping#expiry
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from hypaware import faults
from hypaware.errors import LakeError
from hypaware.home import Home, durable_files
from hypaware.home.storage import is_durable, list_files
from hypaware.iceberg import fsync, metadata
from hypaware.iceberg.metadata import CatalogEntry, TableMetadata, TableSnapshot
from hypaware.lake import health, snapshots
from hypaware.lake.table import LakeTable, commit_lock
from hypaware.maintain import rebuild
from hypaware.maintain.context import MaintenanceContext, MaintenanceReport
from hypaware.state import flushes
from hypaware.text import format_count

_before_unlink = faults.crash_point("maintain.orphans.before-unlink", "orphaned files were found")
_after_unlink = faults.crash_point("maintain.orphans.after-unlink", "orphaned files are removed")
# Files with other names belong to others and are left alone.
_OUR_SUFFIXES = (".parquet", ".avro", ".metadata.json")
_before_commit = faults.crash_point(
    "maintain.expire.before-commit", "old snapshots are about to be expired, everything is durable"
)
_after_commit = faults.crash_point(
    "maintain.expire.after-commit", "old snapshots are expired, the commit is not durable yet"
)


def expire_dataset(context: MaintenanceContext, report: MaintenanceReport) -> None:
    home, name = context.home, context.dataset.name
    with context.store.reading() as connection:
        recorded = flushes.highest_recorded_sequence(connection, name)
    # Files left by a rollback look like orphans, but may be the only copy of their rows.
    health.check_floor(home, name, recorded)
    lock: AbstractContextManager[LakeTable | None] = (
        commit_lock(name, context.check_cancelled) if context.dry_run else context.lock_table()
    )
    with lock as table:
        if table is not None:
            rebuild.clear_unfinished(home, name)
        horizon = snapshots.expiry_horizon(context.table_metadata, context.force, coming=context.effects.snapshots)
        expired = len(snapshots.list_expirable(context.table_metadata, horizon))
        if table is not None and expired:
            _before_commit()
            expired = table.expire(horizon)
            _after_commit()
            fsync.fsync_commit(home, name)
        entry = metadata.find_table(home, name)
        assert entry is not None
        with context.store.reading() as connection:
            unfinished = [flush.id for flush in flushes.unfinished_flushes(connection, name)]
        before = snapshots.expiry_horizon(context.table_metadata, context.force)
        orphaned = find_orphans(home, entry, unfinished, before)
        if table is not None and orphaned:
            _before_unlink()
            for path in orphaned.files:
                path.unlink(missing_ok=True)
            for folder in sorted({path.parent for path in orphaned.files if not is_durable(path)}):
                durable_files.fsync_dir(folder)
            for folder in orphaned.folders:
                shutil.rmtree(folder)
                durable_files.fsync_dir(folder.parent)
            _after_unlink()
    report.snapshots_expired += expired
    report.orphans_removed += orphaned.count
    report.orphan_bytes += orphaned.bytes
    would = "would " if context.dry_run else ""
    if expired:
        report.reasons.append(f"{would}expire{'' if would else 'd'} {format_count(expired, 'snapshot')}")
    if orphaned:
        removed = f"{would}remove{'' if would else 'd'} {format_count(orphaned.count, 'unreferenced file')}"
        report.reasons.append(f"{removed}, {orphaned.bytes / 1e6:,.1f} MB")


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


def find_orphans(home: Home, entry: CatalogEntry, unfinished: Collection[str], before: float) -> Orphans:
    """Find orphans. `unfinished`: ids of flushes; a generation modified since `before` may still be read."""
    found = Orphans()
    referenced, live = _referenced(entry)
    location = entry.metadata.parent.parent
    on_disk = dict(list_files(location))
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
    for folder in rebuild.find_abandoned(home, entry.name):
        if max(path.lstat().st_mtime for path in (folder, *folder.rglob("*"))) < before:
            found.folders.append(folder)
            sizes = [size for _, size in list_files(folder)]
            found.count, found.bytes = found.count + len(sizes), found.bytes + sum(sizes)
    return found


def _referenced(entry: CatalogEntry) -> tuple[set[Path], set[Path]]:
    """Return all referenced files, and the live data files."""
    try:
        current_metadata = metadata.read_metadata(entry.metadata)
        live = {file.path for file in metadata.iter_live_files(current_metadata)}
        referenced = {entry.metadata, *current_metadata.log, *live}
        for snapshot in current_metadata.snapshots:
            # After an expiry was undone by a power cut, files of an old snapshot may be missing: no reader can use it.
            with suppress(FileNotFoundError):
                _add_referenced(referenced, current_metadata, snapshot)
        if entry.previous is not None:
            referenced.add(entry.previous)
            # Only its current snapshot: a later expiry has removed the files of the others.
            if entry.previous.exists() and (current := (before := metadata.read_metadata(entry.previous)).current):
                _add_referenced(referenced, before, current)
    except Exception as error:
        # Damaged JSON and Avro raise many kinds of errors. Without a full list of references nothing is an orphan.
        message = f"table {entry.name}: cannot read its metadata, no orphan was removed: {error}"
        raise LakeError(message, kind="lake_damaged") from error
    return referenced, live


def _add_referenced(referenced: set[Path], current_metadata: TableMetadata, snapshot: TableSnapshot) -> None:
    referenced.add(snapshot.manifest_list)
    for manifest in metadata.read_manifests(snapshot):
        # Snapshots share most of their manifests.
        if manifest.path not in referenced:
            referenced.add(manifest.path)
            referenced.update(file.path for file in metadata.read_data_files(current_metadata, manifest))


def _is_orphan(path: Path, referenced: Collection[Path], unfinished: Collection[str]) -> bool:
    if path.name.endswith(".crc"):
        # A checksum file that Hadoop writes for its neighbour.
        checked_file = path.with_name(path.name.removeprefix(".").removesuffix(".crc"))
        return checked_file.name.endswith(_OUR_SUFFIXES) and checked_file not in referenced
    if not path.name.endswith(_OUR_SUFFIXES) or path in referenced:
        return False
    return not any(path.name.startswith(f"{flush}-") for flush in unfinished)
