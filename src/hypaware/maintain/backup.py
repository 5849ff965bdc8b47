"""`hyp backup`: make a consistent copy of a home while the home is in use.

A backup is laid out like a home. The state, the catalog and the spool are copied at one moment, while no commit can
happen. The data files that the tables reference at that moment never change; they are copied afterwards, while no job
may remove files. The copied state records that it has no location, so a backup that is opened, with or without `hyp
restore`, is treated as a copy and gets its own incarnation.

Directories that a home recreates are left out: `engine/`, `run/`, `logs/`, `telemetry/`. So are locks.

@ref keeping#backup
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hypaware import __version__, durable, faults
from hypaware.engine.jobs import JobContext
from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.lake import metadata, standing, turns
from hypaware.maintain import contents, lake_copy, spool_copy, staging
from hypaware.maintain.contents import Contents
from hypaware.maintain.copying import Copier
from hypaware.model import datasets
from hypaware.opening import open_home
from hypaware.spool import segments
from hypaware.state import flushes, mirror, whose
from hypaware.state.identity import NOWHERE, Identity
from hypaware.state.store import Store

_after_moment = faults.point(
    "maintain.backup.after-moment", "state, catalog and spool are copied, the tables are not yet"
)
_after_copy = faults.point("maintain.backup.after-copy", "everything is copied, the manifest is not written yet")
_before_rename = faults.point(
    "maintain.backup.before-rename", "the backup is complete and still has its temporary name"
)
_after_rename = faults.point("maintain.backup.after-rename", "the backup has its final name")

_RECREATED = ("engine", "run", "logs", "telemetry")
_COPIED_SEPARATELY = ("spool", "lake")
# Directory entries and links take some space too.
_MARGIN = 1.02

Progress = Callable[..., None]
Check = Callable[[], None]


@dataclass(frozen=True)
class Hold:
    """The locks of a backup: `keep_files` while data files are copied, `block_commits` for the moment of the copy."""

    keep_files: Callable[[], AbstractContextManager[None]]
    block_commits: Callable[[], AbstractContextManager[None]]


def backup(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Run the job `backup`. args: `to`, an absolute path."""
    # A Spark session means that this engine owns the lake.
    assert context.spark is not None
    check = context.check_cancelled

    def hold_all(lock: Callable[[str, Check], AbstractContextManager[None]]) -> AbstractContextManager[None]:
        return _hold_all(lock, _every_dataset(context.home), check)

    backup_locks = Hold(lambda: hold_all(turns.keeping), lambda: hold_all(turns.changing))
    return make(context.home, Path(args["to"]), backup_locks, context.progress, check)


@contextmanager
def _hold_all(
    lock: Callable[[str, Check], AbstractContextManager[None]], names: list[str], check: Check
) -> Iterator[None]:
    with ExitStack() as held:
        for name in names:
            held.enter_context(lock(name, check))
        yield


def _every_dataset(home: Home) -> list[str]:
    """Return all datasets in a fixed order, including those whose first flush has yet to create a table."""
    present = {entry.name for entry in metadata.entries(home)}
    return sorted(present | set(datasets.names()) | set(segments.datasets_with_spool(home)))


