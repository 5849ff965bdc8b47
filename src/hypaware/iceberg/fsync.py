"""Make Iceberg commits durable, and roll back a commit that a power cut damaged.

Iceberg does not fsync its files, so this module does. Every commit is durable before the next one follows. Only the
newest commit of a table can therefore be damaged. If files that it added are missing or truncated, the catalog is
rolled back to the previous metadata, which is intact.

@ref flush#commit
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from hypaware import faults
from hypaware.errors import LakeError, Retryable
from hypaware.home import Home, durable_files
from hypaware.home.storage import format_location, is_durable
from hypaware.iceberg import catalog, metadata
from hypaware.iceberg.metadata import CatalogEntry

_before_fsync = faults.crash_point("iceberg.fsync.before-fsync", "a commit is visible, its files are not durable")
_after_fsync = faults.crash_point("iceberg.fsync.after-fsync", "a commit is visible and durable")
_before_rollback = faults.crash_point("iceberg.roll-back.before-update", "a damaged commit was found")
_after_rollback = faults.crash_point(
    "iceberg.roll-back.after-update", "the catalog references the metadata before the damaged commit"
)
_PARQUET_MAGIC = b"PAR1"


def fsync_commit(home: Home, table: str, namespace: str = metadata.NAMESPACE) -> None:
    """Make the newest commit of a table durable. The writers have already fsynced its data files."""
    _before_fsync()
    found = metadata.find_table(home, table, namespace)
    if found is None:
        raise LakeError(f"the catalog {catalog.describe(home)} has no table {table}, which was just committed")
    if is_durable(found.metadata):
        _after_fsync()
        return
    known = metadata.read_metadata(found.metadata)
    added, data = [found.metadata], []
    if known.current:
        added.append(known.current.manifest_list)
        for manifest in metadata.read_manifests(known.current):
            if manifest.snapshot_id == known.current_id:
                added.append(manifest.path)
                data += [file.path for file in metadata.read_data_files(known, manifest)]
    for path in added:
        durable_files.fsync_file(path)
    folders = {folder for path in (*added, *data) for folder in path.parents if folder.is_relative_to(home.lake)}
    for folder in sorted(folders):
        durable_files.fsync_dir(folder)
    _after_fsync()


def fsync_all(home: Home, skip: Collection[str] = ()) -> None:
    """Make the newest commit of every table durable, after the lake was acquired from another process."""
    for found in metadata.list_tables(home):
        if found.name not in skip:
            fsync_commit(home, found.name)


def roll_back_damaged(home: Home, recorded: Mapping[str, int]) -> dict[str, str | LakeError]:
    """Check the newest commit of each table and roll back damaged ones. Call it before anything loads the tables.

    Return the reason for each table. A table whose rollback would lose rows up to the `recorded` sequence is not
    changed, because no power cut can have damaged those; its value is the error.
    """
    results: dict[str, str | LakeError] = {}
    for found in metadata.list_tables(home):
        if reason := find_damage(found.metadata):
            try:
                back_to = _choose_rollback(found, recorded.get(found.name, 0), reason)
            except LakeError as error:
                results[found.name] = error
                continue
            _before_rollback()
            _roll_back(home, found, back_to)
            _after_rollback()
            results[found.name] = reason
    return results


def require_intact(home: Home, table: str) -> None:
    """Raise an error if a table is damaged. Nothing may be committed on top of a damaged commit."""
    found = metadata.find_table(home, table)
    if found is None:
        return
    if reason := find_damage(found.metadata):
        raise _damaged_error(table, reason)
    try:
        # The manifests of earlier commits. Cached ones are not read again.
        for _ in metadata.iter_cached_files(metadata.read_metadata(found.metadata)):
            pass
    except (PermissionError, MemoryError):
        raise
    except Exception as error:
        # See `find_damage`.
        raise _damaged_error(table, f"{type(error).__name__}: {error}") from error


def _choose_rollback(table: CatalogEntry, recorded: int, reason: str) -> Path | None:
    """Return the metadata before the damaged one, or None if it was the first. Raise if that would lose rows."""
    if table.previous is not None and not find_damage(table.previous):
        if (floor := metadata.read_metadata(table.previous).floor) >= recorded:
            return table.previous
        loss = f"the previous commit ends at sequence {floor}, but rows up to {recorded} were recorded"
    else:
        others = [path for path in table.metadata.parent.glob("*.metadata.json") if path != table.metadata]
        if recorded == 0 and all(find_damage(path) for path in others):
            return None
        loss = "the previous commit is damaged too" if table.previous else f"rows up to {recorded} were recorded"
    raise _damaged_error(table.name, f"{reason}; {loss}")


def _damaged_error(table: str, reason: str) -> LakeError:
    return LakeError(
        f"table {table} is damaged ({reason}); restore a backup with hyp restore, or rebuild the table from its files",
        kind="lake_damaged",
        repair=f"hyp maintain {table} --rebuild",
    )


def find_damage(path: Path) -> str | None:
    """Return the problem with the files that a metadata.json and its newest snapshot reference, or None."""
    try:
        known = metadata.read_metadata(path)
        if known.current is None:
            return None
        for manifest in metadata.read_manifests(known.current):
            if manifest.snapshot_id != known.current_id:
                continue
            if (found := manifest.path.stat().st_size) != manifest.bytes:
                return f"{manifest.path} has {found} bytes instead of {manifest.bytes}"
            for file in metadata.read_data_files(known, manifest):
                if reason := find_file_damage(file.path, file.bytes):
                    return reason
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except (OSError, ImportError, MemoryError) as error:
        # An I/O error is not damage.
        raise Retryable(f"{path} could not be checked: {error}", kind="lake_unreadable") from error
    except Exception as error:
        # The parsers raise many kinds of errors for torn JSON and Avro.
        return f"{path.name} or a file that it references cannot be read ({type(error).__name__}: {error})"
    return None


def find_file_damage(path: Path, size: int) -> str | None:
    """Return whether a Parquet file is missing, has the wrong size, or has no footer; None if it is intact."""
    if not path.is_file():
        return f"{path} is missing"
    if (found := path.stat().st_size) != size:
        return f"{path} has {found} bytes instead of {size}"
    with path.open("rb") as file:
        file.seek(-len(_PARQUET_MAGIC), 2)
        return None if file.read() == _PARQUET_MAGIC else f"{path} has no Parquet footer"


def _roll_back(home: Home, table: CatalogEntry, back_to: Path | None) -> None:
    """Update the catalog. Remove the table if none of its commits is intact and none was recorded."""
    where = " WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?"
    key = (metadata.CATALOG, metadata.NAMESPACE, table.name)
    with catalog.change_catalog(home) as execute:
        if back_to is None:
            execute(f"DELETE FROM {catalog.TABLES}{where}", key)
        else:
            older = metadata.read_metadata(back_to).log
            locations = (format_location(back_to), format_location(older[-1]) if older else None)
            change = f"UPDATE {catalog.TABLES} SET metadata_location = ?, previous_metadata_location = ?"
            execute(change + where, (*locations, *key))
