"""`hyp restore`: create a home from a backup.

Every file is checked against the backup's manifest while it is copied. The home gets its name only when all files are
present, correct and durable. Then it is opened as a copy: it starts a new incarnation, so it never reuses a sequence
that the lost home assigned after the backup, and it asks its destinations which rows they have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hypaware import faults
from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.maintain import contents, staging
from hypaware.maintain.contents import Contents, Kept
from hypaware.maintain.copying import Copier
from hypaware.opening import open_home
from hypaware.state import flushes
from hypaware.state.identity import Identity

_after_copy = faults.point(
    "maintain.restore.after-copy", "all files are copied and checked, the home does not exist yet"
)
_before_rename = faults.point("maintain.restore.before-rename", "the home is complete and still has its temporary name")
_after_rename = faults.point("maintain.restore.after-rename", "the home has its final name and has not been opened")


@dataclass(frozen=True)
class Restored:
    home: Home
    manifest: Contents
    identity: Identity
    next_seq: int


def restore(
    home: Home, source: Path, progress: Callable[..., None], check_cancelled: Callable[[], None] = lambda: None
) -> Restored:
    """Restore `home` from the backup in `source`; raise HypError if the home exists or the backup is damaged."""
    staging.refuse_taken(home.root)
    manifest = contents.read(source)
    _check_sizes(source, manifest)
    staging.require_space(home.root.parent, manifest.bytes)
    done = 0

    def copied(count: int) -> None:
        nonlocal done
        done += count
        progress("copying", done, manifest.bytes, unit="bytes")

    with staging.staged(home.root) as folder:
        copier = Copier(folder, check_cancelled, copied)
        for name, expected in manifest.files.items():
            _check(source / name, copier.copy(source / name, name), expected)
        _after_copy()
        staging.publish(folder, home.root, _before_rename, _after_rename)
    progress("opening the home")
    opened = open_home(home)
    try:
        with opened.store.reading() as connection:
            next_seq = flushes.next_seq(connection)
    finally:
        opened.store.close()
    return Restored(home, manifest, opened.identity, next_seq)


def _check_sizes(source: Path, manifest: Contents) -> None:
    """Compare names and sizes, the cheap part of the check, before anything is written."""
    for name, expected in manifest.files.items():
        path = source / name
        if not path.is_file():
            raise _damaged(path, "is missing")
        if (size := path.stat().st_size) != expected.size:
            raise _damaged(path, f"has {size} bytes instead of {expected.size}")


def _check(path: Path, copied: Kept, expected: Kept) -> None:
    if copied != expected:
        raise _damaged(path, "has changed since the backup was made")


def _damaged(path: Path, problem: str) -> HypError:
    return HypError(f"the backup is damaged: {path} {problem}; nothing was restored", kind="backup_damaged")