def without_engine(home: Home, to: Path, progress: Progress) -> dict[str, Any] | None:
    """Back up a home whose lake has no table, under the lake's lock so that no engine can create one.

    Return None if a table exists or a JVM holds the lake: the job must make the backup then.
    """
    durable.make_dir(home.lake)
    fd = os.open(home.lake_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            # A POSIX lock, as Java uses; no JVM runs in this process.
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return None
        if metadata.entries(home):
            return None
        return make(home, to, Hold(nullcontext, nullcontext), progress, lambda: None)
    finally:
        os.close(fd)


def make(home: Home, to: Path, backup_locks: Hold, progress: Progress, check: Check) -> dict[str, Any]:
    """Write the backup to `to` and return its report."""
    _refuse_own_folder(home, to)
    open_home(home).store.close()
    standing.check_tables(home)
    progress("waiting for running maintenance")
    with staging.staged(to) as folder, backup_locks.keep_files():
        progress("measuring the files to copy")
        spool_copy.seal(home)
        total = _size(home)
        staging.require_space(to.parent, int(total * _MARGIN))
        done = 0

        def copied(count: int) -> None:
            nonlocal done
            done += count
            progress("copying", min(done, total), total, unit="bytes")

        copier = Copier(folder, check, copied)
        _other_files(home, copier)
        # Copy most of the spool now, so that little is left to copy while commits are blocked.
        spool_copy.copy(home, copier)
        with backup_locks.block_commits():
            made_at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
            copier.copy_database(home.state, "state.db")
            lake_copy.databases(home, copier)
            lake_copy.waiting_settlements(home, copier)
            tables = lake_copy.tables(home)
            spool_copy.copy(home, copier)
        _after_moment()
        rows = {table.entry.name: lake_copy.copy_table(home, table, copier) for table in tables}
        lake_copy.forget_the_rest(copier)
        identity, next_seq = _disown(folder, copier)
        _after_copy()
        manifest = Contents(
            made_at, __version__, str(home.root), identity.gateway_id, identity.incarnation, next_seq, copier.files
        )
        durable.write_file(folder / contents.NAME, contents.as_text(manifest))
        staging.publish(folder, to, _before_rename, _after_rename)
    return {
        "backup": str(to),
        "made_at": made_at,
        "home": str(home.root),
        "gateway_id": manifest.gateway_id,
        "incarnation": manifest.incarnation,
        "next_seq": next_seq,
        "files": len(manifest.files),
        "bytes": manifest.bytes,
        "datasets": [{"dataset": name, "rows": count} for name, count in sorted(rows.items())],
    }


def _refuse_own_folder(home: Home, to: Path) -> None:
    root, target = home.root.resolve(), to.resolve()
    if target == root or target.is_relative_to(root) or root.is_relative_to(target):
        raise HypError(f"{to} overlaps the home {home.root}; choose a directory outside the home", kind="in_home")


def _other_files(home: Home, copier: Copier) -> None:
    """Copy the files without special handling: config, tokens, the secrets of sinks and server."""
    for path in _others(home.root, top=True):
        with suppress(FileNotFoundError):
            copier.copy(path, path.relative_to(home.root).as_posix())


def _others(folder: Path, top: bool = False) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            if not top or path.name not in (*_RECREATED, *_COPIED_SEPARATELY):
                yield from _others(path)
        elif path.is_file() and not _is_passing(path.name):
            yield path


def _is_passing(name: str) -> bool:
    """Return whether the file is a lock, a temporary file, or part of the state, which is copied separately."""
    return name.endswith((".lock", ".tmp")) or name.startswith(("state.db", "state.mirror.json"))


def _size(home: Home) -> int:
    fixed = [home.state, home.catalog, *_others(home.root, top=True)]
    total = spool_copy.size(home) + sum(path.stat().st_size for path in fixed if path.is_file())
    for table in lake_copy.tables(home):
        total += sum(path.stat().st_size for path, _ in lake_copy.files(home, table) if path.is_file())
    return total


def _disown(folder: Path, copier: Copier) -> tuple[Identity, int]:
    """Mark the copied state as having no location and write its mirror, so that both agree."""
    side_file = folder / "state.mirror.json"
    with closing(Store(folder / "state.db")) as copied_state:
        with copied_state.transaction() as connection:
            identity, next_seq = whose.load(connection), flushes.next_seq(connection)
            assert identity is not None
            whose.save(connection, replace(identity, home_inode=NOWHERE))
        mirror.write(side_file, copied_state)
    side_file.with_name(f"{side_file.name}.lock").unlink(missing_ok=True)
    for name in ("state.db", side_file.name, mirror.GATEWAY_FILE):
        copier.record(name)
    return identity, next_seq
