"""`hyp backup`: a consistent copy of a home, made while everything goes on.

A backup is laid out as a home. Its state, its catalog and its spool are of one moment, at which nobody commits; the
files that the tables name at that moment never change, and are copied afterwards, while nobody may remove them. It says
of itself that it lies nowhere: wherever it is opened, also without `hyp restore`, it is a copy, with a life of its own.

What a home makes anew is left out: `engine/`, `run/`, `logs/`, `telemetry/`, locks.

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

_after_moment = faults.point("maintain.backup.after-moment", "state, catalog and spool are copied, the tables are not")
_after_copy = faults.point("maintain.backup.after-copy", "everything is copied, nothing says yet what it is")
_before_rename = faults.point("maintain.backup.before-rename", "the backup is whole and has not got its name")
_after_rename = faults.point("maintain.backup.after-rename", "the backup is there")

_MADE_ANEW = ("engine", "run", "logs", "telemetry")
_BY_ITSELF = ("spool", "lake")
# Names, links and folders take some space too.
_MARGIN = 1.02

Progress = Callable[..., None]
Check = Callable[[], None]


@dataclass(frozen=True)
class Hold:
    """What keeps a home still: `files` while its tables' files are copied, `commits` for the one moment."""

    files: Callable[[], AbstractContextManager[None]]
    commits: Callable[[], AbstractContextManager[None]]


def backup(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """The job; args: `to`, an absolute path."""
    # From here on the lake is ours.
    assert context.spark is not None
    check = context.check_cancelled

    def all_of(turn: Callable[[str, Check], AbstractContextManager[None]]) -> AbstractContextManager[None]:
        return _all_of(turn, _every_dataset(context.home), check)

    hold = Hold(lambda: all_of(turns.keeping), lambda: all_of(turns.changing))
    return make(context.home, Path(args["to"]), hold, context.progress, check)


@contextmanager
def _all_of(
    turn: Callable[[str, Check], AbstractContextManager[None]], names: list[str], check: Check
) -> Iterator[None]:
    with ExitStack() as held:
        for name in names:
            held.enter_context(turn(name, check))
        yield


def _every_dataset(home: Home) -> list[str]:
    """Always in one order. Also those without a table: a first flush makes one."""
    present = {entry.name for entry in metadata.entries(home)}
    return sorted(present | set(datasets.names()) | set(segments.datasets_with_spool(home)))


def without_engine(home: Home, to: Path, progress: Progress) -> dict[str, Any] | None:
    """Of a home whose lake has no table: the lake's lock is held here, so that no engine makes one meanwhile.

    None if there is a table after all, or a JVM has the lake: the job must do it.
    """
    durable.make_dir(home.lake)
    fd = os.open(home.lake_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            # A POSIX lock, as Java's is; no JVM lives in this process.
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return None
        if metadata.entries(home):
            return None
        return make(home, to, Hold(nullcontext, nullcontext), progress, lambda: None)
    finally:
        os.close(fd)


def make(home: Home, to: Path, hold: Hold, progress: Progress, check: Check) -> dict[str, Any]:
    _refuse_own_folder(home, to)
    open_home(home).store.close()
    standing.check_tables(home)
    progress("waiting for whoever keeps the tables")
    with staging.staged(to) as folder, hold.files():
        progress("looking at what there is to copy")
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
        # At leisure first, so that little is left for the moment.
        spool_copy.copy(home, copier)
        with hold.commits():
            made_at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
            copier.database(home.state, "state.db")
            lake_copy.databases(home, copier)
            lake_copy.waiting_settlements(home, copier)
            tables = lake_copy.tables(home)
            spool_copy.copy(home, copier)
        _after_moment()
        rows = {table.entry.name: lake_copy.copy_table(home, table, copier) for table in tables}
        lake_copy.forget_the_rest(copier)
        identity, next_seq = _disown(folder, copier)
        _after_copy()
        found = Contents(
            made_at, __version__, str(home.root), identity.gateway_id, identity.incarnation, next_seq, copier.kept
        )
        durable.write_file(folder / contents.NAME, contents.as_text(found))
        staging.publish(folder, to, _before_rename, _after_rename)
    return {
        "backup": str(to),
        "made_at": made_at,
        "home": str(home.root),
        "gateway_id": found.gateway_id,
        "incarnation": found.incarnation,
        "next_seq": next_seq,
        "files": len(found.files),
        "bytes": found.bytes,
        "datasets": [{"dataset": name, "rows": count} for name, count in sorted(rows.items())],
    }


def _refuse_own_folder(home: Home, to: Path) -> None:
    root, there = home.root.resolve(), to.resolve()
    if there == root or there.is_relative_to(root) or root.is_relative_to(there):
        raise HypError(f"{to} lies in the home {home.root}, or around it: a backup must lie elsewhere", kind="in_home")


def _other_files(home: Home, copier: Copier) -> None:
    """Everything of the home that has no rule of its own: config, tokens, the secrets of delivery and server."""
    for path in _others(home.root, top=True):
        with suppress(FileNotFoundError):
            copier.copy(path, path.relative_to(home.root).as_posix())


def _others(folder: Path, top: bool = False) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            if not top or path.name not in (*_MADE_ANEW, *_BY_ITSELF):
                yield from _others(path)
        elif path.is_file() and not _is_passing(path.name):
            yield path


def _is_passing(name: str) -> bool:
    """Locks, temporary files, and the state with its side file, which are made from one moment."""
    return name.endswith((".lock", ".tmp")) or name.startswith(("state.db", "state.mirror.json"))


def _size(home: Home) -> int:
    fixed = [home.state, home.catalog, *_others(home.root, top=True)]
    total = spool_copy.size(home) + sum(path.stat().st_size for path in fixed if path.is_file())
    for table in lake_copy.tables(home):
        total += sum(path.stat().st_size for path, _ in lake_copy.files(home, table) if path.is_file())
    return total


def _disown(folder: Path, copier: Copier) -> tuple[Identity, int]:
    """The copied state lies nowhere; its side file is made from it, so that neither is ahead of the other."""
    side_file = folder / "state.mirror.json"
    with closing(Store(folder / "state.db")) as store:
        with store.transaction() as connection:
            known, next_seq = whose.load(connection), flushes.next_seq(connection)
            assert known is not None
            whose.save(connection, replace(known, home_inode=NOWHERE))
        mirror.write(side_file, store)
    side_file.with_name(f"{side_file.name}.lock").unlink(missing_ok=True)
    for name in ("state.db", side_file.name, mirror.GATEWAY_FILE):
        copier.note(name)
    return known, next_seq
