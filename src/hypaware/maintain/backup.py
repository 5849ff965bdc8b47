"""`hyp backup`: make a consistent copy of a home while the home is in use. `hyp restore`: create a home from a backup.

A backup is laid out like a home, without locks and directories that a home recreates. State, catalog and spool are
copied at one moment, while no commit can happen. The data files that the tables reference at that moment never change;
they are copied afterwards, while no job may remove files. The copied state records that it has no location, so a backup
that is opened, with or without `hyp restore`, is treated as a copy, relocated, and gets its own incarnation.

Of each table only the current snapshot is copied: earlier ones hold rows that were rewritten or removed. `keys.db` is
included, because only it knows the keys of rows that retention has dropped. Of a damaged table every file on disk is
copied, without a catalog entry, so that the restored home can rebuild it; the report names it.

A restore checks every file against the backup's manifest while it is copied, and gives the home its name when all files
are present, correct and durable.

If the home has a shared lake, only what this machine alone has is copied: config, secrets, spool, key index. Database
and bucket have their own tools. No engine is needed, because rows that are committed during the copy are known to the
database: a restored home stores nothing twice.

@ref keeping#backup
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hypaware import __version__, faults
from hypaware.config.shared_lake import find_shared_lake
from hypaware.engine.jobs import JobContext
from hypaware.errors import HypError, LakeError
from hypaware.home import Home, durable_files
from hypaware.home.identity import NO_INODE, Identity
from hypaware.home.sqlite_readonly import has_table
from hypaware.iceberg import metadata
from hypaware.iceberg.metadata import CATALOG, NAMESPACE, CatalogEntry, TableMetadata
from hypaware.iceberg.relocate import LakeLocations
from hypaware.lake import health
from hypaware.lake.table import commit_lock, maintenance_lock
from hypaware.maintain import backup_folder
from hypaware.maintain.backup_folder import BackupManifest, FileCopier
from hypaware.model import datasets
from hypaware.spool import segments
from hypaware.state import flushes, mirror, store
from hypaware.state.home_opener import open_home
from hypaware.state.store import StateStore
from hypaware.text import format_count

CATALOG_NAME = "lake/catalog.db"
_SPOOL_PREFIX = "spool/"
_TRANSIENT = ("active", "incoming")
# Producers seal a second after their first row.
_SEAL_SECONDS = 3.0
_after_moment = faults.crash_point(
    "maintain.backup.after-moment", "state, catalog and spool are copied, the tables are not yet"
)
_after_copy = faults.crash_point("maintain.backup.after-copy", "everything is copied, the manifest is not written yet")
_before_rename = faults.crash_point(
    "maintain.backup.before-rename", "the backup is complete and still has its temporary name"
)
_after_rename = faults.crash_point("maintain.backup.after-rename", "the backup has its final name")
_after_restored_copy = faults.crash_point(
    "maintain.restore.after-copy", "all files are copied and checked, the home does not exist yet"
)
_before_restored_rename = faults.crash_point(
    "maintain.restore.before-rename", "the home is complete and still has its temporary name"
)
_after_restored_rename = faults.crash_point(
    "maintain.restore.after-rename", "the home has its final name and has not been opened"
)
# Recreated by a home, or copied separately.
_EXCLUDED_FOLDERS = ("engine", "run", "logs", "telemetry", "spool", "lake")
# Copied separately, or derived (index.db), with their -wal and -shm files.
_EXCLUDED_FILES = ("state.db", "state.mirror.json", "index.db")
_EXCLUDED_SUFFIXES = (".lock", ".tmp")
# Directory entries and links take some space too.
_MARGIN = 1.02
ProgressCallback = Callable[..., None]
CheckCancelled = Callable[[], None]
LockCallback = Callable[[], AbstractContextManager[None]]


def run_backup(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Run the job `backup`. args: `to`, an absolute path."""
    # A Spark session means that this engine owns the lake.
    assert context.spark is not None

    @contextmanager
    def lock_all(lock: Callable[[str, CheckCancelled], AbstractContextManager[None]]) -> Iterator[None]:
        with ExitStack() as held:
            # In a fixed order, including datasets whose first flush has yet to create a table.
            present = {entry.name for entry in metadata.list_tables(context.home)}
            spooled = segments.list_spooled_datasets(context.home)
            for name in sorted(present.union(datasets.list_names(), spooled)):
                held.enter_context(lock(name, context.check_cancelled))
            yield

    return make_backup(
        context.home,
        Path(args["to"]),
        context.progress,
        context.check_cancelled,
        keep_files=lambda: lock_all(maintenance_lock),
        block_commits=lambda: lock_all(commit_lock),
    )


