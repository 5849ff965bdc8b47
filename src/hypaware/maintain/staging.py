"""A directory that appears complete or not at all: it is filled as `NAME.partial-<random>` next to its target, then
renamed.

The process that fills it holds a flock on the directory itself. A directory whose lock is free was left by a killed
process; the next run removes it. A directory whose lock is held means that another process is at work, and the run
stops.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hypaware import durable
from hypaware.errors import HypError, Retryable


@contextmanager
def staged(to: Path) -> Iterator[Path]:
    """Yield a directory to fill. It is removed at the end unless it was published."""
    refuse_taken(to)
    try:
        durable.make_dir(to.parent)
        _sweep(to)
        path, lock = _claim(to)
        try:
            yield path
        finally:
            if path.exists():
                shutil.rmtree(path, ignore_errors=True)
            os.close(lock)
    except OSError as error:
        raise Retryable(f"cannot write {to}, nothing was left behind: {error}", kind="not_written") from error


def publish(path: Path, to: Path, before: Callable[[], None], after: Callable[[], None]) -> None:
    """Make everything in the directory durable, then rename it to its target."""
    for folder, _, _ in os.walk(path, topdown=False):
        durable.fsync_dir(Path(folder))
    before()
    try:
        durable.rename(path, to)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise _taken(to) from error
        raise Retryable(f"cannot rename {path} to {to}: {error.strerror}", kind="not_renamed") from error
    after()


def refuse_taken(to: Path) -> None:
    if to.is_dir() and not any(to.iterdir()):
        return
    if os.path.lexists(to):
        raise _taken(to)


def require_space(where: Path, needed: int) -> None:
    """Raise if the disk lacks the space, before anything is written."""
    while not where.exists():
        where = where.parent
    if (free := shutil.disk_usage(where).free) < needed:
        raise Retryable(
            f"not enough disk space: {needed / 1e6:,.0f} MB needed, {free / 1e6:,.0f} MB free on {where}",
            kind="no_space",
        )


def _taken(to: Path) -> HypError:
    return HypError(f"{to} already exists and is not an empty directory; nothing was overwritten", kind="not_empty")


def _claim(to: Path) -> tuple[Path, int]:
    while True:
        path = to.with_name(f"{to.name}.partial-{secrets.token_hex(4)}")
        path.mkdir(mode=0o700)
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Another process may have removed the directory before we locked it.
        if path.exists():
            return path, lock
        os.close(lock)


def _sweep(to: Path) -> None:
    for leftover in sorted(to.parent.glob(f"{_literal(to.name)}.partial-*")):
        fd = os.open(leftover, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(leftover)
        except BlockingIOError:
            raise Retryable(
                f"another process is writing {leftover}; wait until it has finished", kind="already_running"
            ) from None
        finally:
            os.close(fd)


def _literal(name: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)
