"""`hyp restore`: create a home from a backup.

Every file is checked against the backup's manifest while it is copied. The home gets its name only when all files are
present, correct and durable. Then it is opened as a copy: it starts a new incarnation, so it never reuses a sequence
that the lost home assigned after the backup, and it asks its destinations which rows they have.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from hypaware import faults
from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.home.identity import Identity
from hypaware.maintain import backup_folder
from hypaware.maintain.backup_folder import BackupManifest, FileCopier
from hypaware.state import flushes
from hypaware.state.home_opener import open_home

_after_copy = faults.crash_point(
    "maintain.restore.after-copy", "all files are copied and checked, the home does not exist yet"
)
_before_rename = faults.crash_point(
    "maintain.restore.before-rename", "the home is complete and still has its temporary name"
)
_after_rename = faults.crash_point(
    "maintain.restore.after-rename", "the home has its final name and has not been opened"
)


@dataclass(frozen=True)
class RestoredHome:
    home: Home
    manifest: BackupManifest
    identity: Identity
    next_seq: int


def restore_home(
    home: Home, source: Path, progress: Callable[..., None], check_cancelled: Callable[[], None] = lambda: None
) -> RestoredHome:
    """Restore `home` from the backup in `source`; raise HypError if the home exists or the backup is damaged."""
    backup_folder.refuse_existing(home.root)
    manifest = backup_folder.read_manifest(source)
    _check_sizes(source, manifest)
    backup_folder.require_space(home.root.parent, manifest.bytes)
    with backup_folder.staged_folder(home.root) as folder:
        copier = FileCopier(folder, manifest.bytes, progress, check_cancelled)
        for name, expected in manifest.files.items():
            if copier.copy(source / name, name) != expected:
                raise _damaged(source / name, "has changed since the backup was made")
        _after_copy()
        backup_folder.publish_folder(folder, home.root, _before_rename, _after_rename)
    progress("opening the home")
    opened = open_home(home)
    with closing(opened.store) as store, store.reading() as connection:
        next_seq = flushes.next_sequence(connection)
    return RestoredHome(home, manifest, opened.identity, next_seq)


def _check_sizes(source: Path, manifest: BackupManifest) -> None:
    """Compare names and sizes, the cheap part of the check, before anything is written."""
    for name, expected in manifest.files.items():
        path = source / name
        if not path.is_file():
            raise _damaged(path, "is missing")
        if (size := path.stat().st_size) != expected.size:
            raise _damaged(path, f"has {size} bytes instead of {expected.size}")


def _damaged(path: Path, problem: str) -> HypError:
    return HypError(f"the backup is damaged: {path} {problem}; nothing was restored", kind="backup_damaged")