def backup_without_engine(home: Home, to: Path, progress: ProgressCallback) -> dict[str, Any] | None:
    """Back up a home whose lake has no table, under the lake's lock so that no engine can create one.

    Return None if a table exists or a JVM holds the lake: the job must make the backup then.
    """
    durable_files.make_dir(home.lake)
    fd = os.open(home.lake_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            # A POSIX lock, as Java uses; no JVM runs in this process.
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return None
        if metadata.list_tables(home):
            return None
        return make_backup(home, to, progress, lambda: None)
    finally:
        os.close(fd)


def backup_machine(home: Home, to: Path, progress: ProgressCallback) -> dict[str, Any]:
    """Back up what only this machine has of a shared lake."""
    shared = find_shared_lake(home)
    assert shared is not None
    _refuse_overlap(home, to)
    opened = open_home(home)
    with closing(opened.store) as state, state.reading() as connection:
        next_seq = flushes.next_sequence(connection)
    with backup_folder.staged_folder(to) as folder:
        for dataset in segments.list_spooled_datasets(home):
            segments.wait_until_sealed(segments.spool_folder(home, dataset), _SEAL_SECONDS)
        # The note of what was purged before the keys: a restored home may forget something twice, but never too little.
        others = [*_other_paths(home.root, top=True), *home.lake.glob("*.json")]
        sized = [*others, *home.lake.glob(home.keys.name), *(path for _, path in _spool_files(home))]
        total = _sum_sizes(sized)
        backup_folder.require_space(to.parent, int(total * _MARGIN))
        copier = FileCopier(folder, total, progress, lambda: None)
        made_at = _utc_now()
        for path in others:
            with suppress(FileNotFoundError):
                copier.copy(path, path.relative_to(home.root).as_posix())
        if home.keys.is_file():
            copier.copy_database(home.keys, home.keys.relative_to(home.root).as_posix())
        _copy_spool(home, copier)
        _after_copy()
        report = _publish(
            folder,
            to,
            BackupManifest(
                made_at,
                __version__,
                str(home.root),
                opened.gateway_id,
                opened.identity.incarnation,
                next_seq,
                copier.files,
            ),
        )
    return {**report, "datasets": [], "damaged": [], "not_copied": [shared.address, shared.warehouse]}


def make_backup(
    home: Home,
    to: Path,
    progress: ProgressCallback,
    check_cancelled: CheckCancelled,
    *,
    keep_files: LockCallback = nullcontext,
    block_commits: LockCallback = nullcontext,
    seal_seconds: float = _SEAL_SECONDS,
) -> dict[str, Any]:
    """Write the backup to `to` and return its report.

    `keep_files` locks the tables against the removal of files while they are copied, `block_commits` against commits
    for the moment of the copy. Running producers get `seal_seconds` to seal their segments.
    """
    _refuse_overlap(home, to)
    open_home(home).store.close()
    progress("waiting for running maintenance")
    with backup_folder.staged_folder(to) as folder, keep_files():
        progress("measuring the files to copy")
        # No rebuild can change it while the tables are locked.
        damaged = dict(health.find_damaged_tables(home))
        # The others can be read, but they lack rows or delete more than the state knows.
        unreadable = {name for name, error in damaged.items() if not _is_readable(home, name, error)}
        # Seal orphaned segments and give producers time to seal theirs; segments still active are copied unsealed.
        for dataset in segments.list_spooled_datasets(home):
            segments.wait_until_sealed(segments.spool_folder(home, dataset), seal_seconds)
        total = _home_size(home, unreadable)
        backup_folder.require_space(to.parent, int(total * _MARGIN))
        copier = FileCopier(folder, total, progress, check_cancelled)
        # Files without special handling: config, tokens, the secrets of sinks and server.
        for path in _other_paths(home.root, top=True):
            with suppress(FileNotFoundError):
                copier.copy(path, path.relative_to(home.root).as_posix())
        # Copy most of the spool now, so that little is left to copy while commits are blocked.
        _copy_spool(home, copier)
        with block_commits():
            made_at = _utc_now()
            copier.copy_database(home.state, "state.db")
            for path in sorted(home.lake.glob("*.db"), key=lambda path: path != home.catalog):
                copier.copy_database(path, f"lake/{path.name}")
            # Pending settlements must match the key index.
            for path in sorted(home.settlements.glob("*/*.parquet")):
                copier.copy(path, path.relative_to(home.root).as_posix())
            tables = _read_tables(home, unreadable)
            _copy_spool(home, copier)
        _after_moment()
        rows = {}
        for table in tables:
            try:
                rows[table.entry.name] = copy_table(home, table, copier)
            except LakeError as error:
                damaged[table.entry.name] = error
        for path in _folder_files(home, unreadable):
            with suppress(FileNotFoundError):
                copier.copy(path, path.relative_to(home.root).as_posix())
        _remove_other_entries(copier, unreadable)
        identity, next_seq = _clear_location(folder, copier)
        _after_copy()
        manifest = BackupManifest(
            made_at, __version__, str(home.root), identity.gateway_id, identity.incarnation, next_seq, copier.files
        )
        report = _publish(folder, to, manifest)
    return {
        **report,
        "datasets": [{"dataset": name, "rows": count} for name, count in sorted(rows.items())],
        "damaged": [
            {"dataset": name, "message": error.message, "repair": list(error.repair)}
            for name, error in sorted(damaged.items())
        ],
    }


def _publish(folder: Path, to: Path, manifest: BackupManifest) -> dict[str, Any]:
    """Write the manifest, give the backup its name, and return its report."""
    document = {"version": backup_folder.MANIFEST_VERSION, **asdict(manifest)}
    encoded = json.dumps(document, indent=1, ensure_ascii=False).encode()
    durable_files.write_atomic(folder / backup_folder.MANIFEST_NAME, encoded)
    backup_folder.publish_folder(folder, to, _before_rename, _after_rename)
    return {
        "backup": str(to),
        "made_at": manifest.made_at,
        "home": manifest.home,
        "gateway_id": manifest.gateway_id,
        "incarnation": manifest.incarnation,
        "next_seq": manifest.next_seq,
        "files": len(manifest.files),
        "bytes": manifest.bytes,
    }


def _refuse_overlap(home: Home, to: Path) -> None:
    root, target = home.root.resolve(), to.resolve()
    if target == root or target.is_relative_to(root) or root.is_relative_to(target):
        raise HypError(f"{to} overlaps the home {home.root}; choose a directory outside the home", kind="in_home")


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _is_readable(home: Home, dataset: str, error: LakeError) -> bool:
    return error.kind == "lake_rolled_back" and metadata.find_table(home, dataset) is not None


def _home_size(home: Home, unreadable: Collection[str]) -> int:
    paths = [home.state, home.catalog, *_other_paths(home.root, top=True)]
    paths += [path for _, path in _spool_files(home)]
    paths += [path for table in _read_tables(home, unreadable) for path, _ in _table_files(home, table)]
    paths += _folder_files(home, unreadable)
    return _sum_sizes(paths)


def _sum_sizes(paths: Iterable[Path]) -> int:
    total = 0
    for path in paths:
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def _other_paths(folder: Path, top: bool = False) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            if not top or path.name not in _EXCLUDED_FOLDERS:
                yield from _other_paths(path)
        elif (
            path.is_file() and not path.name.endswith(_EXCLUDED_SUFFIXES) and not path.name.startswith(_EXCLUDED_FILES)
        ):
            yield path


def _copy_spool(home: Home, copier: FileCopier) -> None:
    """Copy the spool. Afterwards the copy holds exactly the rows that the spool holds.

    If a file has moved before it could be copied, the listing starts again, so that no file is missed.
    """
    while True:
        files = dict(_spool_files(home))
        try:
            for name, path in files.items():
                copier.copy(path, name, whole_lines=path.parent.name == "active")
        except FileNotFoundError:
            continue
        break
    # A file listed as active or incoming that is sealed now counts as sealed.
    sealed = {_segment_id(path) for path in files.values() if path.parent.name == "sealed"}
    is_moved = {name: path.parent.name in _TRANSIENT and _segment_id(path) in sealed for name, path in files.items()}
    copier.prune(_SPOOL_PREFIX, [name for name in files if not is_moved[name]])


def _spool_files(home: Home) -> Iterator[tuple[str, Path]]:
    """Yield active and incoming files first: they move to `sealed` at any time."""
    for dataset in segments.list_spooled_datasets(home):
        others = sorted(path.name for path in (home.spool / dataset).iterdir() if path.name not in _TRANSIENT)
        for folder in (*_TRANSIENT, *others):
            for path in sorted((home.spool / dataset / folder).glob(f"*{segments.SUFFIX}")):
                if not path.name.startswith("."):
                    yield f"{_SPOOL_PREFIX}{dataset}/{folder}/{path.name}", path


def _segment_id(path: Path) -> tuple[Path, str]:
    return path.parent.parent, path.name.partition(".")[0]


@dataclass(frozen=True)
class TableAtBackup:
    entry: CatalogEntry
    document: dict[str, Any]
    metadata: TableMetadata


def _read_tables(home: Home, unreadable: Collection[str]) -> list[TableAtBackup]:
    """Read the current metadata of each table. Later commits do not change it, but may remove its file."""
    return [
        TableAtBackup(entry, json.loads(entry.metadata.read_bytes()), metadata.read_metadata(entry.metadata))
        for entry in metadata.list_tables(home)
        if entry.name not in unreadable
    ]


def _folder_files(home: Home, unreadable: Collection[str]) -> list[Path]:
    """Return every file in the directories of tables whose metadata cannot be read, as a rebuild will look for them."""
    folders = [folder for name in sorted(unreadable) for folder in metadata.table_folders(home, name)]
    return [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]


def _table_files(home: Home, table: TableAtBackup) -> Iterator[tuple[Path, str]]:
    """Yield every file that the current snapshot needs, with its name in the copy."""
    if table.metadata.current is None:
        return
    place = LakeLocations.of_home(home)
    yield _local_and_name(place, table.metadata.current.manifest_list)
    for manifest in metadata.read_manifests(table.metadata.current):
        yield _local_and_name(place, manifest.path)
        for file in metadata.read_data_files(table.metadata, manifest):
            yield _local_and_name(place, file.path)


def copy_table(home: Home, table: TableAtBackup, copier: FileCopier) -> int:
    """Copy the files that the table's current snapshot needs, and its metadata; return its number of rows.

    Raises LakeError, after everything else is copied, if a data file is missing.
    """
    missing: list[Path] = []
    for path, name in _table_files(home, table):
        try:
            copier.copy(path, name)
        except FileNotFoundError:
            missing.append(path)
    _, name = _local_and_name(LakeLocations.of_home(home), table.entry.metadata)
    durable_files.write_atomic(copier.target(name), json.dumps(_keep_current_snapshot(table.document)).encode())
    copier.record(name)
    if missing:
        raise LakeError(
            f"table {table.entry.name} is damaged: {missing[0]} is missing"
            + (f", and {format_count(len(missing) - 1, 'other file')}" if len(missing) > 1 else ""),
            kind="lake_damaged",
            repair=f"hyp maintain {table.entry.name} --rebuild",
        )
    current = table.metadata.current
    return int(current.summary.get("total-records", 0)) if current else 0


def _keep_current_snapshot(document: dict[str, Any]) -> dict[str, Any]:
    """Return a table's metadata reduced to the current snapshot, without earlier metadata files."""
    newest = document.get("current-snapshot-id")
    reduced = dict(document)
    for name in ("snapshots", "snapshot-log"):
        if name in document:
            reduced[name] = [each for each in document[name] if each["snapshot-id"] == newest]
    # Statistics are recomputed on demand.
    for name in ("statistics", "partition-statistics", "metadata-log"):
        if name in document:
            reduced[name] = []
    if "refs" in document:
        reduced["refs"] = {name: ref for name, ref in document["refs"].items() if ref["snapshot-id"] == newest}
    return reduced


def _local_and_name(place: LakeLocations, path: Path) -> tuple[Path, str]:
    local = place.local_file(str(path))
    return local, local.relative_to(place.root).as_posix()


def _remove_other_entries(copier: FileCopier, unreadable: Collection[str]) -> None:
    """Remove every catalog entry whose table was not copied, or cannot be read."""
    path = copier.folder / CATALOG_NAME
    if not path.is_file():
        return
    with closing(sqlite3.connect(path, isolation_level=None)) as catalog:
        if has_table(catalog, "iceberg_tables"):
            catalog.execute(
                "DELETE FROM iceberg_tables WHERE catalog_name <> ? OR table_namespace <> ?", (CATALOG, NAMESPACE)
            )
            catalog.executemany("DELETE FROM iceberg_tables WHERE table_name = ?", [(name,) for name in unreadable])
            catalog.execute("UPDATE iceberg_tables SET previous_metadata_location = NULL")
    copier.record(CATALOG_NAME)


def _clear_location(folder: Path, copier: FileCopier) -> tuple[Identity, int]:
    """Mark the copied state as having no location and write its mirror, so that both agree."""
    side_file = folder / "state.mirror.json"
    with closing(StateStore(folder / "state.db")) as copied_state:
        with copied_state.transaction() as connection:
            identity, next_seq = store.load_identity(connection), flushes.next_sequence(connection)
            assert identity is not None
            store.save_identity(connection, replace(identity, home_inode=NO_INODE))
        mirror.write_mirror(side_file, copied_state)
    side_file.with_name(f"{side_file.name}.lock").unlink(missing_ok=True)
    for name in ("state.db", side_file.name, mirror.GATEWAY_FILE):
        copier.record(name)
    return identity, next_seq


@dataclass(frozen=True)
class RestoredHome:
    identity: Identity
    next_seq: int


def restore_home(
    home: Home, source: Path, progress: ProgressCallback, check_cancelled: CheckCancelled = lambda: None
) -> RestoredHome:
    """Restore `home` from the backup in `source`; raise HypError if the home exists or the backup is damaged."""
    backup_folder.refuse_existing(home.root)
    manifest = backup_folder.read_manifest(source)
    # Compare names and sizes, the cheap part of the check, before anything is written.
    for name, expected in manifest.files.items():
        path = source / name
        if not path.is_file():
            raise _damaged(path, "is missing")
        if (size := path.stat().st_size) != expected.size:
            raise _damaged(path, f"has {size} bytes instead of {expected.size}")
    backup_folder.require_space(home.root.parent, manifest.bytes)
    with backup_folder.staged_folder(home.root) as folder:
        copier = FileCopier(folder, manifest.bytes, progress, check_cancelled)
        for name, expected in manifest.files.items():
            if copier.copy(source / name, name) != expected:
                raise _damaged(source / name, "has changed since the backup was made")
        _after_restored_copy()
        backup_folder.publish_folder(folder, home.root, _before_restored_rename, _after_restored_rename)
    progress("opening the home")
    opened = open_home(home)
    with closing(opened.store) as store, store.reading() as connection:
        next_seq = flushes.next_sequence(connection)
    return RestoredHome(opened.identity, next_seq)


def _damaged(path: Path, problem: str) -> HypError:
    return HypError(f"the backup is damaged: {path} {problem}; nothing was restored", kind="backup_damaged")
