"""`hyp restore`: a home from a backup, where there is none.

Every file is checked against the backup's list while it is copied, and the home gets its name only when all of it is
there, as it was, and durable. Then it is opened: as a copy, which it says it is, so that it never gives out a sequence
that the lost home gave out since, and asks its destinations what they have.
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

_after_copy = faults.point("maintain.restore.after-copy", "everything is copied and checked, and not a home yet")
_before_rename = faults.point("maintain.restore.before-rename", "the home is whole and has not got its name")
_after_rename = faults.point("maintain.restore.after-rename", "the home is there, and was not opened yet")


@dataclass(frozen=True)
class Restored:
    home: Home
    contents: Contents
    identity: Identity
    next_seq: int


def restore(
    home: Home, source: Path, progress: Callable[..., None], check_cancelled: Callable[[], None] = lambda: None
) -> Restored:
    staging.refuse_taken(home.root)
    found = contents.read(source)
    _check_sizes(source, found)
    staging.require_space(home.root.parent, found.bytes)
    done = 0

    def copied(count: int) -> None:
        nonlocal done
        done += count
        progress("copying", done, found.bytes, unit="bytes")

    with staging.staged(home.root) as folder:
        copier = Copier(folder, check_cancelled, copied)
        for name, expected in found.files.items():
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
    return Restored(home, found, opened.identity, next_seq)


def _check_sizes(source: Path, found: Contents) -> None:
    """The cheap half of the check, before anything is written."""
    for name, expected in found.files.items():
        path = source / name
        if not path.is_file():
            raise _damaged(path, "is missing")
        if (size := path.stat().st_size) != expected.size:
            raise _damaged(path, f"has {size} bytes instead of {expected.size}")


def _check(path: Path, copied: Kept, expected: Kept) -> None:
    if copied != expected:
        raise _damaged(path, "is not what it was when the backup was made")


def _damaged(path: Path, what: str) -> HypError:
    return HypError(f"the backup is damaged: {path} {what}; nothing was restored", kind="backup_damaged")
